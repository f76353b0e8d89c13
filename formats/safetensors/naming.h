// Which parameter and state a key of a state dict speaks of, and the key a tensor gets here.
#pragma once

#include <string>
#include <string_view>

#include "formats/catalog/catalog.h"

namespace formats::safetensors {

struct NamedState {
  std::string name;
  std::string state;
};

// "<anything>.state.<name>.<state>" and "opt[im[izer]].<name>.<state>" are optimizer state, every
// other key is a parameter of that name.
NamedState named_state_of(std::string_view key);

// Params are called by their name, other states by their key.
std::string key_of(const TensorEntry& tensor);

}  // namespace formats::safetensors
