// The parts of a torch state dict, found by what lies there and not by what they are called: an
// optimizer has "param_groups" beside "state", a model has the parameters that optimizers name.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ebb/formats/catalog/catalog.h"
#include "ebb/formats/core/result.h"

namespace ebb::formats {

// Keys that somebody says are a part, dots between their words; "." is the top of the state dict.
// Where one is said, no other part of its kind is looked for. And names that nothing records.
struct PartsSaid {
  std::vector<std::string> models;
  std::vector<std::string> optimizers;
  // The parameters that optimizers only number, in the order of their numbers.
  std::optional<std::vector<std::string>> names = std::nullopt;
};

// What a tensor belongs to.
struct Belonging {
  enum class To : std::uint8_t { nothing, model, optimizer };
  To to = To::nothing;
  std::uint32_t part = 0;    // number among the models, or the optimizers
  std::size_t name_at = 0;   // where the parameter's name begins in the key
  std::size_t name_end = 0;  // where it ends
};

struct FoundParts {
  StateDictParts places;                               // without the optimizers' params
  std::vector<Belonging> tensors;                      // of each
  std::vector<std::vector<GroupEntry>> groups;         // of each optimizer
  std::vector<std::optional<std::uint32_t>> model_of;  // of each optimizer
  std::vector<std::size_t> settings;                   // values that say the groups
  std::vector<std::string> notes;                      // what is not clear
};

// "app.optim"; "" is the top.
std::string text_of(const StateDictPlace& place);

// `in_tensors`: settings that are tensors, as values. Code::usage when nothing lies where a part is
// said to be.
Result<FoundParts> find_parts(const Catalog& catalog, const PartsSaid& said,
                              const std::vector<ValueEntry>& in_tensors);

}  // namespace ebb::formats
