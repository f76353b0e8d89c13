// The digest of a plan: equal on all ranks that describe the same state in the same places.
#pragma once

#include <cstdint>
#include <span>

#include "ebb/libmuon/plan/param_classes.h"
#include "ebb/libmuon/plan/state_plan.h"

namespace ebb::libmuon {

// Of a plan that is laid out but for it. Pure arithmetic.
std::uint64_t digest_of(const ModelSpec& model, const StatePlan& plan,
                        std::span<const ParamClass> classes);

}  // namespace ebb::libmuon
