// Routes, Reductions: between which layouts the gradients, weights and updates of a step travel.
// Constant after construction; any thread.
#pragma once

#include <vector>

#include "ebb/libmuon/step/exchange.h"
#include "ebb/libmuon/step/reduction.h"

namespace ebb::libmuon {

// Where gradients and new weights travel: matrices to and from who keeps their state, chunk by
// chunk, and AdamW ranges to and from their shards: gradients whole with the first chunk. In
// Placement::shard U and O do, too, between shards and who computes them.
struct Routes {
  explicit Routes(const StatePlan& plan);
  Exchange gradients_to_owners, weights_from_owners;
  Exchange updates_together, results_apart;
  Exchange gradients_to_shards, weights_from_shards;
  Exchange weights_to_owners, weights_to_shards;  // what the trainer has bound, to who keeps it
  std::vector<Transit> adam;
};

// Of HandIn::partial: what gradients travel by instead, added up on their way.
struct Reductions {
  Reductions(const StatePlan& plan, std::uint64_t most_room);
  Reduction to_owners, to_shards;
};

}  // namespace ebb::libmuon
