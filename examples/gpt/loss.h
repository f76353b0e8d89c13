// Losses added over sequences and ranks with the same result in any order, and the loss on the
// held-out text.
#pragma once

#include <cstdint>
#include <span>

#include "ebb/libmuon/comm/communicator.h"
#include "examples/gpt/layers.h"

namespace ebb::gpt {

// A sum in units of 2^-40 nats: integers have no rounding that an order could change.
class ExactLoss {
 public:
  void add(double nats) { units_ += static_cast<std::int64_t>(nats * kUnit); }
  std::int64_t units() const { return units_; }
  static double nats(std::int64_t units) { return static_cast<double>(units) / kUnit; }

 private:
  static constexpr double kUnit = 1099511627776.0;
  std::int64_t units_ = 0;
};

// Collective. The sum over all ranks, in nats.
Result<double> sum_of_losses(libmuon::Communicator& ranks, const ExactLoss& mine);

// Collective: ranks take turns. Mean nats per byte over windows of one sequence each; a rest
// shorter than that is left out. REQUIRES: at least one window.
Result<double> held_out_loss(const Model& model, std::span<const float> weights,
                             std::span<const std::uint8_t> text, libmuon::Communicator& ranks,
                             Activations<float>& state);

}  // namespace ebb::gpt
