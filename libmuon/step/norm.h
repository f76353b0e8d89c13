// The norm of a step's gradient: looked at where it lies, added up exactly, agreed on by all ranks.
// Functions without state, each on the thread that calls it.
#pragma once

#include <span>
#include <vector>

#include "ebb/libmuon/comm/communicator.h"
#include "ebb/libmuon/kernels/table.h"
#include "ebb/libmuon/plan/state_plan.h"
#include "ebb/libmuon/step/step_args.h"
#include "ebb/libswap/pool.h"

namespace ebb::libmuon {

// All that this rank will use of its gradients. Of copies, each rank has another share in the norm.
std::vector<LookRange> look_ranges(const ModelSpec& model,
                                   std::span<const libswap::Buffer> gradients,
                                   const StatePlan& plan);
// Looks at ranges by kernels of where they lie. `room`: on their device for what is found; of the
// host's kernels, none.
Look look_at(std::span<const LookRange> ranges, Kernels& near, libswap::Pool& pool,
             const libswap::Buffer& room = {});
// Adds what was found of other ranges.
void add(Look& all, const Look& more);
// [C] What a step does with gradients of which each rank found that.
Result<StepResult> agree_on_norm(Communicator& ranks, const Look& mine, const StepArgs& args);

}  // namespace ebb::libmuon
