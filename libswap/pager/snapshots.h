// Snapshots: generations of what a cache holds: cut now, written behind whoever goes on, committed
// when all ranks have said that theirs is durable (docs/formats/commit.md).
//
// Threading: one thread; a snapshot is written by a thread of its own. Calls marked [C] are
// collective: all ranks, same order.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "ebb/libswap/pager/tile_cache.h"

namespace ebb::libswap {

class Snapshots {
 public:
  // All are borrowed; `trace` may be null.
  Snapshots(TileCache& cache, Store& store, Ranks& ranks, Trace* trace);
  ~Snapshots();  // what is not committed by then is not

  // What Store::prepare wants. Called once, on another thread, while the caller goes on.
  using MakeManifest = std::function<formats::native::Manifest()>;
  // [C] The cache's present content, at `step`, is to become a generation. False: one is still
  // under way, or readers and pins leave no room. REQUIRES: the cache is settled.
  // `before_cut`, if there is one, is called, [C], once nothing else is in the way: what it leaves
  // in the cache, settled, belongs to the generation.
  Result<bool> begin(std::uint64_t step, MakeManifest manifest,
                     const std::function<Result<>()>& before_cut = {});
  enum class Mode : std::uint8_t { poll, wait };
  // [C] Commits the one under way if every rank has written it; a generation that some rank could
  // not write is abandoned. Waits for it if asked to, and where some rank has no slot left for the
  // next version of a tile before the commit: to be called before a tile is written.
  Result<> settle(Mode mode);
  // [C] Waits for it. The committed generation's number, 0 if there is none; the error if the last
  // one was abandoned.
  Result<std::uint64_t> wait();

  // Why the last one that was settled was abandoned; nullptr when it was committed.
  const Error* error() const { return abandoned_ ? &*abandoned_ : nullptr; }
  // Of the generation that was committed last, if it was through this object.
  std::optional<std::uint64_t> committed_step() const { return committed_step_; }
  std::uint64_t put_off() const { return put_off_; }  // somebody read the store: no slot was left

 private:
  struct Pending;
  Result<> cut(std::uint64_t step, MakeManifest manifest);
  void make_durable(Pending& snapshot);

  TileCache& cache_;
  Store& store_;
  Ranks& ranks_;
  Trace* const trace_;
  std::unique_ptr<Pending> pending_;
  std::optional<Error> abandoned_;
  std::optional<std::uint64_t> committed_step_;
  std::uint64_t put_off_ = 0;
};

}  // namespace ebb::libswap
