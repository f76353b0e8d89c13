// Where a rank's tiles are at home, under its budget and the tiers that the trainer chose.
#pragma once

#include <cstdint>

#include "ebb/libmuon/step/config.h"
#include "ebb/libswap/pager/budget.h"

namespace ebb::libmuon {

struct PlacedTiles {
  libswap::Homes homes;
  std::uint64_t least_budget = 0;  // bytes: the smallest that works
};
// `beside_tiles`: bytes of the budget that are none of theirs. Code::no_memory names the smallest
// budget that works, Code::usage a tier that cannot be.
Result<PlacedTiles> place_tiles(const EngineConfig& config, const StatePlan& plan,
                                std::uint64_t beside_tiles);

}  // namespace ebb::libmuon
