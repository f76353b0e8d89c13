// TileBudget: how many tiles a rank keeps in memory for good, and through how many frames the
// others pass.
#pragma once

#include <cstdint>

#include "ebb/formats/core/result.h"

namespace ebb::libswap {

struct TileBudget {
  std::uint64_t resident = 0;
  std::uint64_t frames = 0;  // 0 where all tiles are resident
  std::uint64_t bytes(std::uint64_t tile_bytes) const { return (resident + frames) * tile_bytes; }
  // Whether the tile at a position of an order of `tiles` is one of the residents, which lie evenly
  // in it.
  bool stays(std::uint64_t position, std::uint64_t tiles) const {
    return (position + 1) * resident / tiles > position * resident / tiles;
  }

  // Fails (Code::no_memory) below one tile, naming the smallest budget that works.
  static Result<TileBudget> divide(std::uint64_t tiles, std::uint64_t tile_bytes,
                                   std::uint64_t budget_bytes);
};

}  // namespace ebb::libswap
