#include "ebb/libmuon/step/engine.h"

#include <algorithm>

#include "ebb/libmuon/comm/check_communicator.h"
#include "ebb/libmuon/step/engine_impl.h"
#include "ebb/libmuon/step/predict.h"
#include "ebb/libmuon/step/settings.h"
#include "ebb/libmuon/step/side.h"
#include "ebb/libmuon/step/trainer_buffer.h"

namespace ebb::libmuon {

Result<EnginePlan> Engine::plan(const EngineConfig& config, Rank rank, Side wire) {
  return predict(config, rank, wire);
}

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
                   Prepared prepared)
    : setup(engine_config, communicator, queue, std::move(prepared)),
      directory(&swap_directory),
      reductions(partial()
                     ? std::optional<Reductions>(std::in_place, parts.plan, config.chunk_bytes)
                     : std::nullopt),
      steps(setup.config.model.params),
      weights(engine_config.model.params.size()),
      bound(engine_config.model.params.size(), false),
      last_chunk(last_chunks(parts.chunks, engine_config.model.params.size())) {
  if (in_halves()) handed_out.emplace(parts.chunks, routes.highs_to_owners, routes.highs_to_shards);
}

Result<> Engine::Impl::choose_products(std::string_view kept) {
  EBB_TRY(computing->choose(kept));
  if (updates != nullptr) updates->choose(computing->choice());
  return {};
}

Result<> Engine::Impl::make_room() {
  EBB_TRY_ASSIGN(computing, Computing::make(setup));
  if (parts.plan.placement() == Placement::shard) {
    EBB_TRY_ASSIGN(auto own, computing->more_kernels());
    EBB_TRY_ASSIGN(updates,
                   Updates::make({config.model, parts.plan, parts.chunks, config.accelerator},
                                 computing->pool(), std::move(own)));
  }
  const Memory& memory = parts.memory;
  EBB_TRY_ASSIGN(staging,
                 Staging::make({parts.plan, parts.chunks, routes.adam, parts.lasting_chunks},
                               device_of(config, memory.wire)));
  libswap::Device* const computes =
      config.accelerator != nullptr ? &config.accelerator->device() : nullptr;
  EBB_TRY_ASSIGN(part_room, libswap::allocate_pinned(computes, memory.parts));
  EBB_TRY_ASSIGN(bounce, libswap::allocate_pinned(computes, memory.bounce));
  EBB_TRY_ASSIGN(gradients, Gradients::make(setup, *computing, steps));
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
    auto impl = std::make_unique<Impl>(config, ranks, io, directory, std::move(parts));
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

Result<> Engine::bind_weights(std::uint32_t param, libswap::Buffer my_pieces) {
  EBB_TRY_ASSIGN(const Entry::Inside inside, impl_->entry.alone("bind_weights"));
  impl_->end_step();
  EBB_TRY(impl_->not_stopped());
  const StatePlan& plan = impl_->parts.plan;
  EBB_TRY(check_buffer(impl_->config, plan.rank(), param, my_pieces,
                       {"weights", plan.weights(), &ParamSpec::weight, impl_->config.weights_on}));
  impl_->weights[param] = my_pieces;
  impl_->bound[param] = true;
  return {};
}

Result<> Engine::gradient_ready(std::uint32_t param, libswap::Buffer my_pieces,
                                libswap::Event ready) {
  EBB_TRY_ASSIGN(const Entry::Inside inside, impl_->entry.handing_in("gradient_ready"));
  EBB_TRY(impl_->may_hand_in());
  return impl_->gradients->take(param, my_pieces, std::move(ready), *impl_->flow);
}

Result<libswap::Event> Engine::add_gradient(std::uint32_t param, libswap::Buffer my_pieces,
                                            const libswap::Event& ready) {
  EBB_TRY_ASSIGN(const Entry::Inside inside, impl_->entry.handing_in("add_gradient"));
  EBB_TRY(impl_->gradients->may_add());
  EBB_TRY(impl_->may_hand_in());
  return impl_->gradients->add(param, my_pieces, ready);
}

Result<> Engine::no_gradient(std::uint32_t param, WithoutGradient how) {
  EBB_TRY_ASSIGN(const Entry::Inside inside, impl_->entry.handing_in("no_gradient"));
  EBB_TRY(check_without(how));
  EBB_TRY(impl_->may_hand_in());
  return impl_->gradients->take_none(param, how, *impl_->flow);
}

Result<> Engine::Impl::may_hand_in() {
  end_step();
  return not_stopped();
}

void Engine::Impl::forget_gradients() {
  flow->drop_early();
  gradients->forget();
}

std::uint64_t Engine::step_count() const { return impl_->steps.now(); }
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
