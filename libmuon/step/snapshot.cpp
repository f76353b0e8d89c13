// Snapshots: a cut now, durable behind the steps, committed when all ranks said so
// (docs/formats/commit.md).
#include <chrono>
#include <utility>

#include "ebb/formats/native/ebb.h"
#include "ebb/libmuon/comm/together.h"
#include "ebb/libmuon/step/engine_impl.h"
#include "ebb/libmuon/step/manifest_template.h"
#include "ebb/libswap/sys/process.h"
#include "ebb/libswap/tree/file_tree.h"

namespace ebb::libmuon {

// Of the sweep's cache, in the present store.
void Engine::Impl::watch_snapshots() {
  const auto meet = [this](std::string_view doing, const std::function<Result<>()>& work) {
    return together(ranks, doing, work);
  };
  snapshots.emplace(sweep->cache(), *store, ranks, meet, config.trace);
}

Result<> Engine::Impl::settle_snapshot(libswap::Snapshots::Mode mode) {
  EBB_TRY(snapshots->settle(mode));
  return adopt_if_due();
}

Result<> Engine::Impl::adopt_if_due() {
  if (!adopt_due || !snapshots->committed_step()) return {};
  EBB_TRY(directory->adopt(ranks));  // an error leaves it due: the generation is committed
  adopt_due = false;
  return {};
}

libswap::Snapshots::MakeManifest Engine::Impl::manifest() const {
  return [groups = config.model.groups, blobs_now = blobs.all(), ahead = steps.ahead(),
          step_now = steps.now(), kernels = computing->fingerprint(), &params = config.model.params,
          &plan = parts.plan]() mutable {
    auto manifest = manifest_template(params, groups, plan);
    manifest.fingerprint = kernels;
    manifest.blobs = std::move(blobs_now);
    for (std::size_t i = 0; i < ahead.size(); ++i)
      manifest.param_steps[params[i].name] = static_cast<std::int64_t>(step_now) + ahead[i];
    return manifest;
  };
}

Result<bool> Engine::Impl::begin_snapshot() {
  end_step();
  const auto begin = std::chrono::steady_clock::now();
  EBB_TRY(agree_all(not_stopped(), "beginning a snapshot"));
  sweep->go_on();  // what a disk refused behind the last step is written now
  const auto keep = [this] { return keep_highs(); };
  EBB_TRY_ASSIGN(const bool begun, snapshots->begin(steps.now(), manifest(), keep));
  EBB_TRY(adopt_if_due());
  if (begun) stats.snapshot_s += libswap::seconds_since(begin);
  return begun;
}

Result<std::uint64_t> Engine::Impl::wait_for_snapshot() {
  end_step();
  EBB_TRY(agree_all(not_stopped(), "waiting for a snapshot"));
  EBB_TRY(settle_snapshot(libswap::Snapshots::Mode::wait));
  return snapshots->wait();
}

Result<bool> Engine::snapshot() {
  EBB_TRY_ASSIGN(const Entry::Inside inside, impl_->entry.alone("snapshot"));
  return impl_->begin_snapshot();
}
Result<std::uint64_t> Engine::wait_snapshot() {
  EBB_TRY_ASSIGN(const Entry::Inside inside, impl_->entry.alone("wait_snapshot"));
  return impl_->wait_for_snapshot();
}

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
