// Visit: what a step does at one tile, of all that it does. A schedule is a list of them
// (StatePlan::schedule). Values.
#pragma once

#include <cstdint>

namespace ebb::libmuon {

enum class Action : std::uint8_t {
  decay,          // before momentum: reads masters for what they add to the gradient
  prepare,        // momentum moves and makes the update of a matrix
  recompute,      // behind it: momentum makes the same update once more (Streaming)
  normalise,      // an update is scaled by second moments, which move
  read_moments,   // instead in Placement::shard: second moments go to who computes the matrix
  write_moments,  // and come back
  finish,         // masters take the update
  emit_update,    // instead where the trainer keeps the masters: the update leaves, without a tile
  local,          // AdamW: moments and masters move, of elements that need no others
};

// To a tile, for an item. A tile of second moments has visits of several items, or, where they go
// to another rank, of several chunks; one of masters may have two, one that is streamed one in each
// pass.
struct Visit {
  std::uint64_t tile = 0;  // where there is none, the number of such a visit
  std::uint32_t item = 0;  // of read_moments and write_moments: none, they have a chunk
  Action action = Action::prepare;
  std::uint32_t pass = 1;   // over what is streamed
  std::uint32_t chunk = 0;  // of ShardOrder, whose second moments travel
  std::uint64_t place = 0;  // on the line of StepOrder, or of AdamLine
  bool has_tile() const { return action != Action::emit_update; }
  // Whether the tile is not what it was behind it.
  bool changes() const {
    return has_tile() && action != Action::decay && action != Action::recompute &&
           action != Action::read_moments;
  }
};

}  // namespace ebb::libmuon
