#include "ebb/libswap/pager/tile_cache.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "ebb/libswap/sys/process.h"
#include "ebb/libswap/sys/when_memory.h"

namespace ebb::libswap {
namespace {

// So many places, from `first` on.
std::vector<std::uint64_t> places_from(std::uint64_t first, std::uint64_t count) {
  std::vector<std::uint64_t> places(count);
  std::iota(places.begin(), places.end(), first);
  return places;
}

}  // namespace

Result<std::unique_ptr<TileCache>> TileCache::open(IoQueue& io, Store& store, Pool& pool,
                                                   const Homes& homes, Device* device,
                                                   Trace* trace) {
  const std::uint64_t tile_bytes = store.superblock().tile_bytes;
  EBB_TRY_ASSIGN(TileMemory memory, TileMemory::allocate(homes, tile_bytes, device));
  std::unique_ptr<TileCache> cache(new TileCache(io, store, pool, homes, std::move(memory), trace));
  // Let go of by its destructor, so not before there is one. io_notes says why not.
  static_cast<void>(io.register_buffers(cache->memory_.all(), tile_bytes));
  return cache;
}

TileCache::TileCache(IoQueue& io, Store& store, Pool& pool, const Homes& homes, TileMemory memory,
                     Trace* trace)
    : io_(io),
      store_(&store),
      pool_(pool),
      trace_(trace, store.superblock().rank, memory.tile_bytes()),
      memory_(std::move(memory)),
      most_reads_(std::max<std::uint64_t>(1, homes.frames / 2)),
      tiles_(store.superblock().tiles),
      free_(places_from(homes.count(Tier::host), homes.frames),
            places_from(homes.count(Tier::host) + homes.frames, homes.bounces())) {
  EBB_CHECK(homes.tiles.size() == tiles_.size());
  EBB_CHECK(homes.count(Tier::nvme) == 0 || homes.frames > 0);
  std::uint64_t here = 0, there = 0;
  for (std::uint64_t i = 0; i < tiles_.size(); ++i) {
    if (homes.tiles[i] == Tier::nvme) continue;
    Tile& tile = tiles_[i];
    tile.resident = true;
    tile.on_device = homes.tiles[i] == Tier::device;
    tile.state = State::in_memory;
    tile.frame = tile.on_device ? there++ : here++;
  }
  const std::uint64_t tile_bytes = memory_.tile_bytes();
  stats_.resident_bytes = (homes.tiles.size() - homes.count(Tier::nvme)) * tile_bytes;
  stats_.frame_bytes = (homes.frames + homes.bounces()) * tile_bytes;
}

TileCache::~TileCache() {
  {
    const MutexLock lock(mutex_);
    wanted_.clear();
  }
  pool_.help_until([this] {
    const MutexLock lock(mutex_);
    return in_flight_.all() == 0;
  });
  io_.unregister_buffers(memory_.all());
}

bool TileCache::resident(std::uint64_t tile) const {
  const MutexLock lock(mutex_);
  return tiles_[tile].resident;
}

std::span<std::byte> TileCache::frame_of(const Tile& tile) {
  EBB_CHECK(tile.bounce || !tile.on_device);
  return memory_.at(tile.bounce.value_or(tile.frame));
}

Buffer TileCache::home_of(const Tile& tile) {
  if (!tile.on_device) return buffer_of(frame_of(tile));
  return memory_.on_device(tile.frame);
}

void TileCache::take_bounce(Tile& tile) { tile.bounce = free_.take_bounce(); }

void TileCache::give_bounce_back(Tile& tile) {
  if (!tile.bounce) return;
  free_.give_bounce(*tile.bounce);
  tile.bounce.reset();
}

std::span<std::byte> TileCache::bytes_of(std::uint64_t tile) {
  const MutexLock lock(mutex_);
  return frame_of(tiles_[tile]);
}

void TileCache::take_frame(Tile& tile) {
  tile.frame = free_.take_frame();
  count_frames();
}

void TileCache::count_frames() { trace_.in_memory(memory_.places() - free_.frames().size()); }

void TileCache::leave_memory(Tile& tile) {
  tile.state = State::on_disk;
  tile.unwanted = false;
  free_.give_frame(tile.frame);
  count_frames();
  start_reads();
  tell_all();
}

void TileCache::tell_all() {
  changed_.notify_all();
  pool_.wake();
}

void TileCache::wait(double PagerStats::* stall, const char* what,
                     const std::function<bool()>& ready) {
  const double slept = pool_.help_until([&] {
    try_what_is_due();
    const MutexLock lock(mutex_);
    return failures_.stopped() || ready();
  });
  slept_for(stall, what, slept);
}

void TileCache::slept_for(double PagerStats::* stall, const char* what, double slept) {
  if (slept == 0) return;
  trace_.slept(what, slept);
  const MutexLock lock(mutex_);
  stats_.*stall += slept;
}

// --- in -----------------------------------------------------------------------------------------

void TileCache::prefetch(std::span<const std::uint64_t> tiles) {
  const MutexLock lock(mutex_);
  for (const std::uint64_t tile : tiles) {
    EBB_CHECK(!tiles_[tile].resident);
    wanted_.add(tile);
  }
  start_reads();
}

void TileCache::do_without(std::span<const std::uint64_t> tiles) {
  const MutexLock lock(mutex_);
  wanted_.forget(tiles);
  for (const std::uint64_t number : tiles) {
    Tile& tile = tiles_[number];
    if (tile.resident || tile.in_use) continue;
    if (tile.state == State::reading) tile.unwanted = true;
    if (tile.state == State::in_memory) leave_memory(tile);
  }
  start_reads();
}

std::uint64_t TileCache::new_reader() {
  const MutexLock lock(mutex_);
  return wanted_.new_reader();
}

bool TileCache::prefetch_for(std::uint64_t reader) {
  const MutexLock lock(mutex_);
  if (wanted_.read_for(reader) == reader) return true;
  wanted_.clear();
  for (Tile& tile : tiles_) {
    if (tile.resident || tile.in_use) continue;
    if (tile.state == State::reading) tile.unwanted = true;
    if (tile.state == State::in_memory) leave_memory(tile);
  }
  return false;
}

// Half of the frames are read into at a time. Were all of them, a disk that shares its speed among
// what it is given would end them together: they would be computed together while it idles, and
// written together.
void TileCache::start_reads() {
  const auto may_read = [this]() EBB_REQUIRES(mutex_) {
    return !failures_.stopped() && in_flight_.reads() < most_reads_ && !free_.frames().empty();
  };
  while (may_read() && !wanted_.tiles().empty()) {
    const std::uint64_t number = wanted_.tiles().front();
    Tile& tile = tiles_[number];
    if (tile.state != State::on_disk) return;
    wanted_.begin_next();
    tile.state = State::reading;
    take_frame(tile);
    submit_read(number);
  }
}

void TileCache::submit_read(std::uint64_t tile) {
  const Store::Place place = store_->read_place(tile);
  IoRequest request{.kind = RawOp::Kind::read,
                    .file = place.file,
                    .offset = place.offset,
                    .data = frame_of(tiles_[tile]),
                    .priority = Priority::step,
                    .done = {}};
  when_memory([&] {
    request.done = [this, tile, begin = Clock::now()](const Result<>& result) {
      trace_.transferred(Lane::read, tile, begin);
      read_done(tile, result);
    };
  });
  in_flight_.begin_read();
  io_.submit(std::move(request));
}

void TileCache::read_done(std::uint64_t tile, const Result<>& result) {
  {
    const MutexLock lock(mutex_);
    in_flight_.disk_has_read();
    start_reads();
  }
  if (!result) return arrived(tile, result);
  pool_.post([this, tile] {
    const TraceSpan span = trace_.span(Lane::compute, "verify");
    arrived(tile, or_no_memory([&] { return store_->verify(tile, bytes_of(tile)); }));
  });
}

void TileCache::arrived(std::uint64_t number, const Result<>& result) {
  Buffer from, to;
  {
    const MutexLock lock(mutex_);
    in_flight_.end();
    Tile& tile = tiles_[number];
    EBB_CHECK(tile.state == State::reading);
    if (tile.unwanted) return leave_memory(tile);
    if (!result && !tile.client_managed) return failed(number, result.error());
    if (!result && again_later(number)) return;
    if (!result) failures_.unreadable(number, result.error());
    if (result && tile.client_managed) stats_.read_bytes += memory_.tile_bytes();
    if (!tile.on_device) return is_here(number);
    in_flight_.begin();
    from = buffer_of(frame_of(tile));
    to = home_of(tile);
  }
  copy(from, to, {}).then([this, number] {
    const MutexLock lock(mutex_);
    in_flight_.end();
    give_bounce_back(tiles_[number]);
    is_here(number);
  });
}

void TileCache::is_here(std::uint64_t tile) {
  tiles_[tile].state = State::in_memory;
  tiles_[tile].attempts = 0;
  tell_all();
}

Result<> TileCache::load_residents() {
  for (std::uint64_t number = 0; number < store_->superblock().tiles; ++number) {
    if (!resident(number)) continue;
    wait(&PagerStats::stall_read_s, "residents", [&]() EBB_REQUIRES(mutex_) {
      return !tiles_[number].on_device || !free_.bounces().empty();
    });
    const MutexLock lock(mutex_);
    if (failures_.stopped()) break;
    Tile& tile = tiles_[number];
    if (tile.on_device) take_bounce(tile);
    tile.state = State::reading;
    submit_read(number);
  }
  wait(&PagerStats::stall_read_s, "residents", [this]() EBB_REQUIRES(mutex_) {
    return std::ranges::none_of(tiles_,
                                [](const Tile& tile) { return tile.state == State::reading; });
  });
  const MutexLock lock(mutex_);
  return failures_.why();
}

Result<Buffer> TileCache::acquire(std::uint64_t number, Use use) {
  const bool stays = resident(number);
  if (stays) {
    wait(&PagerStats::stall_cut_s, "cut", [&]() EBB_REQUIRES(mutex_) {
      const Tile& tile = tiles_[number];
      return !tile.in_use && (use == Use::read || !tile.cut_pending);
    });
  } else if (use == Use::create) {
    wait(&PagerStats::stall_read_s, "frame", [&]() EBB_REQUIRES(mutex_) {
      return !free_.frames().empty() && tiles_[number].state == State::on_disk;
    });
  } else {
    wait(&PagerStats::stall_read_s, "page-in", [&]() EBB_REQUIRES(mutex_) {
      const Tile& tile = tiles_[number];
      return tile.state == State::in_memory && !tile.in_use;
    });
  }
  const MutexLock lock(mutex_);
  EBB_TRY(failures_.why());
  Tile& tile = tiles_[number];
  EBB_CHECK(!tile.in_use);
  tile.in_use = true;
  if (!stays && use == Use::create) {
    tile.state = State::in_memory;
    take_frame(tile);
    std::ranges::fill(frame_of(tile), std::byte{0});
  } else if (!stays) {
    stats_.read_bytes += memory_.tile_bytes();
  }
  return home_of(tile);
}

// --- out ----------------------------------------------------------------------------------------

void TileCache::release(std::uint64_t number, const Event& done) {
  {
    const MutexLock lock(mutex_);
    in_flight_.begin();
  }
  done.then([this, number] {
    const MutexLock lock(mutex_);
    in_flight_.end();
    Tile& tile = tiles_[number];
    tile.in_use = false;
    if (tile.resident) return tell_all();
    leave_memory(tile);
  });
}

void TileCache::release_changed(std::uint64_t number, std::uint64_t step, const Event& done) {
  {
    const MutexLock lock(mutex_);
    Tile& tile = tiles_[number];
    EBB_CHECK(tile.in_use && tile.state == State::in_memory);
    tile.step = step;
    in_flight_.begin_release();
    if (!tile.resident) {
      tile.state = State::leaving;
      stats_.written_bytes += memory_.tile_bytes();
    }
  }
  done.then([this, number] {
    {
      const MutexLock lock(mutex_);
      Tile& tile = tiles_[number];
      tile.in_use = false;
      if (tile.resident) {
        tile.dirty = true;
        tile.changed = cut_.count_change();
        in_flight_.end_release();
        return tell_all();
      }
    }
    pool_.post([this, number] {
      write_behind(number);
      const MutexLock lock(mutex_);
      in_flight_.end_release();
      tell_all();
    });
  });
}

// Takes the tile's checksums and gives it to the queue.
Result<> TileCache::submit_write(std::uint64_t number) {
  std::uint64_t step = 0;
  std::span<std::byte> bytes;
  {
    const MutexLock lock(mutex_);
    step = tiles_[number].step;
    bytes = frame_of(tiles_[number]);
  }
  EBB_TRY_ASSIGN(Store::Write write, store_->begin_write(number, step));
  {
    const TraceSpan span = trace_.span(Lane::compute, "checksum");
    store_->seal(write, bytes);
  }
  const Store::Place place = write.place;
  auto done = [this, number, write = std::move(write),
               begin = Clock::now()](const Result<>& result) mutable {
    trace_.transferred(Lane::write, number, begin);
    write_done(number, std::move(write), result);
  };
  IoRequest request{.kind = RawOp::Kind::write,
                    .file = place.file,
                    .offset = place.offset,
                    .data = bytes,
                    .priority = Priority::step,
                    .done = std::move(done)};
  {
    const MutexLock lock(mutex_);
    in_flight_.begin();  // behind what may find no memory
  }
  io_.submit(std::move(request));
  return {};
}

void TileCache::write_behind(std::uint64_t tile) {
  const Result<> submitted = or_no_memory([&] { return submit_write(tile); });
  if (submitted) return;
  const MutexLock lock(mutex_);
  stop(tile, submitted.error());
}

void TileCache::write_done(std::uint64_t number, Store::Write write, const Result<>& result) {
  const MutexLock lock(mutex_);
  in_flight_.end();
  if (result) store_->wrote(std::move(write));
  Tile& tile = tiles_[number];
  if (tile.resident) return resident_written(number, result);
  if (!result) return failed(number, result.error());
  tile.attempts = 0;
  if (std::exchange(tile.of_cut, false)) cut_.wrote();
  leave_memory(tile);
}

Result<> TileCache::settle() {
  wait(&PagerStats::stall_read_s, "settle",
       [this]() EBB_REQUIRES(mutex_) { return in_flight_.releases() == 0; });
  const MutexLock lock(mutex_);
  return failures_.why();
}

PagerStats TileCache::stats() const {
  const MutexLock lock(mutex_);
  return stats_;
}

}  // namespace ebb::libswap
