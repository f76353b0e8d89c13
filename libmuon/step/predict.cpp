#include "ebb/libmuon/step/predict.h"

#include "ebb/libmuon/step/edges.h"
#include "ebb/libmuon/step/prepare.h"

namespace ebb::libmuon {

namespace {

// Visits of a step to tiles that are not resident: all, and those that change them. Such tiles that
// weights are handed out of, and those that only a cut writes.
struct Paged {
  std::uint64_t read = 0, written = 0, with_weights = 0, kept = 0;
};

Paged paged_tiles(const StatePlan& plan, const libswap::Homes& homes) {
  Paged paged;
  for (const Visit& visit : plan.schedule()) {
    if (!visit.has_tile() || homes.tiles[visit.tile] != libswap::Tier::nvme) continue;
    ++paged.read;
    if (visit.changes()) ++paged.written;
  }
  for (std::uint64_t tile = 0; tile < plan.tiles().size(); ++tile) {
    if (homes.tiles[tile] != libswap::Tier::nvme) continue;
    const TileEntry& entry = plan.tiles()[tile];
    if (plan.has_weights(entry)) ++paged.with_weights;
    if (entry.kind == TileKind::bound) ++paged.kept;
  }
  return paged;
}

}  // namespace

Result<EnginePlan> predict(const EngineConfig& config, Rank rank, Side wire) {
  EBB_TRY_ASSIGN(const Prepared parts, prepare(config, rank, wire));
  const StatePlan& plan = parts.plan;
  const Paged paged = paged_tiles(plan, parts.homes);
  EnginePlan result;
  result.state_bytes = plan.state_bytes();
  result.tiles = plan.tiles().size();
  result.split = {result.tiles - parts.homes.count(libswap::Tier::nvme), parts.homes.frames};
  result.frame_bytes = parts.homes.host_tiles() * config.tile_bytes;
  result.workspace_bytes = parts.memory.computed(Side::host);
  result.device_bytes = device_bytes(parts.memory, parts.homes, config.tile_bytes);
  result.staging_bytes = parts.memory.on_wire();
  result.gradient_sum_bytes = parts.memory.sums;
  result.memory_bytes = result.frame_bytes + parts.memory.host();
  result.ranks_bytes = plan.world() > 1 ? kMostRanksBytes : 0;
  result.least_budget_bytes = parts.least_budget;
  const Chunks& chunks = parts.chunks;
  result.chunks = chunks.count();
  result.early_chunks = parts.early_chunks;
  for (const Item& item : plan.items()) result.streamed_matrices += item.streaming ? 1 : 0;
  result.disk_bytes = libswap::Store::disk_bytes(parts.store);
  result.step_read_bytes = paged.read * config.tile_bytes;
  result.step_written_bytes = paged.written * config.tile_bytes;
  result.install_read_bytes = paged.with_weights * config.tile_bytes;
  result.snapshot_written_bytes = paged.kept * config.tile_bytes;
  const Edges edges(plan, chunks, config.chunk_bytes);
  if (plan.columns().bound_masters()) result.snapshot_sent_bytes = edges.bound.sent_bytes();
  result.step_sent_bytes = edges.gradient_bytes(plan, parts.lasting_chunks) +
                           edges.updates.sent_bytes() + edges.results.sent_bytes() +
                           edges.weights.sent_bytes() + result.snapshot_sent_bytes;
  result.newton_schulz_flops = plan.newton_schulz_flops();
  result.adam_elems = plan.adam_elems();
  result.padding_ratio = plan.gradients().padding_ratio();
  return result;
}

}  // namespace ebb::libmuon
