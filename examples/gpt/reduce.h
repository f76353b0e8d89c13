// The mean gradient of a step, with bits that do not depend on the rank count: every rank keeps the
// gradient of each of its sequences apart; the owner of a slice of the flat parameter vector (the
// `zero12` partition: equal cuts in rank order) collects all twelve and adds them in ascending
// order.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ebb/libmuon/comm/communicator.h"
#include "examples/gpt/batches.h"

namespace ebb::gpt {

struct Slice {
  std::uint64_t first = 0;
  std::uint64_t count = 0;
};
// REQUIRES: check_ranks(world)
Slice slice_of(std::uint64_t elems, Rank rank, std::uint32_t world);

class GradientMean {
 public:
  // `elems`: of the flat vector. `ranks` is borrowed.
  GradientMean(libmuon::Communicator& ranks, std::uint64_t elems);
  // Bytes kept here for one rank, for the memory plan.
  static std::uint64_t bytes(std::uint64_t elems, Rank rank, std::uint32_t world);

  // `mine`: the gradients of this rank's sequences, ascending, each of `elems` floats. Returns this
  // rank's slice of the mean over the batch; valid until the next call. Collective.
  Result<std::span<const float>> reduce(const std::vector<std::vector<float>>& mine);

 private:
  libmuon::Communicator& ranks_;
  std::uint64_t elems_;
  Slice slice_;
  std::vector<float> received_;  // (sequences of the other ranks, slice)
  std::vector<float> mean_;      // (slice)
};

}  // namespace ebb::gpt
