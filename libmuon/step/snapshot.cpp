// Snapshots: a cut now, durable behind the steps, committed when all ranks said so
// (decisions 1.3, 3.3).
#include <chrono>

#include "ebb/libmuon/step/engine_impl.h"

namespace ebb::libmuon {

using formats::Code;
using formats::Error;

// Polls (or waits for) the pending snapshot; when every rank has prepared it, agrees on it. With no
// room left for the next sweep's writes it waits in any case.
Result<> Engine::Impl::settle_snapshot(Patience patience) {
  if (!pending) return {};
  const libswap::TraceSpan span(config.trace, parts.plan.rank(), libswap::Lane::commit, "agree");
  EBB_TRY_ASSIGN(const std::int64_t room, ranks.agree(store->room_to_sweep() ? 1 : 0));
  if (patience == Patience::wait || room == 0) pending->thread.join();
  EBB_TRY_ASSIGN(const std::int64_t all_done, ranks.agree(pending->done.load() ? 1 : 0));
  if (all_done == 0) return {};
  if (pending->thread.joinable()) pending->thread.join();
  const std::unique_ptr<PendingSnapshot> settled = std::move(pending);
  EBB_TRY_ASSIGN(const auto outcome, store->agree(ranks, settled->result));
  if (outcome == libswap::Store::Settled::committed) return {};
  if (outcome == libswap::Store::Settled::put_off) {
    ++stats.snapshots_put_off;
    return {};
  }
  if (!settled->result) return settled->result;
  return Error{Code::peer,
               "generation " + std::to_string(settled->generation) +
                   " was abandoned because another rank could not write it",
               "its own message says why; the previous generation still resumes"};
}

Result<bool> Engine::Impl::begin_snapshot() {
  const auto begin = std::chrono::steady_clock::now();
  EBB_TRY(settle_snapshot(Patience::poll));
  const Result<> room = store->can_cut();
  const bool can = !broken && !pending && room;
  EBB_TRY_ASSIGN(const std::int64_t all_can, ranks.agree(can ? 1 : 0));
  if (broken) return *broken;
  if (all_can == 0) {
    if (!room && room.error().code == Code::state) return room.error();
    if (!pending && !room) ++stats.snapshots_put_off;
    return false;
  }

  auto manifest = manifest_template(config, parts.plan);
  manifest.blobs = blobs;
  pending = std::make_unique<PendingSnapshot>();
  pending->generation = store->cut(step);
  pager->begin_cut();
  PendingSnapshot& snapshot = *pending;
  snapshot.thread = std::thread([this, &snapshot, manifest = std::move(manifest)]() mutable {
    snapshot.result = pager->finish_cut();
    if (snapshot.result) {
      const libswap::TraceSpan span(config.trace, parts.plan.rank(), libswap::Lane::commit,
                                    "prepare");
      snapshot.result = store->prepare(std::move(manifest));
    }
    snapshot.done = true;
  });
  stats.snapshot_s +=
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return true;
}

Result<bool> Engine::snapshot() { return impl_->begin_snapshot(); }

Result<std::uint64_t> Engine::wait_snapshot() {
  EBB_TRY(impl_->settle_snapshot(Impl::Patience::wait));
  return impl_->store->committed_generation();
}

}  // namespace ebb::libmuon
