// StateHome: where a rank's state lives: its directory and store, the cache of its tiles, its
// snapshots; and what goes with it: blobs, where it came from, at which step it is.
//
// Owns store and cache; borrows all that the constructor is given.
// Threading: one thread, which drives the engine, while no step is under way; in a step its threads
// use cache(). A snapshot is written on a thread of its own (Snapshots): of this class it sees what
// manifest() copies, and what is constant. What is marked [C] is collective.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "ebb/formats/native/manifest.h"
#include "ebb/libmuon/step/beginning.h"
#include "ebb/libmuon/step/computing.h"
#include "ebb/libmuon/step/engine_stats.h"
#include "ebb/libmuon/step/pinned_checkpoint.h"
#include "ebb/libmuon/step/step_count.h"
#include "ebb/libswap/pager/snapshots.h"
#include "ebb/libswap/store/blobs.h"
#include "ebb/libswap/store/store_set.h"

namespace ebb::libmuon {

class StateHome {
 public:
  using Entry = libswap::SwapDirectory::Entry;
  StateHome(const Setup& setup, StepCount& steps, libswap::SwapDirectory& directory);

  libswap::SwapDirectory& directory() const { return *directory_; }  // of the present store
  const std::filesystem::path& path() const { return path_; }        // of that
  const std::string& origin() const { return origin_; }
  libswap::Blobs& blobs() { return blobs_; }
  const libswap::Blobs& blobs() const { return blobs_; }
  Result<> usable() const { return store_->usable(); }
  libswap::TileCache& cache() const { return *cache_; }

  // Resuming a store of the directory takes these, in this order.
  // [C] Whether every rank has its own part of the current store, of this plan.
  Result<bool> fits() const;
  // [C] Opens it, and answers the manifest of its last generation; nullopt where its state lies in
  // other places than the plan's: it is to be transferred.
  Result<std::optional<formats::native::Manifest>> open(const Entry& current);
  // Notes what differs from what the engine was opened with; refuses what cannot be taken over.
  Result<> compare(const formats::native::Manifest& manifest, const Computing& computing);
  // Makes room for its tiles, and watches over snapshots of them. REQUIRES: Computing has chosen.
  Result<> open_cache(const Computing& computing);
  // Reads the tiles that stay in memory; the state is at the manifest's step then.
  Result<> take_over(const formats::native::Manifest& manifest);

  // Making a new store takes these: read(), make(), open_cache(); its tiles are filled and a
  // snapshot of them is committed; adopt(). [C] Reads what is known of the state before a tile is
  // filled.
  Result<> read(Beginning& from);
  // [C] Makes the store.
  Result<> make(const Entry& fresh, const formats::native::Uuid& parent);
  // [C] Makes it the directory's.
  Result<> adopt();
  // [C] Drops it, as far as that may be, where it could not be made or filled.
  void discard(const Entry& fresh);

  // Notes something on what was resumed or loaded, for set_origin(), which says all of it.
  void note(const std::string& text);
  void set_origin(const std::string& what);
  void add_to_origin(const std::string& text) { origin_ += text; }

  // [C] Begins a snapshot of the present step, as Snapshots::begin() says.
  Result<bool> begin_snapshot(const std::function<Result<>()>& before_cut);
  Result<> settle(libswap::Snapshots::Mode mode);
  Result<std::uint64_t> wait_snapshot() { return snapshots_->wait(); }
  std::uint64_t committed_generation() const;
  std::uint64_t committed_step() const;
  const Error* snapshot_error() const;
  // Pins the committed generation.
  Result<PinnedCheckpoint> pin() const;

  // Whether this rank could resume the last committed generation in the place of what is here.
  Result<> has_committed() const;
  Result<> has_no_export() const;
  // Closes the store. REQUIRES: the sweep of its cache is closed.
  void close();
  // [C] Moves the state to a new store in another directory; after an error all is where it was.
  Result<> move_to(libswap::SwapDirectory& other);

  // Adds the counters of all caches and snapshots.
  void add_to(EngineStats& stats) const;

 private:
  void watch_snapshots();
  Result<> adopt_if_due();
  // Makes the manifest of the present step, on any thread: of what later steps do not change.
  libswap::Snapshots::MakeManifest manifest() const;
  Result<bool> has_own_folder(const std::optional<Entry>& current) const;
  Result<std::shared_ptr<libswap::Store>> make_store(const libswap::SwapDirectory& in,
                                                     const Entry& fresh,
                                                     const formats::native::Uuid& parent) const;

  // Constant after construction.
  const Setup& setup_;

  // Of the thread that drives.
  StepCount& steps_;
  libswap::SwapDirectory* directory_;
  std::filesystem::path path_;
  std::string kernels_;  // the fingerprint of those that compute its steps
  std::string origin_;
  std::string notes_;  // on what was resumed or loaded
  libswap::Blobs blobs_;
  bool adopt_due_ = false;  // the store's first generation makes it its directory's
  std::uint64_t resumed_step_ = 0;
  EngineStats counted_;  // by caches and snapshots that are gone

  // Synchronise themselves, each before those that use it.
  std::shared_ptr<libswap::Store> store_;  // shared with exports
  std::unique_ptr<libswap::TileCache> cache_;
  std::optional<libswap::Snapshots> snapshots_;
};

}  // namespace ebb::libmuon
