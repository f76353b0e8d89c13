// Optimizer steps of parameters: one-element tensors in some formats, counts beside the tensors in
// others, or a setting of a group. Internal to formats/conversion.
#pragma once

#include <functional>
#include <vector>

#include "ebb/formats/catalog/catalog.h"
#include "ebb/formats/catalog/format.h"
#include "ebb/formats/conversion/content_view.h"

namespace ebb::formats {

// True when the tensor is a step counter and has become one of `content`. `stored`: the source's,
// which is read.
Result<bool> lift_step(const Checkpoint& source, const TensorEntry& stored,
                       const TensorEntry& tensor, Catalog& content);

// Where groups count for their parameters, which have no counters of their own.
void count_group_steps(Catalog& content);

// How the steps of a described checkpoint's parameters are counted.
StepCounters counters_in(const Catalog& source);

// The other way: counters become tensors, as torch's optimizers keep them. Values stay where the
// parameter has a state that they can lie beside. `wanted`: null for all.
void lower_steps(const std::function<bool(const TensorEntry&)>& wanted, StepCounters counters,
                 Catalog& content, std::vector<MadeOf>& made_of);

}  // namespace ebb::formats
