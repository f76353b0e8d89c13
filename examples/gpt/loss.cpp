#include "examples/gpt/loss.h"

#include <array>

namespace ebb::gpt {

Result<double> sum_of_losses(libmuon::Communicator& ranks, const ExactLoss& mine) {
  std::array<std::int64_t, 1> units{mine.units()};
  EBB_TRY(ranks.sum(units));
  return ExactLoss::nats(units[0]);
}

Result<double> held_out_loss(const Model& model, std::span<const float> weights,
                             std::span<const std::uint8_t> text, libmuon::Communicator& ranks,
                             Activations<float>& state) {
  const std::size_t length = model.config.sequence;
  EBB_CHECK(text.size() > length);
  const std::size_t windows = (text.size() - 1) / length;
  ExactLoss mine;
  for (std::size_t i = formats::index_of(ranks.rank()); i < windows; i += ranks.world())
    mine.add(forward<float>(model, weights, text.subspan(i * length, length + 1), state));
  EBB_TRY_ASSIGN(const double sum, sum_of_losses(ranks, mine));
  return sum / static_cast<double>(windows);
}

}  // namespace ebb::gpt
