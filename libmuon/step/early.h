// EarlyGradients: which chunks' gradients are there before the step, as a trainer's backward hands
// them in. The backward pass ends with the first layers, so the last chunks come first: piece n is
// chunk count - 1 - n. No communication, no threads.
#pragma once

#include <cstdint>
#include <vector>

#include "ebb/libmuon/plan/chunks.h"

namespace ebb::libmuon {

class EarlyGradients {
 public:
  // Of the last `pieces` chunks. What this rank has nothing of is not waited for.
  EarlyGradients(const StatePlan& plan, const Chunks& chunks, std::size_t pieces);

  // The gradient of a parameter is there, once a step. How many pieces are whole, from the first
  // on.
  std::size_t add(std::uint32_t param);
  void forget();

 private:
  std::vector<std::vector<std::size_t>> pieces_of_;  // by parameter
  std::vector<std::size_t> params_;                  // by piece: how many parameters are in it
  std::vector<std::size_t> missing_;                 // of these
  std::size_t whole_ = 0;
};

}  // namespace ebb::libmuon
