#include "ebb/libmuon/step/early.h"

namespace ebb::libmuon {

EarlyGradients::EarlyGradients(const StatePlan& plan, const Chunks& chunks, std::size_t pieces)
    : pieces_of_(plan.params()), params_(pieces, 0) {
  for (std::size_t piece = 0; piece < pieces; ++piece)
    for (const Transit& transit : matrices_in(plan, chunks.gradients(chunks.count() - 1 - piece))) {
      if (!plan.here(transit.param)) continue;
      std::vector<std::size_t>& pieces_of_param = pieces_of_[transit.param];
      if (!pieces_of_param.empty() && pieces_of_param.back() == piece) continue;
      pieces_of_param.push_back(piece);
      ++params_[piece];
    }
  forget();
}

std::size_t EarlyGradients::add(std::uint32_t param) {
  for (const std::size_t piece : pieces_of_[param]) --missing_[piece];
  while (whole_ < missing_.size() && missing_[whole_] == 0) ++whole_;
  return whole_;
}

void EarlyGradients::forget() {
  missing_ = params_;
  whole_ = 0;
}

}  // namespace ebb::libmuon
