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

  // What Store::prepare wants. Called on another thread, while the caller goes on.
  using MakeManifest = std::function<formats::native::Manifest()>;
  // [C] The cache's present content, at `step`, is to become a generation. False: one is still
  // under way, or readers and pins leave no room. Waits only where the store has no slot left for
  // the next version of a tile before the commit (two slots).
  Result<bool> begin(std::uint64_t step, MakeManifest manifest);
  // [C] Commits the one under way, if every rank has written it. A generation that some rank could
  // not write is abandoned: error() says why.
  Result<> poll();
  // [C] Waits for it. The committed generation's number, 0 if there is none; the error if the last
  // one was abandoned.
  Result<std::uint64_t> wait();

  // Why the last one that was settled was abandoned; nullptr when it was committed.
  const Error* error() const { return abandoned_ ? &*abandoned_ : nullptr; }
  std::uint64_t put_off() const { return put_off_; }  // somebody read the store: no slot was left

 private:
  struct Pending;
  enum class Mode : std::uint8_t { poll, wait };
  Result<> settle(Mode mode);
  Result<> cut(std::uint64_t step, MakeManifest manifest);
  void make_durable(Pending& snapshot);

  TileCache& cache_;
  Store& store_;
  Ranks& ranks_;
  Trace* const trace_;
  std::unique_ptr<Pending> pending_;
  std::optional<Error> abandoned_;
  std::uint64_t put_off_ = 0;
};

}  // namespace ebb::libswap
