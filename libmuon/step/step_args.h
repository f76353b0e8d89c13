// StepArgs: what a step is told. StepResult: what it answers.
#pragma once

namespace ebb::libmuon {

struct StepArgs {
  double inv_scale = 1;  // gradients are multiplied by this; above zero
  double max_norm = 0;   // 0: no clipping
};
struct StepResult {
  // A gradient was not finite on some rank, or so large, scaled and clipped, that state could
  // overflow (largest_gradient in kernels.h). No bit of state moved on any rank.
  bool skipped = false;
  double norm = 0;  // of the whole unscaled gradient, exact, before clipping; NaN if not finite
  double clip = 1;
};

}  // namespace ebb::libmuon
