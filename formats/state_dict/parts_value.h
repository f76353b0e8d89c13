// The places of a state dict's parts as a value, which other formats keep: what comes back into a
// state dict lies where it lay.
#pragma once

#include <string_view>

#include "ebb/formats/catalog/catalog.h"

namespace ebb::formats {

inline constexpr std::string_view kPartsKey = "state_dict_parts";

// For content that leaves a state dict: adds the value where `parts` differ from what is written
// without one ("model", "optimizer", "step"), and where tensors are part of neither.
void put_parts(Catalog& content);

// For content that enters one: content.parts as the value says, and the value is gone. One that
// says nothing sensible is left where it is.
void take_parts(Catalog& content);

}  // namespace ebb::formats
