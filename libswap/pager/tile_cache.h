// TileCache: which of a rank's tiles are in memory, under a hard budget, and which are on their way
// to or from the store. Some are resident for ever, on the host or on a device; the others pass
// through frames: read ahead strictly in the order asked for, written behind whoever changed them.
// It knows no schedule: Stream is its client. SwapSpace is another: its tiles are client-managed,
// whose frames it chooses itself.
//
// Three kinds of I/O error, none of which loses a byte:
//  - a read that fails, or brings other bytes than were written, is repeated, then leaves the tile
//    on the disk;
//  - a write that fails is repeated, then leaves the tile in its frame;
//    both stop the cache: every call answers the error until go_on() has tried again;
//  - a resident tile that a cut could not write costs that cut and nothing else;
//  - a client-managed tile that could not be read costs whoever wanted that tile.
// (A sync that fails is the store's affair: Store::usable().)
//
// Threading: one thread acquires and releases; finish_cut() may run on another. Checksums are jobs
// of the pool.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ebb/libswap/pager/budget.h"
#include "ebb/libswap/pager/pager_failures.h"
#include "ebb/libswap/pager/pager_trace.h"
#include "ebb/libswap/pager/tile_memory.h"
#include "ebb/libswap/pager/under_way.h"
#include "ebb/libswap/pool.h"
#include "ebb/libswap/store/store.h"
#include "ebb/libswap/sys/mutex.h"

namespace ebb::libswap {

struct PagerStats {
  std::uint64_t read_bytes = 0;      // of tiles acquired
  std::uint64_t written_bytes = 0;   // behind releases
  std::uint64_t cut_bytes = 0;       // resident tiles written for a cut
  std::uint64_t retries = 0;         // of reads and writes that failed
  double stall_read_s = 0;           // slept until a tile or a frame was there
  double stall_cut_s = 0;            // slept because of a cut (write before modify)
  std::uint64_t resident_bytes = 0;  // of tiles that stay
  std::uint64_t frame_bytes = 0;     // through which the others pass

  // What a cache counted that came behind those counted here; sizes are its own.
  void add(const PagerStats& later);
};
std::vector<Stat> stats_of(const PagerStats& stats);

class TileCache {
 public:
  // `device`: where tiles of that tier are at home; null if there are none. That, `io`, `store`,
  // `pool` and `trace` (may be null) are borrowed.
  static Result<std::unique_ptr<TileCache>> open(IoQueue& io, Store& store, Pool& pool,
                                                 const Homes& homes, Device* device, Trace* trace);
  ~TileCache();  // waits for its I/O; what was acquired need not have been released
  TileCache(const TileCache&) = delete;
  TileCache& operator=(const TileCache&) = delete;

  bool resident(std::uint64_t tile) const;
  // Reads the resident tiles of a recovered store. REQUIRES: nothing was acquired before.
  Result<> load_residents();

  // Tiles that are not resident, to be read in this order, each for one acquire(), as frames become
  // free. One that is in use, or still being written, holds back those behind it.
  void prefetch(std::span<const std::uint64_t> tiles);
  // Whatever was prefetched of these, which ascend, is not acquired: reads that have not begun do
  // not begin. REQUIRES: none is acquired.
  void do_without(std::span<const std::uint64_t> tiles);
  // Clients that prefetch tell themselves apart by a number.
  std::uint64_t new_reader();
  // Who prefetches from now on. Unless that is who did before (true), what was prefetched and not
  // acquired is not wanted any more.
  bool prefetch_for(std::uint64_t reader);

  enum class Use : std::uint8_t {
    read,
    modify,
    create,  // nothing is read: zeros
  };
  // The tile's bytes, verified, where it is at home or in a frame of the host, until it is
  // released. Waits, for its last user too, and works for the pool meanwhile. REQUIRES: if it was
  // acquired it has been released; unless resident or created it was prefetched, as the next one.
  Result<Buffer> acquire(std::uint64_t tile, Use use);
  // `done` passes when nobody reads or changes the bytes any more.
  void release(std::uint64_t tile, const Event& done);
  // The bytes changed and are at `step`: they are written behind this, or stay, if resident.
  void release_changed(std::uint64_t tile, std::uint64_t step, const Event& done);
  // Waits until what was released has its checksums and is with the disk (not: written).
  Result<> settle();
  // After an error: what failed is tried again.
  void go_on();

  // Copies what lies in the store into another one, in which nothing is written yet; every tile is
  // checked on its way. The cache stays as it is, stopped or not. REQUIRES: nothing is acquired, no
  // cut under way; `other` is of the same tiles and has recovered.
  Result<> copy_to(Store& other);
  // From here on that is the store; what is in memory is written there by and by. REQUIRES:
  // copy_to().
  void move_to(Store& other);

  // Marks the cut: the tiles' present contents belong to it. REQUIRES: settle() after the last
  // release, store.can_cut().
  void begin_cut();
  // Any one thread, once after begin_cut(): writes changed residents, those first that were changed
  // first, and waits for the cut's writes in flight. Whoever wants to change such a resident first
  // waits for its write. After an error the cut is to be abandoned.
  Result<> finish_cut();

  // --- client-managed tiles (client_managed.cpp): a client that has no order says itself which
  // frame holds which tile, and until when. Reading, writing, checksums and cuts are those of
  // residents. REQUIRES: a budget of frames alone, nothing prefetched or acquired.
  std::span<std::byte> frames(std::uint64_t first, std::uint64_t count);
  // Begins to read the tile into the frame.
  void admit(std::uint64_t tile, std::uint64_t frame);
  // Whether reading it is over.
  bool arrived(std::uint64_t tile) const;
  // Why the bytes of one of these tiles, which have arrived, are not those that were written.
  std::optional<Error> why_unreadable(std::uint64_t first, std::uint64_t count) const;
  // What lies in the frame is the tile's content now, at `step`. REQUIRES: may_change().
  void change(std::uint64_t tile, std::uint64_t frame, std::uint64_t step);
  // Nobody writes what is in its frame, nor does a cut still want that written.
  bool may_change(std::uint64_t tile) const;
  bool clean(std::uint64_t tile) const;  // its slot holds what its frame holds
  // Begins to write it. Nothing if it is clean or being written.
  void write_out(std::uint64_t tile);
  // It leaves its frame to others. REQUIRES: arrived() and clean().
  void dismiss(std::uint64_t tile);
  // Works for the pool until `ready`, or until a write was tried too often: that error.
  Result<> wait_for(const char* what, const std::function<bool()>& ready);
  Result<> failure() const;

  PagerStats stats() const;
  // What should hold of the cache at any time, and does not. Any thread; looks at every tile.
  std::optional<std::string> broken_invariant() const;

 private:
  using Clock = Trace::Clock;
  enum class State : std::uint8_t { on_disk, reading, in_memory, leaving };
  struct Tile {
    State state = State::on_disk;
    bool resident = false;  // or a client-managed tile
    bool client_managed = false;
    bool on_device = false;    // resident there
    bool in_use = false;       // acquired
    bool unwanted = false;     // forgotten while it was on its way in
    bool dirty = false;        // resident only: newer than its slot
    bool cut_pending = false;  // resident only: must be written before it is modified
    bool writing = false;      // resident only: until its write is done or given up for good
    bool of_cut = false;       // its write, under way, belongs to the present cut
    std::uint8_t attempts = 0;
    std::uint64_t frame = 0;              // of the host, or of the device
    std::optional<std::uint64_t> bounce;  // of the host, while it passes to or from the store
    std::uint64_t step = 0;               // of the contents
    std::uint64_t changed = 0;            // resident only: when, counted in changes
  };

  TileCache(IoQueue& io, Store& store, Pool& pool, const Homes& homes, TileMemory memory,
            Trace* trace);
  std::span<std::byte> frame_of(const Tile& tile);  // of the host
  Buffer home_of(const Tile& tile);                 // where it is used
  void take_bounce(Tile& tile) EBB_REQUIRES(mutex_);
  void give_bounce_back(Tile& tile) EBB_REQUIRES(mutex_);
  std::span<std::byte> bytes_of(std::uint64_t tile) EBB_EXCLUDES(mutex_);
  void take_frame(Tile& tile) EBB_REQUIRES(mutex_);
  void leave_memory(Tile& tile) EBB_REQUIRES(mutex_);
  void count_frames() EBB_REQUIRES(mutex_);
  void tell_all() EBB_REQUIRES(mutex_);
  // Works for the pool until `ready`, asked under the lock, or an error.
  void wait(double PagerStats::* stall, const char* what, const std::function<bool()>& ready);
  void slept_for(double PagerStats::* stall, const char* what, double seconds);

  void start_reads() EBB_REQUIRES(mutex_);
  void submit_read(std::uint64_t tile) EBB_REQUIRES(mutex_);
  void read_done(std::uint64_t tile, const Result<>& result);
  void arrived(std::uint64_t tile, const Result<>& result);
  void is_here(std::uint64_t tile) EBB_REQUIRES(mutex_);
  Result<> submit_write(std::uint64_t tile);
  void write_behind(std::uint64_t tile);
  void write_done(std::uint64_t tile, Store::Write write, const Result<>& result);
  // False: it was tried too often.
  bool again_later(std::uint64_t tile) EBB_REQUIRES(mutex_);
  void failed(std::uint64_t tile, const Error& error) EBB_REQUIRES(mutex_);
  void stop(std::uint64_t tile, const Error& error) EBB_REQUIRES(mutex_);
  void try_what_is_due() EBB_EXCLUDES(mutex_);
  std::optional<std::uint64_t> next_due(Clock::time_point now) EBB_EXCLUDES(mutex_);

  void wait_until_quiet();
  Result<> copy_tile(std::uint64_t tile, Store& other, std::span<std::byte> room);

  std::vector<std::uint64_t> pending_of_cut() const;
  Result<> write_residents();
  void write_resident(std::uint64_t tile);
  void fetch(std::uint64_t tile);
  void managed_tile_written(std::uint64_t tile, const Result<>& result) EBB_REQUIRES(mutex_);
  void resident_written(std::uint64_t tile, const Result<>& result) EBB_REQUIRES(mutex_);
  void wait_for_cut_writes(const std::function<bool()>& ready) EBB_REQUIRES(mutex_);

  static std::optional<std::string> broken_of(const Tile& tile);
  std::optional<std::string> broken_of_places() const EBB_REQUIRES(mutex_);
  std::optional<std::string> broken_of_counts() const EBB_REQUIRES(mutex_);

  // Constant, but for what lies in the memory; move_to() changes the store.
  IoQueue& io_;
  Store* store_;
  Pool& pool_;
  const PagerTrace trace_;
  TileMemory memory_;
  const std::uint64_t most_reads_;  // at once

  // Guarded by mutex_.
  mutable Mutex mutex_;
  Condition changed_;  // for finish_cut(); acquire() and settle() sleep in the pool
  std::vector<Tile> tiles_ EBB_GUARDED_BY(mutex_);
  FreePlaces free_ EBB_GUARDED_BY(mutex_);
  ReadAhead wanted_ EBB_GUARDED_BY(mutex_);
  InFlight in_flight_ EBB_GUARDED_BY(mutex_);
  PagerFailures failures_ EBB_GUARDED_BY(mutex_);
  CutUnderWay cut_ EBB_GUARDED_BY(mutex_);
  PagerStats stats_ EBB_GUARDED_BY(mutex_);
};

}  // namespace ebb::libswap
