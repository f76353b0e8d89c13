// The copies that turn layout A into layout B, as seen from one rank. The same object moves
// gradients to owners, weights back, loads a checkpoint and converts one.
#pragma once

#include <cstdint>
#include <vector>

#include "ebb/formats/layout/layout.h"

namespace ebb::formats {

struct Move {
  std::uint32_t tensor = 0;
  Rank from{};
  Rank to{};
  Piece source;  // the piece of A at `from` that holds the region
  Piece target;  // the piece of B at `to` that wants it
  Box region;
  std::uint64_t elems() const { return volume(region.extent); }
};

// Memory is O(own pieces): only moves that leave or reach `self` are listed. Both ends list the
// moves between them in the same order (tensor, then region), so messages need no headers.
struct ReshardPlan {
  std::vector<Move> sends;     // from == self, to != self
  std::vector<Move> receives;  // to == self, from != self
  std::vector<Move> keeps;     // both ends are self

  // Where A has replicas, the target itself is preferred as source, then the lowest rank that holds
  // it. Fails (Code::layout) unless both describe the same tensors and every target element has a
  // source.
  static Result<ReshardPlan> between(const Layout& a, const Layout& b, Rank self);
};

// Bytes `self` sends for elements of this size; equal to what the step's counters must show.
std::uint64_t sent_elems(const ReshardPlan& plan);

}  // namespace ebb::formats
