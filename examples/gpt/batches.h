// Which text a step sees: the same twelve sequences whatever the rank count, a rank takes its
// contiguous share of them. Twelve divides evenly over 1, 2, 3, 4, 6 and 12 ranks.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "ebb/formats/core/result.h"
#include "ebb/formats/core/units.h"
#include "examples/gpt/random.h"

namespace ebb::gpt {

constexpr std::uint32_t kBatch = 12;  // sequences of a step, over all ranks

struct Share {
  std::uint32_t first = 0;  // sequence numbers [first, first + count)
  std::uint32_t count = 0;
};

// Code::usage when the ranks cannot share the batch evenly.
inline Result<> check_ranks(std::uint64_t world) {
  if (world != 0 && world <= kBatch && kBatch % world == 0) return {};
  return Error{Code::usage,
               compose("--ranks {}: the 12 sequences of a step cannot be shared evenly", world),
               "use --ranks 1, 2, 3, 4, 6 or 12"};
}

// REQUIRES: check_ranks(world)
inline Share share_of(Rank rank, std::uint32_t world) {
  const std::uint32_t count = kBatch / world;
  return {formats::index_of(rank) * count, count};
}

// The `length` bytes of the sequence that is drawn as number `number` of a run.
// REQUIRES: text.size() >= length
inline std::span<const std::uint8_t> sequence_of(std::span<const std::uint8_t> text,
                                                 std::uint64_t seed, std::uint64_t number,
                                                 std::size_t length) {
  const std::uint64_t places = text.size() - length + 1;
  const std::uint64_t first = random_bits(seed, number) % places;
  return text.subspan(static_cast<std::size_t>(first), length);
}

}  // namespace ebb::gpt
