// A TileCache changes its store: the way out of a disk that fails, or is full.
#include "ebb/libswap/pager/tile_cache.h"

namespace ebb::libswap {

// Nothing is on its way in or out, nor about to be tried again.
void TileCache::wait_until_quiet() {
  pool_.help_until([this] {
    try_what_is_due();
    const MutexLock lock(mutex_);
    return in_flight_.all() == 0 && failures_.none_to_try();
  });
}

Result<> TileCache::copy_to(Store& other) {
  wait_until_quiet();
  EBB_TRY_ASSIGN(AlignedBuffer room, AlignedBuffer::allocate(memory_.tile_bytes()));
  for (std::uint64_t tile = 0; tile < store_->superblock().tiles; ++tile)
    EBB_TRY(copy_tile(tile, other, room.bytes()));
  return {};
}

Result<> TileCache::copy_tile(std::uint64_t number, Store& other, std::span<std::byte> room) {
  {
    const MutexLock lock(mutex_);
    const Tile& tile = tiles_[number];
    if (tile.resident || tile.state == State::leaving) return {};  // written out of memory
  }
  const Store::Place from = store_->read_place(number);
  EBB_TRY(io_.read(from.file, from.offset, room));
  EBB_TRY(store_->verify(number, room));
  EBB_TRY_ASSIGN(Store::Write write, other.begin_write(number, store_->step_of(number)));
  other.seal(write, room);
  EBB_TRY(io_.write(write.place.file, write.place.offset, room));
  other.wrote(std::move(write));
  return {};
}

void TileCache::move_to(Store& other) {
  const MutexLock lock(mutex_);
  EBB_CHECK(in_flight_.all() == 0);
  for (std::uint64_t number = 0; number < tiles_.size(); ++number) {
    Tile& tile = tiles_[number];
    if (!tile.resident) continue;
    if (!tile.dirty) tile.step = store_->step_of(number);
    tile.dirty = true;
  }
  store_ = &other;
}

}  // namespace ebb::libswap
