// What a trainer has to find again besides weights and optimizer state: where it was in its data,
// the generator that drew them, the scale of its losses. Every generation holds it, as blobs.
#pragma once

#include <cstdint>

#include "ebb/libmuon/step/engine.h"

namespace ebb::gpt {

// Losses are multiplied by a power of two before they go backwards, as training in few bits needs
// it: halved where gradients overflow (the step is skipped), doubled after some time without. In
// fp32 it changes no bit of the result.
struct LossScale {
  static constexpr std::uint32_t kMostBits = 126;
  static constexpr std::uint32_t kGoodSteps = 20;  // until it is doubled
  std::uint32_t bits = 16;
  std::uint32_t good_steps = 0;  // since it changed

  double value() const;
  void went_well();
  // False: it cannot be less.
  bool overflowed();
};

struct TrainerState {
  std::uint64_t next_sequence = 0;  // of all ranks together: how many were drawn
  std::uint64_t seed = 7;           // of the generator that draws them
  LossScale loss_scale;
};

// For the generations that are made from now on.
Result<> keep(const TrainerState& state, libmuon::Engine& engine);
// What of it the engine's store or checkpoint held takes its place in `state`; false where it held
// none (it was not this trainer's). Code::corrupt for what cannot be such a state.
Result<bool> restore(TrainerState& state, const libmuon::Engine& engine);

}  // namespace ebb::gpt
