// The common state dict of a torch_dist checkpoint: iteration, args, the optimizers' groups - read
// into a catalog, and made from one. Internal to formats/megatron.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ebb/formats/catalog/catalog.h"
#include "ebb/formats/core/result.h"

namespace ebb::formats::megatron {

// Adds values, groups, step and param_steps. REQUIRES: common is a dict; the catalog's tensors and
// sharded objects are there (a group's parameters are found among the tensors).
void add_common_state(Catalog& catalog, const Value& common);

// The dict to store: values read from a common state as they were, all others under their own keys;
// iteration and optimizer from step, groups and param_steps unless a value says them. What has no
// place is added to `dropped`. `masters`: whether the checkpoint has master weights.
enum class Masters : std::uint8_t { none, stored };
Value common_state_of(const Catalog& content, Masters masters, std::vector<std::string>& dropped);

}  // namespace ebb::formats::megatron
