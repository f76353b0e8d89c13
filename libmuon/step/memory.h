// Memory: the bytes that an engine takes beside its tiles. Follows from the configuration and the
// plan alone. Values; no threads.
#pragma once

#include <cstdint>

#include "ebb/libmuon/step/config.h"
#include "ebb/libmuon/step/sweep.h"
#include "ebb/libmuon/step/updates.h"

namespace ebb::libmuon {

// Memory is what the budget holds beside tiles; bytes.
struct Memory {
  Sweep::Workspace workspace;
  std::uint64_t staging = 0, bounce = 0, parts = 0;
  Side wire = Side::host;  // where the first lies; the others are the host's
  std::uint64_t sums = 0;  // of gradients
  Side gradients = Side::host;
  std::uint64_t look = 0;  // of the device, where the trainer keeps something there
  Updates::Bytes updates;  // of Placement::shard
  std::uint64_t on_wire() const { return bounce + parts + (wire == Side::host ? staging : 0); }
  std::uint64_t host() const {
    return workspace.host + updates.host + on_wire() + (gradients == Side::host ? sums : 0);
  }
  std::uint64_t device() const {
    return workspace.device + updates.device + look + (wire == Side::device ? staging : 0) +
           (gradients == Side::device ? sums : 0);
  }
};

// Adds it up for this rank. `lasting_chunks`: whose staged gradients have a place until they are
// used; `wire`: where the communicator takes what travels.
Memory memory_beside_tiles(const EngineConfig& config, const StatePlan& plan, const Chunks& chunks,
                           std::size_t lasting_chunks, Side wire);
// The device's: of that memory, and of the tiles at home there.
std::uint64_t device_bytes(const Memory& memory, const libswap::Homes& homes,
                           std::uint64_t tile_bytes);

}  // namespace ebb::libmuon
