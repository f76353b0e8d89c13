// Memory: the bytes that an engine takes beside its tiles. Follows from the configuration and the
// plan alone. Values; no threads.
#pragma once

#include <cstdint>

#include "ebb/libmuon/plan/chunks.h"
#include "ebb/libmuon/step/config.h"
#include "ebb/libmuon/step/whole_updates.h"
#include "ebb/libswap/pager/lift.h"

namespace ebb::libmuon {

// Memory is what the budget holds beside tiles; bytes.
struct Memory {
  WholeUpdates::Need whole;     // of matrices that lie whole on this rank
  std::uint64_t workspace = 0;  // of a sweep: with those
  std::uint64_t updates = 0;    // of Placement::shard
  Side computing = Side::host;  // where these lie
  std::uint64_t staging = 0, bounce = 0, parts = 0;
  Side wire = Side::host;  // where the first lies; the others are the host's
  std::uint64_t sums = 0;  // of gradients
  Side gradients = Side::host;
  std::uint64_t look = 0;  // of the device, where the trainer keeps something there

  std::uint64_t on_wire() const { return bounce + parts + (wire == Side::host ? staging : 0); }
  std::uint64_t computed(Side side) const { return side == computing ? workspace + updates : 0; }
  std::uint64_t host() const {
    return computed(Side::host) + on_wire() + (gradients == Side::host ? sums : 0);
  }
  std::uint64_t device() const {
    return computed(Side::device) + look + (wire == Side::device ? staging : 0) +
           (gradients == Side::device ? sums : 0);
  }
};

// What a sweep lifts to a device at a time: a tile.
libswap::Lift::Size lifted(const StatePlan& plan);
// Adds it up for this rank. `lasting_chunks`: whose staged gradients have a place until they are
// used; `wire`: where the communicator takes what travels.
Memory memory_beside_tiles(const EngineConfig& config, const StatePlan& plan, const Chunks& chunks,
                           std::size_t lasting_chunks, Side wire);
// The device's: of that memory, and of the tiles at home there.
std::uint64_t device_bytes(const Memory& memory, const libswap::Homes& homes,
                           std::uint64_t tile_bytes);

}  // namespace ebb::libmuon
