// StateHome: where a rank's state lives: its directory and store, the cache of its tiles, its
// snapshots; and what goes with it: blobs, and where it came from. What the state means is its
// client's.
//
// Owns store and cache; borrows all that it is given.
// Threading: one thread, its client's. Others may use cache() meanwhile, published by the client; a
// snapshot is written on a thread of its own (Snapshots). What is marked [C] is collective.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "ebb/libswap/pager/snapshots.h"
#include "ebb/libswap/store/blobs.h"
#include "ebb/libswap/store/store_set.h"

namespace ebb::libswap {

class StateHome {
 public:
  using Entry = SwapDirectory::Entry;
  // `wanted`: the store that the state needs, without directory and uuids; read from fits() on.
  StateHome(IoQueue& io, Ranks& ranks, SwapDirectory& directory, const Store::Config& wanted,
            Trace* trace);

  SwapDirectory& directory() const { return *directory_; }  // of the present store
  const fs::path& path() const { return path_; }            // of that
  const std::string& origin() const { return origin_; }
  Blobs& blobs() { return blobs_; }
  const Blobs& blobs() const { return blobs_; }
  Result<> usable() const { return store_->usable(); }
  TileCache& cache() const { return *cache_; }
  // Shared with exports, which pin its generations.
  const std::shared_ptr<Store>& store() const { return store_; }

  // Resuming a store of the directory takes these, in this order.
  // [C] Whether every rank has its own part of the current store, and that is as wanted.
  Result<bool> fits() const;
  // [C] Opens it, and answers the manifest of its last generation; nullopt where some rank's state
  // does not lie in the `same_places`: it is to be transferred.
  Result<std::optional<Manifest>> open(
      const Entry& current, const std::function<bool(const Manifest& manifest)>& same_places);
  // Makes room for its tiles, and watches over snapshots of them.
  Result<> open_cache(Pool& pool, const Homes& homes, Device* device);
  // Reads the tiles that stay in memory; the state is at the manifest's step then.
  Result<> take_over(const Manifest& manifest);

  // [C] Makes a new store, and the directory's when `fill`, [C], has opened the cache, filled its
  // tiles and committed a snapshot of them. After an error the store is dropped, as far as that may
  // be; `fill` has let go of the cache.
  Result<> begin_anew(const std::function<Result<>()>& fill);

  // Notes something on what was resumed or loaded, for set_origin(), which says all of it.
  void note(const std::string& text);
  void set_origin(const std::string& what, std::uint64_t step);
  void add_to_origin(const std::string& text) { origin_ += text; }

  // [C] Begins a snapshot, as Snapshots::begin() says.
  Result<bool> begin_snapshot(std::uint64_t step, Snapshots::MakeManifest manifest,
                              const std::function<Result<>()>& before_cut = {});
  Result<> settle(Snapshots::Mode mode);
  Result<std::uint64_t> wait_snapshot();
  std::uint64_t committed_generation() const;
  std::uint64_t committed_step() const;
  const Error* snapshot_error() const;

  // Whether this rank could resume the last committed generation in the place of what is here.
  Result<> has_committed() const;
  Result<> has_no_export() const;
  // Closes the store. REQUIRES: nobody uses its cache.
  void close();
  // [C] Moves the state to a new store in another directory; after an error all is where it was.
  Result<> move_to(SwapDirectory& other);

  // By all of its caches and snapshots.
  struct Counted : PagerStats {
    std::uint64_t snapshots_put_off = 0;
  };
  Counted counted() const;

 private:
  Result<bool> has_own_part() const;
  void watch_snapshots();
  Result<> adopt_if_due();
  void discard(const Entry& fresh);
  Result<std::shared_ptr<Store>> make_store(const SwapDirectory& in, const Entry& fresh,
                                            const Uuid& parent) const;

  // Constant after construction.
  IoQueue& io_;
  Ranks& ranks_;
  const Store::Config& wanted_;
  Trace* const trace_;

  // Of the client's thread.
  SwapDirectory* directory_;
  fs::path path_;
  std::string origin_;
  std::string notes_;  // on what was resumed or loaded
  Blobs blobs_;
  bool adopt_due_ = false;  // the store's first generation makes it its directory's
  std::uint64_t resumed_step_ = 0;
  Counted counted_;  // by caches and snapshots that are gone

  // Synchronise themselves, each before those that use it.
  std::shared_ptr<Store> store_;
  std::unique_ptr<TileCache> cache_;
  std::optional<Snapshots> snapshots_;
};

}  // namespace ebb::libswap
