// The optimizers' groups and the step among the values of a torch state dict.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ebb/formats/catalog/catalog.h"

namespace ebb::formats {

// Parameter groups found under `param_groups` in the values, in order. Flattened ones, which are
// settings of parameters, are put together again: equal settings make one group.
std::vector<GroupEntry> torch_groups(const std::vector<ValueEntry>& values);
std::vector<GroupEntry> torch_groups(std::span<const ValueEntry* const> values);

// Whether a value of a group's settings lists its parameters, which then stand in the optimizer's
// own order. Flattened ones do not.
bool lists_params(const ValueEntry& value);

// The optimizer that the settings of a group tell; "" where they do not.
std::string optimizer_of(const GroupEntry& group);

// nullptr: the group has no such setting.
const Value* setting_of(const GroupEntry& group, std::string_view name);

// Steps that a value counts: a whole number, whatever its type; nullopt: it is none.
std::optional<std::int64_t> counted(const Value& value);

// Whether the key may be that of a step of the whole run: "step", "train_state.step".
bool may_count_steps(std::string_view key);

// A whole number called step, iteration or global_step(s), at the top of the state dict, beside a
// model or in what is called after the training; nullptr: none.
ValueEntry* step_value(std::vector<ValueEntry>& values, const std::vector<StateDictPlace>& models);

}  // namespace ebb::formats
