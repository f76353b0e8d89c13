// A selection that takes weights and leaves all optimizer state out, as --states param does, asks
// for weights: what only an optimizer reads stays behind as well, whatever the target.
#pragma once

#include <functional>
#include <string>

#include "ebb/formats/catalog/format.h"

namespace ebb::formats {

// Weights are parameters, in any precision, and buffers. False where there is no other state to
// leave out: then everything is taken as it is. `wanted` may be null: everything.
bool takes_weights_alone(const Format& from, const Catalog& source,
                         const std::function<bool(const TensorEntry&)>& wanted);

// Takes out of `content`, which is of `source` and has the wanted tensors: parameter groups, steps
// of parameters, values that lie in an optimizer's state dict or have one of the keys that
// frameworks give to what only an optimizer reads, and containers that hold nothing any more. The
// step of the whole stays. Says what it was, in a line; "" for nothing.
std::string leave_optimizer(const Catalog& source, Catalog& content);

}  // namespace ebb::formats
