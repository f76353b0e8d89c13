// What a TileCache does about reads and writes that fail.
#include "ebb/libswap/pager/tile_cache.h"
#include "ebb/libswap/sys/when_memory.h"

namespace ebb::libswap {
namespace {

constexpr std::uint8_t kRetries = 3;
constexpr std::chrono::milliseconds kFirstRetry{2};  // then four times as long, each time

}  // namespace

bool TileCache::again_later(std::uint64_t number) {
  Tile& tile = tiles_[number];
  if (tile.attempts == kRetries) return false;
  const auto delay = kFirstRetry * (1 << 2 * tile.attempts);
  ++tile.attempts;
  ++stats_.retries;
  add_when_memory(again_, {number, Clock::now() + delay});
  return true;
}

void TileCache::failed(std::uint64_t tile, const Error& error) {
  if (!again_later(tile)) stop(tile, error);
}

void TileCache::stop(std::uint64_t tile, const Error& error) {
  tiles_[tile].attempts = 0;
  add_when_memory(given_up_, tile);
  if (!error_) when_memory([&]() EBB_REQUIRES(mutex_) { error_ = error; });
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
  for (auto one = again_.begin(); one != again_.end();) {
    if (one->due > now) {
      ++one;
      continue;
    }
    const std::uint64_t tile = one->tile;
    one = again_.erase(one);
    if (tiles_[tile].state != State::reading) return tile;
    submit_read(tile);
  }
  return std::nullopt;
}

void TileCache::go_on() {
  {
    const MutexLock lock(mutex_);
    error_.reset();
    for (Tile& tile : tiles_) tile.attempts = 0;
    for (const std::uint64_t tile : given_up_) add_when_memory(again_, {tile, Clock::now()});
    given_up_.clear();
  }
  try_what_is_due();
  const MutexLock lock(mutex_);
  start_reads();
}

}  // namespace ebb::libswap
