#include "ebb/libmuon/step/engine.h"

#include <algorithm>

#include "ebb/formats/catalog/value_json.h"
#include "ebb/formats/native/manifest_limits.h"
#include "ebb/libmuon/comm/check_communicator.h"
#include "ebb/libmuon/step/check_config.h"
#include "ebb/libmuon/step/engine_impl.h"
#include "ebb/libmuon/step/homes.h"
#include "ebb/libmuon/step/settings.h"

namespace ebb::libmuon {

namespace {

Result<std::uint64_t> manifest_bytes(const EngineConfig& config, const StatePlan& plan) {
  auto manifest = manifest_template(config.model.params, config.model.groups, plan);
  EBB_TRY(formats::native::check_limits(manifest));
  manifest.fingerprint = fingerprint_of(config, Bf16::emulated, 1);
  const std::uint64_t blocks = formats::div_ceil(config.tile_bytes, kBlockBytes);
  for (auto& tile : manifest.tiles) tile.crcs.assign(blocks, 0);
  // A parameter that has no gradient in some step counts its own from there on. They are counted
  // here rather than written: of a large model, they are as much as all else.
  manifest.param_steps[config.model.params.front().name] = 0;
  std::uint64_t steps = 0;
  for (const ParamSpec& param : config.model.params) steps += formats::param_step_bytes(param.name);
  return formats::align_up(encode(manifest).size() + steps + libswap::Blobs::kMostBytes, 4096);
}

// Of what lies where the communicator does not take it, what travels in one round.
std::uint64_t bounce_bytes(const EngineConfig& config, const StatePlan& plan, const Chunks& chunks,
                           Side wire) {
  if (wire == Side::device || config.accelerator == nullptr) return 0;
  const bool gradients = device_of(config, config.gradients_on) != nullptr;
  const bool weights = device_of(config, config.weights_on) != nullptr;
  const auto any = [](const Transit&) { return true; };
  const Exchange::Bounced both{.sent = any, .received = any};
  const Exchange::Bounced in{.sent = [&](const Transit&) { return gradients; },
                             .received = [](const Transit&) { return false; }};
  const Exchange::Bounced out{.sent =
                                  [&](const Transit& part) {
                                    return weights && plan.in_place(part.param, part.range.first,
                                                                    plan.weights());
                                  },
                              .received = [&](const Transit&) { return weights; }};
  const Routes routes(plan);
  std::uint64_t most = routes.gradients_to_shards.bounce_bytes(routes.adam, in);
  for (std::size_t chunk = 0; chunk < chunks.count(); ++chunk)
    most = std::max({most, routes.gradients_to_owners.bounce_bytes(chunks.gradients(chunk), in),
                     routes.weights_from_owners.bounce_bytes(chunks.weights(chunk), out),
                     routes.weights_from_shards.bounce_bytes(chunks.adam_weights(chunk), out),
                     routes.updates_together.bounce_bytes(chunks.updates(chunk), both),
                     routes.results_apart.bounce_bytes(chunks.results(chunk), both)});
  return most;
}

// The most room that parts of sums take on their way.
std::uint64_t part_bytes(const EngineConfig& config, const StatePlan& plan, const Chunks& chunks) {
  if (config.partition.hand_in != HandIn::partial) return 0;
  const Reductions reductions(plan, config.chunk_bytes);
  std::uint64_t most = reductions.to_shards.room_bytes(adam_ranges(plan));
  for (std::size_t chunk = 0; chunk < chunks.count(); ++chunk)
    most = std::max(most, reductions.to_owners.room_bytes(chunks.gradients(chunk)));
  return most;
}

// What this rank takes beside tiles.
Memory memory_beside_tiles(const EngineConfig& config, const StatePlan& plan, const Chunks& chunks,
                           std::size_t lasting_chunks, Side wire) {
  if (config.partition.hand_in == HandIn::partial) wire = Side::host;
  return {.workspace = Sweep::workspace(config.model, plan, config.accelerator),
          .staging = Staging::bytes({plan, chunks, adam_ranges(plan), lasting_chunks}),
          .bounce = bounce_bytes(config, plan, chunks, wire),
          .parts = part_bytes(config, plan, chunks),
          .wire = config.accelerator != nullptr ? wire : Side::host,
          .sums = config.partition.hand_in == HandIn::added ? GradientSums::bytes(plan) : 0,
          .gradients = config.accelerator != nullptr ? config.gradients_on : Side::host,
          .updates = Updates::bytes({config.model, plan, chunks, config.accelerator})};
}

// Visits of a step to tiles that are not resident: all, and those that change them. Such tiles that
// weights are handed out of, and those that only a cut writes.
struct Paged {
  std::uint64_t read = 0, written = 0, with_weights = 0, kept = 0;
};

Paged paged_tiles(const StatePlan& plan, const libswap::Homes& homes) {
  Paged paged;
  for (const ScheduledVisit& visit : plan.schedule()) {
    if (!visit.has_tile() || homes.tiles[visit.tile] != libswap::Tier::nvme) continue;
    ++paged.read;
    if (visit.changes()) ++paged.written;
  }
  for (std::uint64_t tile = 0; tile < plan.tiles().size(); ++tile) {
    if (homes.tiles[tile] != libswap::Tier::nvme) continue;
    const TileEntry& entry = plan.tiles()[tile];
    if (plan.has_weights(entry)) ++paged.with_weights;
    if (entry.visit == Visit::keep) ++paged.kept;
  }
  return paged;
}

std::uint64_t device_bytes(const Memory& memory, const libswap::Homes& homes,
                           std::uint64_t tile_bytes) {
  return memory.device() + homes.count(libswap::Tier::device) * tile_bytes;
}

// That this rank sends in a step.
std::uint64_t gradient_bytes(const EngineConfig& config, const StatePlan& plan,
                             const Chunks& chunks, const Routes& routes) {
  const auto all = [&](const auto& to_owners, const auto& to_shards) {
    std::uint64_t bytes = to_shards.sent_bytes(routes.adam);
    for (std::size_t chunk = 0; chunk < chunks.count(); ++chunk)
      bytes += to_owners.sent_bytes(chunks.gradients(chunk));
    return bytes;
  };
  if (config.partition.hand_in != HandIn::partial)
    return all(routes.gradients_to_owners, routes.gradients_to_shards);
  const Reductions reductions(plan, config.chunk_bytes);
  const std::uint64_t times = config.partial_sums == PartialSums::made_twice ? 2 : 1;
  return times * all(reductions.to_owners, reductions.to_shards);
}

// Of weights that are the high halves of masters, back to these.
std::uint64_t high_bytes(const StatePlan& plan, const Chunks& chunks, const Routes& routes) {
  if (!plan.columns().in_halves()) return 0;
  std::uint64_t bytes = routes.highs_to_shards.sent_bytes(routes.adam);
  for (std::size_t chunk = 0; chunk < chunks.count(); ++chunk)
    bytes += routes.highs_to_owners.sent_bytes(chunks.weights(chunk));
  return bytes;
}

}  // namespace

libswap::Device* device_of(const EngineConfig& config, Side side) {
  return side == Side::device && config.accelerator != nullptr ? &config.accelerator->device()
                                                               : nullptr;
}

std::string fingerprint_of(const EngineConfig& config, std::optional<Bf16> bf16,
                           std::uint32_t choice) {
  return config.accelerator != nullptr ? config.accelerator->fingerprint(choice)
                                       : kernel_fingerprint(bf16);
}

formats::native::Manifest manifest_template(std::span<const ParamSpec> params,
                                            std::span<const GroupSpec> groups,
                                            const StatePlan& plan) {
  formats::native::Manifest manifest;
  manifest.states = plan.columns().names();
  manifest.params.reserve(params.size() + plan.derived().size());
  for (const ParamSpec& param : params)
    manifest.params.push_back({param.name, param.shape, param.group});
  for (const auto& [of, param, shape] : plan.derived())
    manifest.params.push_back({params[param].name, shape, params[param].group});
  for (const GroupSpec& group : groups)
    manifest.groups.push_back(std::visit([](const auto& spec) { return to_group(spec); }, group));
  for (const TileEntry& entry : plan.tiles()) {
    formats::native::Tile tile;
    tile.segments = plan.segments(entry);
    const auto& last = tile.segments.back();
    tile.used_bytes = last.offset + last.count * bytes_of(last.dtype);
    manifest.tiles.push_back(std::move(tile));
  }
  return manifest;
}

Result<Prepared> prepare(const EngineConfig& config, Rank rank, Side wire) {
  EBB_TRY(check_config(config));
  EBB_TRY_ASSIGN(StatePlan plan,
                 StatePlan::make(config.model, config.partition, config.tile_bytes, rank,
                                 config.chunk_bytes, config.dtypes, config.stream_above_bytes));
  EBB_TRY(check_with(config, plan.columns()));
  EBB_TRY_ASSIGN(const std::uint64_t manifest, manifest_bytes(config, plan));
  libswap::Store::Config store{.rank = rank,
                               .world = plan.world(),
                               .tile_bytes = config.tile_bytes,
                               .block_bytes = std::min(config.tile_bytes, kBlockBytes),
                               .slots = config.slots,
                               .tiles = plan.tiles().size(),
                               .manifest_bytes = manifest,
                               .layout_digest = plan.digest()};
  EBB_TRY(libswap::Store::check(store));
  Chunks chunks(plan, config.chunk_bytes);
  const std::size_t early = early_chunks(plan, chunks, config.early_gradient_bytes);
  const bool keeps =
      config.partition.hand_in == HandIn::partial && config.partial_sums == PartialSums::kept;
  const std::size_t lasting = keeps ? chunks.count() : early;
  const Memory memory = memory_beside_tiles(config, plan, chunks, lasting, wire);
  EBB_TRY_ASSIGN(Housing housing, house(config, plan, memory.host()));
  if (const std::uint64_t there = device_bytes(memory, housing.homes, config.tile_bytes);
      there > config.device_budget_bytes)
    return Error{Code::no_memory,
                 compose("a budget of {} bytes of the device is too small for rank {}: it needs {}",
                         config.device_budget_bytes, index_of(rank), there),
                 "give a larger one, or a tier of the host to more states"};
  return Prepared{std::move(plan),
                  std::move(housing.homes),
                  housing.least_budget,
                  std::move(chunks),
                  early,
                  lasting,
                  memory,
                  store};
}

Result<EnginePlan> Engine::plan(const EngineConfig& config, Rank rank, Side wire) {
  EBB_TRY_ASSIGN(const Prepared parts, prepare(config, rank, wire));
  const StatePlan& plan = parts.plan;
  const Paged paged = paged_tiles(plan, parts.homes);
  EnginePlan result;
  result.state_bytes = plan.state_bytes();
  result.tiles = plan.tiles().size();
  result.split = {result.tiles - parts.homes.count(libswap::Tier::nvme), parts.homes.frames};
  result.frame_bytes = parts.homes.host_tiles() * config.tile_bytes;
  result.workspace_bytes = parts.memory.workspace.host + parts.memory.updates.host;
  result.device_bytes = device_bytes(parts.memory, parts.homes, config.tile_bytes);
  result.staging_bytes = parts.memory.on_wire();
  result.gradient_sum_bytes = parts.memory.sums;
  result.memory_bytes = result.frame_bytes + parts.memory.host();
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
  const Routes routes(plan);
  for (std::size_t chunk = 0; chunk < chunks.count(); ++chunk)
    result.step_sent_bytes += routes.weights_from_owners.sent_bytes(chunks.weights(chunk)) +
                              routes.weights_from_shards.sent_bytes(chunks.adam_weights(chunk)) +
                              routes.updates_together.sent_bytes(chunks.updates(chunk)) +
                              routes.results_apart.sent_bytes(chunks.results(chunk));
  result.snapshot_sent_bytes = high_bytes(plan, chunks, routes);
  result.step_sent_bytes +=
      gradient_bytes(config, plan, chunks, routes) + result.snapshot_sent_bytes;
  result.newton_schulz_flops = plan.newton_schulz_flops();
  result.adam_elems = plan.adam_elems();
  result.padding_ratio = plan.gradients().padding_ratio();
  return result;
}

Routes::Routes(const StatePlan& plan)
    : gradients_to_owners(plan.gradients(), plan.muon_state(), plan.rank()),
      weights_from_owners(plan.muon_state(), plan.weights(), plan.rank()),
      updates_together(plan.updates(), plan.matrices(), plan.rank()),
      results_apart(plan.matrices(), plan.results(), plan.rank()),
      gradients_to_shards(plan.gradients(), plan.shards(), plan.rank()),
      weights_from_shards(plan.shards(), plan.weights(), plan.rank()),
      highs_to_owners(plan.weights(), plan.muon_state(), plan.rank()),
      highs_to_shards(plan.weights(), plan.shards(), plan.rank()),
      adam(adam_ranges(plan)) {}

Reductions::Reductions(const StatePlan& plan, std::uint64_t most_room)
    : to_owners(plan.gradients(), plan.muon_state(), plan.rank(), most_room),
      to_shards(plan.gradients(), plan.shards(), plan.rank(), most_room) {}

namespace {

// By parameter: the last chunk with weights of it.
std::vector<std::size_t> last_chunks(const Chunks& chunks, std::size_t params) {
  std::vector<std::size_t> last(params, 0);
  for (std::size_t chunk = 0; chunk < chunks.count(); ++chunk)
    for (const auto transits : {chunks.weights(chunk), chunks.adam_weights(chunk)})
      for (const Transit& transit : transits) last[transit.param] = chunk;
  return last;
}

}  // namespace

Engine::Impl::Impl(const EngineConfig& engine_config, Communicator& communicator,
                   libswap::IoQueue& queue, libswap::SwapDirectory& swap_directory,
                   Prepared prepared, std::unique_ptr<libswap::Pool> own_pool)
    : config(engine_config),
      ranks(communicator),
      io(queue),
      directory(&swap_directory),
      parts(std::move(prepared)),
      routes(parts.plan),
      reductions(partial()
                     ? std::optional<Reductions>(std::in_place, parts.plan, config.chunk_bytes)
                     : std::nullopt),
      computing(std::move(own_pool)),
      pool(*computing),
      host_kernels(make_host_kernels({pool, config.trace, parts.plan.rank()})),
      adding_kernels(make_host_kernels({pool, config.trace, parts.plan.rank()})),
      gradients(engine_config.model.params.size()),
      gradient_events(engine_config.model.params.size()),
      gradient_given(engine_config.model.params.size(), false),
      early(parts.plan, parts.chunks, parts.early_chunks),
      absent(parts.plan),
      weights(engine_config.model.params.size()),
      bound(engine_config.model.params.size(), false),
      last_chunk(last_chunks(parts.chunks, engine_config.model.params.size())) {
  if (in_halves()) handed_out.emplace(parts.chunks, routes.highs_to_owners, routes.highs_to_shards);
}

Result<std::unique_ptr<Kernels>> Engine::Impl::make_kernels() const {
  const KernelsFor what{pool, config.trace, parts.plan.rank()};
  if (config.accelerator == nullptr) return make_host_kernels(what);
  EBB_TRY_ASSIGN(auto kernels, config.accelerator->kernels(what));
  if (kernels == nullptr || kernels->device() != &config.accelerator->device())
    return Error{Code::usage,
                 compose("the accelerator gives no kernels of its own device, {}",
                         config.accelerator->device().name()),
                 "ebb/libmuon/kernels/table.h says what it owes"};
  return kernels;
}

Result<> Engine::Impl::make_room() {
  if (config.accelerator != nullptr) {
    EBB_TRY_ASSIGN(device_kernels, make_kernels());
  }
  if (parts.plan.placement() == Placement::shard) {
    EBB_TRY_ASSIGN(auto own, make_kernels());
    EBB_TRY_ASSIGN(updates,
                   Updates::make({config.model, parts.plan, parts.chunks, config.accelerator}, pool,
                                 std::move(own)));
  }
  const Memory& memory = parts.memory;
  EBB_TRY_ASSIGN(staging,
                 Staging::make({parts.plan, parts.chunks, routes.adam, parts.lasting_chunks},
                               device_of(config, memory.wire)));
  libswap::Device* const computes =
      config.accelerator != nullptr ? &config.accelerator->device() : nullptr;
  EBB_TRY_ASSIGN(part_room, libswap::allocate_pinned(computes, memory.parts));
  EBB_TRY_ASSIGN(bounce, libswap::allocate_pinned(computes, memory.bounce));
  libswap::Device* const gradients_lie = device_of(config, config.gradients_on);
  EBB_TRY_ASSIGN(look_room, libswap::allocate(gradients_lie, memory.look()));
  if (config.partition.hand_in == HandIn::added) {
    EBB_TRY_ASSIGN(sums, GradientSums::make(parts.plan, gradients_lie));
  }
  return {};
}

Engine::Engine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Engine::~Engine() = default;

Result<std::unique_ptr<Engine>> Engine::open(const EngineConfig& config, Communicator& ranks,
                                             libswap::IoQueue& io,
                                             libswap::SwapDirectory& directory,
                                             const InitialWeights& initial,
                                             const Checkpoint* checkpoint) {
  const auto make = [&]() -> Result<std::unique_ptr<Impl>> {
    const bool takes = config.accelerator != nullptr && ranks.takes(config.accelerator->device());
    EBB_TRY_ASSIGN(Prepared parts,
                   prepare(config, ranks.rank(), takes ? Side::device : Side::host));
    if (parts.plan.world() != ranks.world())
      return Error{Code::layout, compose("{} are for {} ranks, {} are here",
                                         config.partition.axes.empty()
                                             ? "the layouts"
                                             : "the axes " + text_of(config.partition.axes),
                                         parts.plan.world(), ranks.world())};
    if (!initial && checkpoint == nullptr && !directory.current())
      return Error{Code::usage,
                   directory.path().string() +
                       " holds no store, and there is neither a checkpoint nor initial weights",
                   "pass initial weights to Engine::open"};
    EBB_TRY_ASSIGN(auto pool, libswap::Pool::start(config.threads));
    auto impl =
        std::make_unique<Impl>(config, ranks, io, directory, std::move(parts), std::move(pool));
    EBB_TRY(impl->make_room());
    return impl;
  };
  EBB_TRY(check_communicator(ranks));
  auto made = make();
  EBB_TRY(libswap::agree_all(ranks, made ? Result<>() : made.error(), "planning its state"));
  auto settings = settings_of(config, (*made)->parts.plan.columns());
  settings.push_back({"the checkpoint to begin from", checkpoint == nullptr ? "none" : "given"});
  const auto current = directory.current();
  settings.push_back(
      {"the store to resume", current ? formats::native::to_string(current->uuid) : "none"});
  EBB_TRY(libswap::same_everywhere(ranks, settings));
  std::unique_ptr<Impl> impl = std::move(*made);
  EBB_TRY_ASSIGN(impl->flow_ranks, ranks.duplicate());
  EBB_TRY(libswap::agree_all(ranks, check_duplicate(ranks, *impl->flow_ranks), "duplicating"));
  impl->wire.emplace(*impl->flow_ranks, impl->bounce);
  auto flow = Flow::start(*impl->flow_ranks, {.count = impl->parts.early_chunks,
                                              .bring = [self = impl.get()](std::size_t piece) {
                                                return self->gradients_in_early(piece);
                                              }});
  EBB_TRY(libswap::agree_all(ranks, flow ? Result<>() : flow.error(), "starting its threads"));
  impl->flow = std::move(*flow);
  if (Result<> attached = impl->attach(initial, checkpoint); !attached) {
    ranks.abort();  // nobody may wait for this rank in a collective it never reaches
    return std::move(attached).error();
  }
  impl->origin += directory.passed_over();
  return std::unique_ptr<Engine>(new Engine(std::move(impl)));
}

std::uint64_t Engine::step_count() const { return impl_->step; }
const StatePlan& Engine::state_plan() const { return impl_->parts.plan; }
const std::string& Engine::origin() const { return impl_->origin; }

Result<> Engine::set_blob(std::string key, ByteVector bytes) {
  EBB_TRY_ASSIGN(const Entry::Inside inside, impl_->entry.alone("set_blob"));
  impl_->end_step();
  EBB_TRY(impl_->not_stopped());
  return impl_->blobs.set(std::move(key), std::move(bytes));
}

const ByteVector* Engine::blob(std::string_view key) const { return impl_->blobs.find(key); }

std::uint64_t Engine::committed_generation() const {
  return impl_->store ? impl_->store->committed_generation() : 0;
}
std::uint64_t Engine::committed_step() const {
  const auto committed = impl_->snapshots ? impl_->snapshots->committed_step() : std::nullopt;
  return committed.value_or(impl_->resumed_step);
}
const Error* Engine::snapshot_error() const {
  return impl_->snapshots ? impl_->snapshots->error() : nullptr;
}
Result<PinnedCheckpoint> Engine::open_export() const {
  EBB_TRY(impl_->not_stopped());
  return PinnedCheckpoint::pin(impl_->store, impl_->store_path, committed_generation(),
                               committed_step());
}
const std::filesystem::path& Engine::store_directory() const { return impl_->store_path; }

EngineStats Engine::stats() const { return impl_->all_stats(); }

}  // namespace ebb::libmuon
