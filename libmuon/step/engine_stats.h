// EngineStats: an engine's counters, and their names.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "ebb/libmuon/kernels/table.h"
#include "ebb/libswap/pager/tile_cache.h"
#include "ebb/libswap/pool.h"
#include "ebb/libswap/stats.h"

namespace ebb::libmuon {

// Of all steps, and what the pager counted meanwhile.
struct EngineStats : libswap::PagerStats {
  std::uint64_t steps = 0, sent_bytes = 0;
  std::optional<Bf16> bf16;  // how it multiplies as bf16; null: nothing, on the host
  double step_s = 0, compute_s = 0;
  double exchange_s = 0;                // gradients and weights on their way
  double exposed_exchange_s = 0;        // of that, inside a step with no sweep of this rank beside
  double snapshot_s = 0;                // the caller's thread inside snapshot()
  std::uint64_t snapshots_put_off = 0;  // another process read the store: no slot was left
  libswap::PoolStats pool;
};
// Those of the pager and the pool among them (libswap/stats.h writes them).
std::vector<libswap::Stat> stats_of(const EngineStats& stats);

}  // namespace ebb::libmuon
