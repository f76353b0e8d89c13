// Edges: what travels in a step, between which layouts, chunk by chunk. A parameter's elements lie
// in four of them: gradients as the trainer has them, the state where it is kept, matrices whole
// where they are computed, weights as the trainer has them.
// Borrows the plan and its chunks. Constant after construction; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "ebb/libmuon/step/exchange.h"
#include "ebb/libmuon/step/reduction.h"

namespace ebb::libmuon {

// From one layout to another, as it is.
class Edge {
 public:
  // What travels of a chunk.
  using Of = std::span<const Transit> (Chunks::*)(std::size_t chunk) const;

  Edge(const ModelLayout& from, const ModelLayout& to, Rank self, const Chunks& chunks, Of of)
      : exchange_(from, to, self), chunks_(&chunks), of_(of) {}

  std::span<const Transit> transits(std::size_t chunk) const { return (chunks_->*of_)(chunk); }
  const Exchange& exchange() const { return exchange_; }

  // [C] Brings what of a chunk travels. How many bytes this rank sent.
  Result<std::uint64_t> run(Wire& wire, std::size_t chunk, const Exchange::Ends& ends,
                            const Travels& travels) const {
    return exchange_.run(wire, transits(chunk), ends, travels);
  }
  // What this rank sends in a step, if all travels.
  std::uint64_t sent_bytes() const;
  // What a round takes of the wire's bounce, at most.
  std::uint64_t bounce_bytes(const Exchange::Bounced& bounced) const;

 private:
  Exchange exchange_;
  const Chunks* chunks_;
  Of of_;
};

struct Edges {
  // `most_room`: of parts of gradients, in bytes, where the trainer hands in such.
  Edges(const StatePlan& plan, const Chunks& chunks, std::uint64_t most_room);

  Edge gradients;         // to the state; where they are parts, `sums` takes its place
  Edge updates, results;  // Placement::shard: U to who computes it, O back
  Edge weights;           // from the state
  Edge bound;             // weights that the trainer has, to the state
  std::optional<Reduction> sums;

  // What this rank sends in a step: of parts, twice those of matrices, for the norm and for the
  // update, but in the last `lasting` chunks.
  std::uint64_t gradient_bytes(const StatePlan& plan, std::size_t lasting) const;
  // Where gradients lie on that side: the most room that parts of them take on their way; what a
  // round takes of the wire's bounce, at most.
  std::uint64_t part_bytes(Side side) const;
  std::uint64_t gradients_bounced(Side side) const;

 private:
  const Chunks* chunks_;
};

}  // namespace ebb::libmuon
