#include "ebb/libmuon/step/engine_stats.h"

namespace ebb::libmuon {

std::vector<libswap::Stat> stats_of(const EngineStats& stats) {
  constexpr auto kCounter = libswap::StatKind::counter;
  std::vector<libswap::Stat> all = {
      {"engine_steps", kCounter, "Steps made, skipped ones too.", stats.steps},
      {"engine_step_seconds", kCounter, "Time in steps.", stats.step_s},
      {"engine_compute_seconds", kCounter, "Time in sweeps, waits for tiles left out.",
       stats.compute_s},
      {"engine_exchange_seconds", kCounter, "Time in exchanges of gradients, updates and weights.",
       stats.exchange_s},
      {"engine_sent_bytes", kCounter, "Gradients, updates and weights sent to other ranks.",
       stats.sent_bytes},
      {"engine_snapshot_seconds", kCounter, "Time of the caller in snapshot().", stats.snapshot_s},
      {"engine_snapshots_put_off", kCounter, "Snapshots for which no slot was left.",
       stats.snapshots_put_off},
      {"engine_real_bf16", libswap::StatKind::gauge,
       "1: the processor's products of bf16 are used.", std::uint64_t{stats.bf16 == Bf16::real}},
  };
  const libswap::PagerStats& counted = stats;
  const auto pager = libswap::stats_of(counted);
  const auto pool = libswap::stats_of(stats.pool);
  all.insert(all.end(), pager.begin(), pager.end());
  all.insert(all.end(), pool.begin(), pool.end());
  return all;
}

}  // namespace ebb::libmuon
