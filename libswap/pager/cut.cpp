// Cuts of a TileCache: what is in memory becomes part of a generation while the next step runs.
#include <algorithm>

#include "ebb/libswap/pager/tile_cache.h"
#include "ebb/libswap/sys/when_memory.h"

namespace ebb::libswap {
namespace {

constexpr std::chrono::milliseconds kGlance{5};

}  // namespace

void TileCache::begin_cut() {
  const MutexLock lock(mutex_);
  EBB_CHECK(in_flight_.releases() == 0 && cut_.residents() == 0);
  std::uint64_t under_way = 0;
  for (Tile& tile : tiles_) {
    tile.cut_pending = tile.resident && tile.dirty && !tile.writing;
    tile.of_cut = tile.writing || (!tile.resident && tile.state == State::leaving);
    if (tile.of_cut) ++under_way;
  }
  cut_.begin(under_way);
}

// Sleeps until `ready`; tries again what failed and is due.
void TileCache::wait_for_cut_writes(const std::function<bool()>& ready) {
  while (!ready()) {
    changed_.wait_for(mutex_, kGlance);
    const MutexUnlock unlocked(mutex_);
    try_what_is_due();
  }
}

// In the order in which they were changed: the next step, which may not change them before they are
// written, comes to them in that order, too.
std::vector<std::uint64_t> TileCache::pending_of_cut() const {
  const MutexLock lock(mutex_);
  std::vector<std::uint64_t> pending;
  for (std::uint64_t tile = 0; tile < tiles_.size(); ++tile)
    if (tiles_[tile].cut_pending) pending.push_back(tile);
  std::ranges::stable_sort(pending, {}, [this](std::uint64_t tile) EBB_REQUIRES(mutex_) {
    return tiles_[tile].changed;
  });
  return pending;
}

// With the step's priority: all that the cut wants written the next step waits for.
Result<> TileCache::write_residents() {
  for (const std::uint64_t tile : pending_of_cut()) {
    {
      const MutexLock lock(mutex_);
      wait_for_cut_writes(
          [this]() EBB_REQUIRES(mutex_) { return cut_.residents() < kMostResidentWrites; });
      if (cut_.error()) return *cut_.error();
      EBB_TRY(failures_.why());
      // A client-managed tile may have been written, and have left, before its turn came.
      if (!tiles_[tile].cut_pending || tiles_[tile].writing) continue;
      tiles_[tile].writing = true;
      cut_.begin_resident();
    }
    write_resident(tile);
  }
  return {};
}

void TileCache::write_resident(std::uint64_t tile) {
  fetch(tile);
  // A device that failed brought nothing.
  const Device* const device = memory_.device();
  Result<> submitted = device != nullptr ? device->status() : Result<>();
  if (submitted) submitted = or_no_memory([&] { return submit_write(tile); });
  if (submitted) return;
  const MutexLock lock(mutex_);
  resident_written(tile, submitted);
}

// A tile at home on the device is written out of a frame of the host. It is not changed before it
// is written: a repeated write finds it there.
void TileCache::fetch(std::uint64_t number) {
  Buffer from, to;
  {
    const MutexLock lock(mutex_);
    Tile& tile = tiles_[number];
    if (!tile.on_device || tile.bounce) return;
    take_bounce(tile);
    from = home_of(tile);
    to = buffer_of(frame_of(tile));
  }
  pool_.help_until(copy(from, to, {}));
}

// A resident tile whose write failed is still whole in memory and changed: the next cut writes it.
void TileCache::resident_written(std::uint64_t number, const Result<>& result) {
  Tile& tile = tiles_[number];
  if (!tile.cut_pending) return managed_tile_written(number, result);
  if (!result && !cut_.error() && again_later(number)) return;
  cut_.end_resident();
  tile.writing = false;
  tile.attempts = 0;
  give_bounce_back(tile);
  tile.cut_pending = false;  // where it failed, the cut is lost
  if (result) {
    tile.dirty = false;
    stats_.cut_bytes += memory_.tile_bytes();
  } else {
    when_memory([&]() EBB_REQUIRES(mutex_) { cut_.fail(result.error()); });
  }
  tell_all();
}

Result<> TileCache::finish_cut() {
  const TraceSpan span = trace_.span(Lane::commit, "cut writes");
  const Result<> written = or_no_memory([this] { return write_residents(); });
  const MutexLock lock(mutex_);
  if (!written) cut_.fail(written.error());
  wait_for_cut_writes([this]() EBB_REQUIRES(mutex_) { return cut_.residents() == 0; });
  for (Tile& tile : tiles_) tile.cut_pending = false;
  tell_all();
  wait_for_cut_writes(
      [this]() EBB_REQUIRES(mutex_) { return cut_.writes() == 0 || failures_.stopped(); });
  if (cut_.writes() != 0) cut_.fail(failures_.why().error());
  if (cut_.error()) return *cut_.error();
  return {};
}

}  // namespace ebb::libswap
