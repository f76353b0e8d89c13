#include "ebb/libmuon/step/prepare.h"

#include <utility>

#include "ebb/formats/catalog/value_json.h"
#include "ebb/formats/native/manifest_limits.h"
#include "ebb/libmuon/step/check_config.h"
#include "ebb/libmuon/step/homes.h"
#include "ebb/libmuon/step/manifest_template.h"

namespace ebb::libmuon {

namespace {

// Without directory and uuids.
Result<libswap::Store::Config> store_of(const EngineConfig& config, const StatePlan& plan) {
  auto manifest = manifest_template(config.model.params, config.model.groups, plan);
  EBB_TRY(formats::native::check_limits(manifest));
  manifest.fingerprint = fingerprint_of(config, Bf16::emulated, 1);
  // A parameter that has no gradient in some step counts its own from there on. They are counted
  // here rather than written: of a large model, they are as much as all else.
  manifest.param_steps[config.model.params.front().name] = 0;
  auto store = libswap::Store::config_for(std::move(manifest), config.tile_bytes);
  for (const ParamSpec& param : config.model.params)
    store.manifest_bytes += formats::param_step_bytes(param.name);
  store.rank = plan.rank();
  store.world = plan.world();
  store.slots = config.slots;
  store.layout_digest = plan.digest();
  EBB_TRY(libswap::Store::check(store));
  return store;
}

}  // namespace

Result<Prepared> prepare(const EngineConfig& config, Rank rank, Side wire) {
  EBB_TRY(check_config(config));
  EBB_TRY_ASSIGN(StatePlan plan,
                 StatePlan::make(config.model, config.partition, config.tile_bytes, rank,
                                 config.chunk_bytes, config.dtypes, config.stream_above_bytes));
  EBB_TRY(check_with(config, plan.columns()));
  EBB_TRY_ASSIGN(const libswap::Store::Config store, store_of(config, plan));
  Chunks chunks(plan, config.chunk_bytes);
  const std::size_t early = early_chunks(plan, chunks, config.early_gradient_bytes);
  const bool keeps =
      config.partition.hand_in == HandIn::partial && config.partial_sums == PartialSums::kept;
  const std::size_t lasting = keeps ? chunks.count() : early;
  const Memory memory = memory_beside_tiles(config, plan, chunks, lasting, wire);
  EBB_TRY_ASSIGN(PlacedTiles placed, place_tiles(config, plan, memory.host()));
  if (const std::uint64_t there = device_bytes(memory, placed.homes, config.tile_bytes);
      there > config.device_budget_bytes)
    return Error{Code::no_memory,
                 compose("a budget of {} bytes of the device is too small for rank {}: it needs {}",
                         config.device_budget_bytes, index_of(rank), there),
                 "give a larger one, smaller tiles, or a tier of the host to more states"};
  return Prepared{std::move(plan),
                  std::move(placed.homes),
                  placed.least_budget,
                  std::move(chunks),
                  early,
                  lasting,
                  memory,
                  store};
}

}  // namespace ebb::libmuon
