// Where a rank's tiles are at home, under its budget and the tiers that the trainer chose.
#pragma once

#include <cstdint>

#include "ebb/libmuon/step/engine.h"
#include "ebb/libswap/pager/budget.h"

namespace ebb::libmuon {

// `beside_tiles`: bytes of the budget that are none of theirs. Code::no_memory names the smallest
// budget that works, Code::usage a tier that cannot be.
Result<libswap::Homes> homes_of(const EngineConfig& config, const StatePlan& plan,
                                std::uint64_t beside_tiles);
std::uint64_t least_budget(const EngineConfig& config, const StatePlan& plan,
                           std::uint64_t beside_tiles);

}  // namespace ebb::libmuon
