// Exchange: ranges of parameters from one layout to another, in rounds that no rank is too small
// for. Gradients-in and weights-out of a chunk are both one of these. A parameter travels between
// the ranks that its two layouts give it, no others, and as the narrower of what the two keep its
// elements as: buffers at both ends are of that type.
//
// A message is a run of elements in both layouts, so nothing is packed: messages are pieces of the
// buffers themselves. Where a dimension but the slowest is cut over ranks, each row is one.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "ebb/libmuon/plan/chunks.h"
#include "ebb/libmuon/plan/model_layout.h"
#include "ebb/libmuon/step/wire.h"

namespace ebb::libmuon {

// Of what is planned, which parameters travel this time; empty: all.
using Travels = std::function<bool(std::uint32_t param)>;

class Exchange {
 public:
  // Memory of a range that this rank holds, in the layout it comes from and in that it goes to. An
  // empty target of what this rank has from itself: it is there already.
  struct Ends {
    std::function<libswap::Buffer(const Transit&)> source, target;
  };
  // What the communicator does not take of what is sent, of what is received.
  struct Bounced {
    std::function<bool(const Transit&)> sent, received;
  };

  // Where the first layout has copies, a rank takes what it holds itself, else the lowest copy; of
  // a slice that is replicated, that of the rank that has its own place there.
  // REQUIRES: both outlive this and are of the same parameters and world; where the first is
  // replicated, the second lies on no other ranks.
  Exchange(const ModelLayout& from, const ModelLayout& to, Rank self,
           std::uint64_t most_round_bytes = kMostRoundBytes);

  // Collective: the same transits on all ranks, of which the same travel. How many bytes this one
  // sent.
  Result<std::uint64_t> run(Wire& wire, std::span<const Transit> transits, const Ends& ends,
                            const Travels& travels = {}) const;
  // What run() sends from this rank.
  std::uint64_t sent_bytes(std::span<const Transit> transits) const;
  // What run() takes from this rank, to others and to itself: each run once.
  std::vector<Transit> given(std::span<const Transit> transits) const;
  // What a round of run() takes of the wire's bounce, at most, whatever travels.
  std::uint64_t bounce_bytes(std::span<const Transit> transits, const Bounced& bounced) const;

  // Parts of both layouts that have elements of a range in common: take(source, target).
  template <typename Take>
  void for_pairs(const Transit& transit, const Take& take) const;

  // The transits of each round: cut so that no rank sends or receives more than `most_bytes` in it.
  // Bounds follow from the layouts, tensor by tensor: the same on all ranks. Cut of all transits:
  // what does not travel is left out of its rounds, so that none takes more than was planned.
  std::vector<std::vector<Transit>> rounds(std::span<const Transit> transits,
                                           std::uint64_t most_bytes,
                                           const Travels& travels = {}) const;

 private:
  struct Message {
    Rank peer{};
    Transit part;
  };
  using Part = ModelLayout::Part;
  std::uint64_t bytes_of(const Transit& transit) const;
  template <typename Take>
  void for_sends(const Transit& transit, const Take& take) const;
  // Who sends what a shard of a part has to a rank that has nothing of it.
  Rank giver(const Part& source, std::uint32_t shard, std::uint32_t param, Rank to) const;
  // Whether every rank has already what it is to have.
  bool stays(const Transit& transit) const;
  // What this rank is to have of it: from others, and from itself.
  void add_receives(const Transit& transit, std::vector<Message>& receives,
                    std::vector<Transit>& keeps) const;

  const ModelLayout& from_;
  const ModelLayout& to_;
  const Rank self_;
  const std::uint64_t most_round_bytes_;
};

template <typename Take>
void Exchange::for_pairs(const Transit& transit, const Take& take) const {
  from_.for_parts(transit, [&](const ModelLayout::Part& source) {
    to_.for_parts(transit, [&](const ModelLayout::Part& target) {
      if (meet(source.slice, target.slice)) take(source, target);
    });
  });
}

}  // namespace ebb::libmuon
