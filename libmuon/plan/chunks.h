// Chunks: a step cut into pieces whose gradients and new weights fit into little memory. A chunk
// takes from every owner the next part of its own order (StepOrder), and of AdamW's ranges
// (AdamLine), so that each chunk has work for all ranks; all ranks know which ranges travel in
// which chunk. A matrix larger than a chunk is cut, at borders of its owner's tiles: its gradient
// flows into U tile by tile, its weights out of the masters' tiles.
//
// Where state lies on shards there is one order for all ranks, and chunks are its turns.
//
// Owners do not depend on chunks. Pure arithmetic, the same on all ranks.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ebb/libmuon/plan/state_plan.h"

namespace ebb::libmuon {

class Chunks {
 public:
  // At most `chunk_bytes` of gradients and weights together are staged by a rank for a chunk, or
  // those of a tile's elements, where that is more. One chunk where no rank stages any. Turns are
  // those of the plan, and made for its chunk size.
  Chunks(const StatePlan& plan, std::uint64_t chunk_bytes);

  std::size_t count() const { return chunks_.size(); }
  // What goes to who keeps the state before its visits of the chunk, and from there behind: of all
  // owners' matrices, then of AdamW's ranges. Their gradients all come with the first chunk.
  std::span<const Transit> gradients(std::size_t chunk) const { return chunks_[chunk].gradients; }
  std::span<const Transit> weights(std::size_t chunk) const { return chunks_[chunk].weights; }
  // Weights that the trainer has bound, on their way to who keeps the state, beside gradients.
  // What of a matrix leaves in a chunk is visited in that; AdamW's all come with the first.
  std::span<const Transit> bound(std::size_t chunk) const { return chunks_[chunk].bound; }
  // Where state lies on shards: whose U goes to the owners behind the chunk, and whose O comes back
  // before it.
  std::span<const Transit> updates(std::size_t chunk) const {
    return std::span(chunks_[chunk].gradients).first(apart_ ? chunks_[chunk].prepared : 0);
  }
  std::span<const Transit> results(std::size_t chunk) const {
    return std::span(chunks_[chunk].weights).first(apart_ ? chunks_[chunk].finished : 0);
  }
  // Behind the last visit of this rank's schedule that belongs to the chunk.
  std::size_t visits_end(std::size_t chunk) const { return chunks_[chunk].visits_end; }

 private:
  struct Line;
  using Transits = std::vector<Transit>;
  struct Chunk {
    Transits gradients, weights, bound;
    std::size_t prepared = 0, finished = 0;  // of gradients, of weights: matrices
    std::size_t visits_end = 0;
  };
  static std::vector<Line> lines_of(const StatePlan& plan);
  // What the visits of a leg bring, or hand out.
  void cut_leg(const StatePlan& plan, const Line& line, const Item& item, const Leg& leg);
  void cut_adam(const AdamLine& line);
  void cut_schedule(const StatePlan& plan);
  void drop_idle();
  void bring_adam(const StatePlan& plan);

  bool apart_;  // matrices are made whole for their updates alone
  std::vector<Chunk> chunks_;
};

// All ranges of AdamW's parameters.
std::vector<Transit> adam_ranges(const StatePlan& plan);
// What of a chunk's transits is of matrices: the first of them.
std::span<const Transit> matrices_in(const StatePlan& plan, std::span<const Transit> transits);

// What this rank owns of a range in transit and its trainer's buffers, in the layout `trainer`, do
// not hold, ascending. It is staged.
std::vector<FlatRange> staged_parts(const StatePlan& plan, const ModelLayout& trainer,
                                    const Transit& transit);
std::uint64_t staged_elems(const StatePlan& plan, const ModelLayout& trainer,
                           std::span<const Transit> transits);
// How many of the last chunks' gradients, all of them on their owners, have room in so many bytes a
// rank: the same number on all ranks. None where state lies on shards.
std::size_t early_chunks(const StatePlan& plan, const Chunks& chunks, std::uint64_t bytes);

// What a staged part takes: the next one begins where fp32 may.
std::uint64_t staged_bytes(DType dtype, std::uint64_t elems);
std::uint64_t staged_bytes(const StatePlan& plan, const ModelLayout& trainer,
                           std::span<const Transit> transits);

}  // namespace ebb::libmuon
