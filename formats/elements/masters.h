// Whether the weights that a model computes with are the optimizer's master weights, rounded, as
// they are behind every step. Where they are not, files are of two saves, or weights were edited.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string_view>

#include "ebb/formats/catalog/catalog.h"

namespace ebb::formats {

// Of one dtype: whether it is a copy. REQUIRES: both are floating, and of one shape.
Result<bool> is_rounded(const Checkpoint& checkpoint, const TensorEntry& weight,
                        const TensorEntry& master);

// One problem, of all weights ("param") with a master ("master") that is not theirs: `where` is the
// checkpoint's root, `goes_on` what the framework does with them. Reads both whole; what cannot be
// read is told by whoever reads everything. `counts`: which masters are looked at.
std::optional<Error> weights_apart_from_masters(
    const Checkpoint& checkpoint, std::string_view where, std::string_view goes_on,
    const std::function<bool(const TensorEntry& master)>& counts);

}  // namespace ebb::formats
