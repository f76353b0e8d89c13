// Prepared: everything of an engine that follows from its description alone. Values; no threads.
#pragma once

#include <cstdint>

#include "ebb/libmuon/plan/chunks.h"
#include "ebb/libmuon/step/config.h"
#include "ebb/libmuon/step/memory.h"
#include "ebb/libswap/pager/budget.h"
#include "ebb/libswap/store/store.h"

namespace ebb::libmuon {

struct Prepared {
  StatePlan plan;
  libswap::Homes homes;
  std::uint64_t least_budget = 0;  // bytes
  Chunks chunks;
  std::size_t early_chunks = 0;
  std::size_t lasting_chunks = 0;  // whose staged gradients have a place until they are used
  Memory memory;
  libswap::Store::Config store;  // without directory and uuids
};
// Plans a rank of an engine, and refuses what no step can be made of; allocates nothing. `wire`:
// where its communicator takes what travels.
Result<Prepared> prepare(const EngineConfig& config, Rank rank, Side wire);

}  // namespace ebb::libmuon
