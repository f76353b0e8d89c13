// What keys and values of torch state dicts mean: which parameter and which state a tensor is, the
// optimizer's groups, the step. By convention, from key paths. Internal to formats/dcp.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ebb/formats/catalog/catalog.h"

namespace ebb::formats {

// (name, state) of a tensor: `model.<name>` -> "param", `<optimizer>.state.<name>.<state>`, nested
// in the state dict or flattened, everything else (key, "tensor").
std::pair<std::string, std::string> torch_identity(std::string_view key);

// The same where the format's own nesting says it; a key that the optimizer flattened before DCP
// saw it is a mere name: (key, "tensor"). dcp_common_names() looks through it.
std::pair<std::string, std::string> placed_identity(std::string_view key,
                                                    const std::vector<PathItem>& path);

// Marks the values that torch_groups and torch_step take theirs from.
void mark_echoes(std::vector<ValueEntry>& values);

// Parameter groups found under `param_groups` in the values, in order. Flattened ones, which are
// settings of parameters, are put together again: equal settings make one group.
std::vector<GroupEntry> torch_groups(const std::vector<ValueEntry>& values);
std::vector<GroupEntry> torch_groups(std::span<const ValueEntry* const> values);

// A whole number called step, iteration or global_step(s) at the top of the state dict.
std::optional<std::int64_t> torch_step(const std::vector<ValueEntry>& values);

}  // namespace ebb::formats
