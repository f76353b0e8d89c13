// Exchange: ranges of parameters from one layout to another, in rounds that no rank is too small
// for. Gradients-in and weights-out of a chunk are both one of these. A parameter travels between
// the ranks that its two layouts give it, no others, and as the narrower of what the two keep its
// elements as: buffers at both ends are of that type.
//
// A rank's part of a range is one run of elements in both layouts, so nothing is packed: messages
// are pieces of the buffers themselves.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "ebb/libmuon/plan/chunks.h"
#include "ebb/libmuon/plan/model_layout.h"
#include "ebb/libmuon/step/wire.h"

namespace ebb::libmuon {

class Exchange {
 public:
  // Memory of a range that this rank holds, in the layout it comes from and in that it goes to. An
  // empty target of what this rank has from itself: it is there already.
  struct Ends {
    std::function<libswap::Buffer(const Transit&)> source, target;
  };
  // Which parameters the communicator does not take: what is sent of them, what is received.
  struct Bounced {
    std::function<bool(std::uint32_t param)> sent, received;
  };

  // Where the first layout has copies, a rank takes what it holds itself, else the lowest copy.
  // REQUIRES: both outlive this and are of the same parameters and world; where the first is
  // replicated, the second lies on no other ranks.
  Exchange(const ModelLayout& from, const ModelLayout& to, Rank self);

  // Collective: the same transits on all ranks. How many bytes this one sent.
  Result<std::uint64_t> run(Wire& wire, std::span<const Transit> transits, const Ends& ends) const;
  // What run() sends from this rank.
  std::uint64_t sent_bytes(std::span<const Transit> transits) const;
  // What a round of run() takes of the wire's bounce, at most.
  std::uint64_t bounce_bytes(std::span<const Transit> transits, const Bounced& bounced) const;

  // The transits of each round: cut so that no rank sends or receives more than `most_bytes` in it.
  // Bounds follow from the layouts, tensor by tensor: the same on all ranks.
  std::vector<std::vector<Transit>> rounds(std::span<const Transit> transits,
                                           std::uint64_t most_bytes) const;

 private:
  struct Message {
    Rank peer{};
    Transit part;
  };
  std::uint64_t bytes_of(const Transit& transit) const;
  template <typename Take>
  void for_sends(const Transit& transit, const Take& take) const;
  // Whether every rank has already what it is to have.
  bool stays(std::uint32_t param) const;
  // What this rank is to have of it: from others, and from itself.
  void add_receives(const Transit& transit, std::vector<Message>& receives,
                    std::vector<Transit>& keeps) const;

  const ModelLayout& from_;
  const ModelLayout& to_;
  const Rank self_;
};

}  // namespace ebb::libmuon
