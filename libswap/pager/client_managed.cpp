// Guests of a TileCache: tiles whose frames and stay are their client's affair.
#include <utility>

#include "ebb/libswap/pager/tile_cache.h"

namespace ebb::libswap {

std::span<std::byte> TileCache::frames(std::uint64_t first, std::uint64_t count) {
  return memory_.at(first, count);
}

void TileCache::admit(std::uint64_t number, std::uint64_t frame) {
  const MutexLock lock(mutex_);
  Tile& tile = tiles_[number];
  EBB_CHECK(tile.state == State::on_disk);
  tile.resident = tile.client_managed = true;
  tile.state = State::reading;
  tile.frame = frame;
  submit_read(number);
}

bool TileCache::arrived(std::uint64_t tile) const {
  const MutexLock lock(mutex_);
  return tiles_[tile].state == State::in_memory;
}

std::optional<Error> TileCache::why_unreadable(std::uint64_t first, std::uint64_t count) const {
  const MutexLock lock(mutex_);
  return failures_.why_unreadable(first, count);
}

void TileCache::change(std::uint64_t number, std::uint64_t frame, std::uint64_t step) {
  const MutexLock lock(mutex_);
  Tile& tile = tiles_[number];
  EBB_CHECK(!tile.writing && !tile.cut_pending && tile.state != State::reading);
  tile.resident = tile.client_managed = true;
  tile.state = State::in_memory;
  tile.frame = frame;
  tile.step = step;
  tile.dirty = true;
  tile.changed = cut_.count_change();
}

bool TileCache::may_change(std::uint64_t tile) const {
  const MutexLock lock(mutex_);
  return !tiles_[tile].writing && !tiles_[tile].cut_pending;
}

bool TileCache::clean(std::uint64_t tile) const {
  const MutexLock lock(mutex_);
  return !tiles_[tile].dirty;
}

void TileCache::write_out(std::uint64_t number) {
  {
    const MutexLock lock(mutex_);
    Tile& tile = tiles_[number];
    if (!tile.dirty || tile.writing) return;
    tile.writing = true;
    if (tile.cut_pending) cut_.begin_resident();
    in_flight_.begin_release();
  }
  const auto write = [this, number] {
    write_resident(number);
    const MutexLock lock(mutex_);
    in_flight_.end_release();
    tell_all();
  };
  // Its client may wait for nothing for a long time, and a cut for this.
  if (pool_.threads() == 1) return write();
  pool_.post(write);
}

void TileCache::managed_tile_written(std::uint64_t number, const Result<>& result) {
  if (!result) return failed(number, result.error());
  Tile& tile = tiles_[number];
  tile.writing = tile.dirty = false;
  tile.attempts = 0;
  stats_.written_bytes += memory_.tile_bytes();
  if (std::exchange(tile.of_cut, false)) cut_.wrote();
  tell_all();
}

void TileCache::dismiss(std::uint64_t number) {
  const MutexLock lock(mutex_);
  Tile& tile = tiles_[number];
  EBB_CHECK(tile.client_managed && tile.state == State::in_memory && !tile.dirty);
  failures_.readable(number);
  tile.resident = tile.client_managed = false;
  tile.state = State::on_disk;
}

Result<> TileCache::wait_for(const char* what, const std::function<bool()>& ready) {
  bool is_ready = false;
  const double slept = pool_.help_until([&] {
    try_what_is_due();
    is_ready = ready();
    return is_ready || !failure();
  });
  slept_for(&PagerStats::stall_read_s, what, slept);
  return is_ready ? Result<>() : failure();
}

Result<> TileCache::failure() const {
  const MutexLock lock(mutex_);
  return failures_.why();
}

}  // namespace ebb::libswap
