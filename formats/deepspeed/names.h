// The file names of a DeepSpeed checkpoint. "pp_rank" in them means the data-parallel rank.
// Internal to formats/deepspeed.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "formats/core/byte_source.h"
#include "formats/core/result.h"

namespace formats {

struct DsName {
  enum class Kind { model, optimizer } kind = Kind::model;
  std::optional<std::uint32_t> data_rank;  // absent in the one model file of stages 1 and 2
  std::uint32_t model_rank = 0;            // tensor parallelism
};
// The last component of a path; nullopt for names of other files.
std::optional<DsName> parse_ds_name(std::string_view file);

// The files of the tag that `latest` names, by data-parallel rank.
struct DsFiles {
  std::string tag;                             // "" when the tree is the tag's folder itself
  std::string folder;                          // "" or "<tag>/"
  std::map<std::uint32_t, std::string> model;  // stages 1 and 2: one, as rank 0
  std::map<std::uint32_t, std::string> optimizer;
};
Result<DsFiles> find_ds_files(const SourceTree& tree);

}  // namespace formats
