// What a TileCache does about reads and writes that fail.
#include "ebb/libswap/pager/tile_cache.h"

namespace ebb::libswap {

bool TileCache::again_later(std::uint64_t number) {
  Tile& tile = tiles_[number];
  if (!failures_.again_later(number, tile.attempts)) return false;
  ++tile.attempts;
  ++stats_.retries;
  return true;
}

void TileCache::failed(std::uint64_t tile, const Error& error) {
  if (!again_later(tile)) stop(tile, error);
}

void TileCache::stop(std::uint64_t tile, const Error& error) {
  tiles_[tile].attempts = 0;
  failures_.give_up(tile, error);
  tell_all();
}

void TileCache::try_what_is_due() {
  const auto now = Clock::now();
  while (const std::optional<std::uint64_t> tile = next_due(now))
    if (resident(*tile))
      write_resident(*tile);
    else
      write_behind(*tile);
}

// Begins the reads that are due, up to the next write.
std::optional<std::uint64_t> TileCache::next_due(Clock::time_point now) {
  const MutexLock lock(mutex_);
  while (const std::optional<std::uint64_t> tile = failures_.take_due(now)) {
    if (tiles_[*tile].state != State::reading) return tile;
    submit_read(*tile);
  }
  return std::nullopt;
}

void TileCache::go_on() {
  {
    const MutexLock lock(mutex_);
    for (Tile& tile : tiles_) tile.attempts = 0;
    failures_.go_on();
  }
  try_what_is_due();
  const MutexLock lock(mutex_);
  start_reads();
}

}  // namespace ebb::libswap
