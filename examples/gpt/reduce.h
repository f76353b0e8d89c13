// The mean gradient of a step, with bits that do not depend on the rank count: every rank keeps the
// gradient of each of its sequences apart; the owner of a slice of the flat parameter vector (the
// `zero12` partition: equal cuts in rank order) collects all twelve and adds them in ascending
// order. A range of the vector at a time, so that what backward finished first can go on.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ebb/formats/layout/box.h"
#include "ebb/libmuon/comm/communicator.h"
#include "examples/gpt/batches.h"

namespace ebb::gpt {

// REQUIRES: check_ranks(world)
FlatRange slice_of(std::uint64_t elems, Rank rank, std::uint32_t world);

class GradientMean {
 public:
  // `elems`: of the flat vector. `ranks` is borrowed.
  GradientMean(libmuon::Communicator& ranks, std::uint64_t elems);
  // Bytes kept here for one rank, for the memory plan.
  static std::uint64_t bytes(std::uint64_t elems, Rank rank, std::uint32_t world);

  // `mine`: the gradients of this rank's sequences, ascending, each of `elems` floats. Returns what
  // this rank's slice has of the range, as the mean over the batch; valid until that is reduced
  // again. Collective.
  Result<std::span<const float>> reduce(const std::vector<std::vector<float>>& mine,
                                        FlatRange range);

 private:
  libmuon::Communicator& ranks_;
  std::uint64_t elems_;
  FlatRange slice_;
  std::vector<float> received_;  // (sequences of the other ranks, slice)
  std::vector<float> mean_;      // (slice)
};

}  // namespace ebb::gpt
