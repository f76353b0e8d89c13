// HandedOut: what was handed out of weights that are the high halves of masters. They are state,
// but lie in the trainer's memory, where whoever writes could change what no checksum of the store
// sees. A rank remembers a checksum of each run that it gives back: of what it owns itself, or
// sends to the owner.
//
// Threading: one thread at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "ebb/libmuon/plan/chunks.h"
#include "ebb/libmuon/step/exchange.h"
#include "ebb/libswap/pool.h"

namespace ebb::libmuon {

class HandedOut {
 public:
  // Where a run lies in the trainer's memory of this rank.
  using Place = std::function<libswap::Buffer(const Transit&)>;

  // Of the weights that come back by this.
  HandedOut(const Chunks& chunks, const Exchange& back);

  // A chunk's weights lie where they are bound, as far as they travelled.
  void note(std::size_t chunk, const Travels& travels, const Place& place);
  // Of these parameters, those of which a run is not what was noted, ascending. REQUIRES: all were.
  std::vector<std::uint32_t> changed(libswap::Pool& pool, const Place& place,
                                     const Travels& of) const;

 private:
  struct Run {
    Transit part;
    std::uint32_t crc = 0;
  };
  std::vector<std::vector<Run>> runs_;  // by chunk
};

}  // namespace ebb::libmuon
