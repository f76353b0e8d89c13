// Which parameter and state a key of a state dict speaks of, and the key a tensor gets here.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>

#include "ebb/formats/catalog/catalog.h"

namespace ebb::formats::safetensors {

// A file of ours says so in __metadata__, and whether its "format" is ours or came with the
// content.
constexpr std::string_view kMarkerKey = "ebb";
constexpr std::string_view kIdentityKey =
    "ebb.identity";                                // {key: {"name", "state"}}, see IdentityMap
constexpr std::string_view kStepKey = "ebb.step";  // and three documents of documents.h
constexpr std::string_view kGroupsKey = "ebb.groups";
constexpr std::string_view kParamStepsKey = "ebb.param_steps";
constexpr std::string_view kValuesKey = "ebb.values";
constexpr std::string_view kFormatAdded = "1 added:format";
constexpr std::string_view kNothingAdded = "1 added:";

struct NamedState {
  std::string name;
  std::string state;
};

// Tensors whose name and state their key does not tell.
using IdentityMap = std::unordered_map<std::string, NamedState>;

// "<anything>.state.<name>.<state>" and "opt[im[izer]].<name>.<state>" are optimizer state, every
// other key is a parameter of that name.
NamedState named_state_of(std::string_view key);

// Params, and tensors of no known convention, are called by their name, other states by their key.
std::string key_of(const TensorEntry& tensor);

}  // namespace ebb::formats::safetensors
