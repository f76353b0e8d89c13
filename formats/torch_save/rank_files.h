// Files of torch.save of which each rank wrote one, as their names tell: which belong together, and
// whose each is. What they hold decides later. Internal to formats/torch_save.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ebb/formats/catalog/part_of_save.h"
#include "ebb/formats/core/byte_source.h"

namespace ebb::formats::torch_save {

struct RankFamily {
  PartName name;                               // of one of them
  std::map<std::uint32_t, std::string> files;  // by the rank that the name says
  // What those are called that are not there, where `name` does not tell.
  std::map<std::uint32_t, std::string> absent = {};

  bool is_of_states() const;  // of an optimizer, as its name tells

  std::string file_of(std::uint32_t rank) const;  // what a rank's file is, or would be, called
};

// Those of `names` that are ranks' files in families, with the files of the same names in the
// folder that do not look like torch.save: damaged ones.
std::vector<RankFamily> rank_families(const SourceTree& tree, std::span<const std::string> names);
// The same for names without that word which differ in one number: "model_0.pt", "model_1.pt". That
// it is a rank, what they hold has to show. Empty where one of the names is none of these.
std::vector<RankFamily> numbered_families(std::span<const std::string> names);

// The families of a model and of its optimizer of one save, or one of them.
bool are_one_save(std::span<const RankFamily> families);
// Code::unsupported where they are not.
Result<> check_one_save(const SourceTree& tree, std::span<const RankFamily> families);

}  // namespace ebb::formats::torch_save
