// Reduction: gradients of which each rank has a part (HandIn::partial). The parts of a range travel
// from all ranks that have one to the rank that keeps its state, which adds them up in fp32 in the
// order of the ranks: done twice, it gives the same bits.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "ebb/libmuon/kernels/table.h"
#include "ebb/libmuon/step/config.h"
#include "ebb/libmuon/step/exchange.h"

namespace ebb::libmuon {

class Reduction {
 public:
  // An exchange costs as much however little it brings: less than this is not worth one.
  static constexpr std::uint64_t kLeastRoundBytes = 4096;

  // The part that this rank was handed in, wherever it lies, and the sum that it keeps, fp32, in
  // the host's memory.
  struct Ends {
    std::function<libswap::Buffer(const Transit&)> part, sum;
  };

  // At most `most_room` bytes of parts are at a rank at once, but where that is less,
  // kLeastRoundBytes, and an element of each.
  // REQUIRES: both outlive this; each range of the second lies at one rank.
  Reduction(const ModelLayout& parts, const ModelLayout& sums, Rank self, std::uint64_t most_room);

  // Collective: the same transits on all ranks, of which the same travel. How many bytes this one
  // sent.
  Result<std::uint64_t> run(Wire& wire, Kernels& kernels, const libswap::Buffer& room,
                            std::span<const Transit> transits, const Ends& ends,
                            const Travels& travels = {}) const;
  // What run() sends from this rank if all travels; and of that in one round, at most.
  std::uint64_t sent_bytes(std::span<const Transit> transits) const;
  std::uint64_t sent_at_once(std::span<const Transit> transits) const;
  // What it takes of its room at most. `parts_on`: where this rank's own parts lie.
  std::uint64_t room_bytes(std::span<const Transit> transits, Side parts_on) const;

 private:
  struct Message {
    Rank peer{};
    Transit part;
    bool first = false;  // of its sum
  };
  std::uint64_t bytes_of(const Transit& transit) const;
  std::vector<std::vector<Transit>> rounds(std::span<const Transit> transits,
                                           const Travels& travels) const;
  template <typename Take>
  void for_sends(const Transit& transit, const Take& take) const;
  // Of what this rank keeps: all parts, its own among them, as they are to be added.
  std::vector<Message> parts_of(const Transit& transit) const;

  const ModelLayout& parts_;
  const ModelLayout& sums_;
  const Rank self_;
  const Exchange cuts_;     // of the same ranges, where each has one source
  std::uint64_t most_ = 0;  // bytes that one source may send in a round
};

}  // namespace ebb::libmuon
