// Snapshots: a cut now, durable behind the steps, committed when all ranks said so
// (docs/formats/commit.md).
#include <chrono>

#include "ebb/formats/native/ebb.h"
#include "ebb/libmuon/comm/together.h"
#include "ebb/libmuon/step/engine_impl.h"
#include "ebb/libswap/sys/process.h"
#include "ebb/libswap/sys/thread.h"
#include "ebb/libswap/tree/file_tree.h"

namespace ebb::libmuon {

PendingSnapshot::~PendingSnapshot() {
  if (word == Word::none) word = Word::never;
  word.notify_one();
  if (thread.joinable()) thread.join();
}

void Engine::Impl::make_durable(PendingSnapshot& snapshot) {
  snapshot.word.wait(PendingSnapshot::Word::none);
  if (snapshot.word == PendingSnapshot::Word::never) return;
  snapshot.result = sweep->cache().finish_cut();
  if (snapshot.result) {
    const libswap::TraceSpan span(config.trace, parts.plan.rank(), libswap::Lane::commit,
                                  "prepare");
    snapshot.result = store->prepare(std::move(snapshot.manifest));
  }
  snapshot.done = true;
}

// Polls (or waits for) the pending snapshot; when every rank has prepared it, agrees on it. With no
// room left for the next sweep's writes it waits in any case.
Result<> Engine::Impl::settle_snapshot(SettleMode mode) {
  if (!pending) return {};
  const libswap::TraceSpan span(config.trace, parts.plan.rank(), libswap::Lane::commit, "agree");
  EBB_TRY_ASSIGN(const std::int64_t room, ranks.agree(store->room_to_sweep() ? 1 : 0));
  if (mode == SettleMode::wait || room == 0)
    EBB_TRY(together(ranks, "writing a snapshot", [this]() -> Result<> {
      pending->thread.join();
      return {};
    }));
  EBB_TRY_ASSIGN(const std::int64_t all_done, ranks.agree(pending->done.load() ? 1 : 0));
  if (all_done == 0) return {};
  if (pending->thread.joinable()) pending->thread.join();
  const std::unique_ptr<PendingSnapshot> settled = std::move(pending);
  EBB_TRY_ASSIGN(const auto outcome, store->agree(ranks, settled->result));
  if (outcome == libswap::Store::Settled::committed) {
    committed_step = settled->step;
    abandoned.reset();
    if (std::exchange(adopt_due, false)) EBB_TRY(directory->adopt(ranks));
  } else if (outcome == libswap::Store::Settled::put_off) {
    ++stats.snapshots_put_off;
  } else {
    abandoned =
        settled->result
            ? Error{Code::peer,
                    compose("generation {} was abandoned because another rank could not write it",
                            settled->generation),
                    "its own message says why; the previous generation still resumes"}
            : settled->result.error();
  }
  return {};
}

formats::native::Manifest Engine::Impl::manifest() const {
  auto manifest = manifest_template(config, parts.plan);
  manifest.blobs = blobs;
  for (std::size_t i = 0; i < steps_ahead.size(); ++i)
    manifest.param_steps[config.model.params[i].name] =
        static_cast<std::int64_t>(step) + steps_ahead[i];
  return manifest;
}

Result<bool> Engine::Impl::begin_snapshot() {
  end_step();
  const auto begin = std::chrono::steady_clock::now();
  EBB_TRY(agree_all(not_stopped(), "beginning a snapshot"));
  EBB_TRY(settle_snapshot(SettleMode::poll));
  EBB_TRY(agree_all(store->usable(), "beginning a snapshot"));
  const bool room = store->can_cut().has_value();
  EBB_TRY_ASSIGN(const std::int64_t all_can, ranks.agree(!pending && room ? 1 : 0));
  if (all_can == 0) {
    if (!pending && !room) ++stats.snapshots_put_off;
    return false;
  }

  auto next = std::make_unique<PendingSnapshot>();
  auto thread = libswap::start_thread([this, &snapshot = *next] { make_durable(snapshot); });
  const Result<> started = thread ? Result<>() : thread.error();
  if (thread) next->thread = std::move(*thread);
  EBB_TRY(agree_all(started, "starting a snapshot"));
  next->manifest = manifest();
  next->step = step;
  pending = std::move(next);
  pending->generation = store->cut(step);
  sweep->cache().begin_cut();
  pending->word = PendingSnapshot::Word::go;
  pending->word.notify_one();
  stats.snapshot_s += libswap::seconds_since(begin);
  return true;
}

Result<std::uint64_t> Engine::Impl::wait_for_snapshot() {
  end_step();
  EBB_TRY(agree_all(not_stopped(), "waiting for a snapshot"));
  EBB_TRY(settle_snapshot(SettleMode::wait));
  EBB_TRY(agree_all(store->usable(), "waiting for a snapshot"));
  if (abandoned) return *abandoned;
  return store->committed_generation();
}

Result<bool> Engine::snapshot() { return impl_->begin_snapshot(); }
Result<std::uint64_t> Engine::wait_snapshot() { return impl_->wait_for_snapshot(); }

PinnedCheckpoint::PinnedCheckpoint(std::shared_ptr<libswap::Store> store,
                                   std::filesystem::path directory, std::uint64_t generation,
                                   std::uint64_t step)
    : store_(std::move(store)),
      directory_(std::move(directory)),
      generation_(generation),
      step_(step) {}

Result<PinnedCheckpoint> PinnedCheckpoint::pin(std::shared_ptr<libswap::Store> store,
                                               std::filesystem::path directory,
                                               std::uint64_t generation, std::uint64_t step) {
  EBB_TRY(store->pin(generation));
  return PinnedCheckpoint(std::move(store), std::move(directory), generation, step);
}

PinnedCheckpoint::~PinnedCheckpoint() {
  if (store_) store_->unpin(generation_);
}

Result<std::unique_ptr<Checkpoint>> PinnedCheckpoint::describe() const {
  EBB_TRY_ASSIGN(auto tree, libswap::open_tree(directory_));
  return formats::describe_ebb_generation(std::move(tree), generation_);
}

}  // namespace ebb::libmuon
