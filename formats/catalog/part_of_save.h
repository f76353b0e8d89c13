// Whether a file, or what was read of it, is one rank's part of a save: told by its name and by
// those beside it, or by what a job's arguments in it say.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "ebb/formats/catalog/catalog.h"

namespace ebb::formats {

// What to do where ranks' files are missing.
inline constexpr std::string_view kTogetherHint =
    "each node may have kept its own ranks' files: bring them together, or use the checkpoint "
    "before this one";

// A name among those that ranks, or the cutting of a large model, lay side by side.
struct PartName {
  std::string family;       // "model_world_size_2_rank_*.pt": the same for all of them
  std::string number;       // which of them: "0", "00_001"
  std::uint32_t parts = 0;  // how many there are, where the name says so; 0: it does not
};
std::optional<PartName> part_name(std::string_view file);

// One line for people about files of which each is a part: "model_rank*.pt, 2 files", with the
// number that there should be, where the names say that and fewer are there.
std::string family_text(const PartName& name, std::size_t files);

// `name`: of the file, or of the folder of one rank; `beside`: what else is called in its folder.
std::optional<PartOfSave> part_by_name(std::string_view name, std::span<const std::string> beside);
// What Megatron's arguments say of the ranks that had a part each.
std::optional<PartOfSave> part_by_arguments(const Catalog& catalog);

}  // namespace ebb::formats
