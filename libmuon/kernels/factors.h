// The numbers that a step's elementwise kernels take, made of a spec in fp64 and rounded once each:
// the same for every device.
#pragma once

#include <cstdint>

#include "ebb/libmuon/kernels/element.h"
#include "ebb/libmuon/spec/spec.h"

namespace ebb::libmuon {

MomentumFactors momentum_factors(const MuonSpec& spec, float grad_scale);
// What a weight adds to its gradient where decay is l2, times the weight.
float gradient_decay(const MuonSpec& spec);
// `scale`: s of the matrix.
ApplyFactors apply_factors(const MuonSpec& spec, double scale);
// What the step is rounded to before it is taken off (applied's kStep).
Precision step_rounding(const MuonSpec& spec);
MomentFactors moment_factors(const MuonSpec& spec);
// At 1-based step `step`.
AdamFactors adam_factors(const AdamSpec& spec, std::uint64_t step, float grad_scale);

}  // namespace ebb::libmuon
