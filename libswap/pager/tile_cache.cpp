#include "ebb/libswap/pager/tile_cache.h"

#include <algorithm>

#include "ebb/libswap/sys/process.h"
#include "ebb/libswap/sys/when_memory.h"

namespace ebb::libswap {

Result<std::unique_ptr<TileCache>> TileCache::open(IoQueue& io, Store& store, Pool& pool,
                                                   const Homes& homes, Device* device,
                                                   Trace* trace) {
  std::unique_ptr<TileCache> cache(new TileCache(io, store, pool, homes, trace));
  const std::uint64_t tile_bytes = cache->tile_bytes_;
  EBB_TRY_ASSIGN(cache->memory_, AlignedBuffer::allocate(homes.host_tiles() * tile_bytes));
  static_cast<void>(io.keep_ready(cache->memory_.bytes(), tile_bytes));  // io_notes says why not
  if (device != nullptr && homes.host_tiles() > 0) {
    EBB_TRY_ASSIGN(cache->pinned_, device->pin(cache->memory_.bytes()));
  }
  if (const std::uint64_t there = homes.count(Tier::device); there > 0) {
    EBB_CHECK(device != nullptr);
    EBB_TRY_ASSIGN(cache->device_memory_, device->allocate(there * tile_bytes));
  }
  return cache;
}

TileCache::TileCache(IoQueue& io, Store& store, Pool& pool, const Homes& homes, Trace* trace)
    : io_(io),
      store_(&store),
      pool_(pool),
      trace_(trace),
      tile_bytes_(store.superblock().tile_bytes),
      most_reads_(std::max<std::uint64_t>(1, homes.frames / 2)),
      rank_(store.superblock().rank),
      tiles_(store.superblock().tiles) {
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
  for (std::uint64_t i = 0; i < homes.frames; ++i) free_frames_.push_back(here++);
  for (std::uint64_t i = 0; i < homes.bounces(); ++i) free_bounces_.push_back(here++);
  stats_.resident_bytes = (homes.tiles.size() - homes.count(Tier::nvme)) * tile_bytes_;
  stats_.frame_bytes = (homes.frames + homes.bounces()) * tile_bytes_;
}

TileCache::~TileCache() {
  {
    const MutexLock lock(mutex_);
    wanted_.clear();
  }
  pool_.help_until([this] {
    const MutexLock lock(mutex_);
    return in_flight_ == 0;
  });
  io_.let_go(memory_.bytes());
}

bool TileCache::resident(std::uint64_t tile) const {
  const MutexLock lock(mutex_);
  return tiles_[tile].resident;
}

std::span<std::byte> TileCache::frame_of(const Tile& tile) {
  EBB_CHECK(tile.bounce || !tile.on_device);
  return memory_.bytes().subspan(tile.bounce.value_or(tile.frame) * tile_bytes_, tile_bytes_);
}

Buffer TileCache::home_of(const Tile& tile) {
  if (!tile.on_device) return buffer_of(frame_of(tile));
  return device_memory_.buffer().sub(tile.frame * tile_bytes_, tile_bytes_);
}

void TileCache::take_bounce(Tile& tile) {
  EBB_CHECK(!free_bounces_.empty());
  tile.bounce = free_bounces_.back();
  free_bounces_.pop_back();
}

void TileCache::give_bounce_back(Tile& tile) {
  if (!tile.bounce) return;
  free_bounces_.push_back(*tile.bounce);
  tile.bounce.reset();
}

std::span<std::byte> TileCache::bytes_of(std::uint64_t tile) {
  const MutexLock lock(mutex_);
  return frame_of(tiles_[tile]);
}

void TileCache::take_frame(Tile& tile) {
  tile.frame = free_frames_.back();
  free_frames_.pop_back();
  count_frames();
}

void TileCache::count_frames() {
  if (trace_ == nullptr) return;
  const std::uint64_t frames = memory_.size() / tile_bytes_ - free_frames_.size();
  trace_->count(rank_, "bytes of tiles in memory", frames * tile_bytes_);
}

void TileCache::leave_memory(Tile& tile) {
  tile.state = State::on_disk;
  tile.unwanted = false;
  free_frames_.push_back(tile.frame);
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
    return error_.has_value() || ready();
  });
  slept_for(stall, what, slept);
}

void TileCache::slept_for(double PagerStats::* stall, const char* what, double slept) {
  if (slept == 0) return;
  if (trace_ != nullptr) {
    const auto end = Clock::now();
    const std::chrono::duration<double> length(slept);
    trace_->add(rank_, Lane::wait, what, end - std::chrono::duration_cast<Clock::duration>(length),
                end);
  }
  const MutexLock lock(mutex_);
  stats_.*stall += slept;
}

void TileCache::transferred(Lane lane, std::uint64_t tile, Clock::time_point begin) {
  if (trace_ != nullptr)
    trace_->add(rank_, lane, lane == Lane::read ? "page-in" : "write-behind", begin, Clock::now(),
                {tile, tile_bytes_});
}

// --- in -----------------------------------------------------------------------------------------

void TileCache::prefetch(std::span<const std::uint64_t> tiles) {
  const MutexLock lock(mutex_);
  for (const std::uint64_t tile : tiles) {
    EBB_CHECK(!tiles_[tile].resident);
    wanted_.push_back(tile);
  }
  start_reads();
}

void TileCache::do_without(std::span<const std::uint64_t> tiles) {
  const MutexLock lock(mutex_);
  std::erase_if(wanted_,
                [&](std::uint64_t tile) { return std::ranges::binary_search(tiles, tile); });
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
  return ++readers_;
}

bool TileCache::prefetch_for(std::uint64_t reader) {
  const MutexLock lock(mutex_);
  if (std::exchange(reader_, reader) == reader) return true;
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
  while (!error_ && reads_ < most_reads_ && !free_frames_.empty() && !wanted_.empty()) {
    const std::uint64_t number = wanted_.front();
    Tile& tile = tiles_[number];
    if (tile.state != State::on_disk) return;
    wanted_.pop_front();
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
      transferred(Lane::read, tile, begin);
      read_done(tile, result);
    };
  });
  ++in_flight_;
  ++reads_;
  io_.submit(std::move(request));
}

void TileCache::read_done(std::uint64_t tile, const Result<>& result) {
  {
    const MutexLock lock(mutex_);
    --reads_;
    start_reads();
  }
  if (!result) return arrived(tile, result);
  pool_.post([this, tile] {
    const TraceSpan span(trace_, rank_, Lane::compute, "verify");
    arrived(tile, or_no_memory([&] { return store_->verify(tile, bytes_of(tile)); }));
  });
}

void TileCache::arrived(std::uint64_t number, const Result<>& result) {
  Buffer from, to;
  {
    const MutexLock lock(mutex_);
    --in_flight_;
    Tile& tile = tiles_[number];
    EBB_CHECK(tile.state == State::reading);
    if (tile.unwanted) return leave_memory(tile);
    if (!result && !tile.guest) return failed(number, result.error());
    if (!result && again_later(number)) return;
    if (!result)
      when_memory(
          [&]() EBB_REQUIRES(mutex_) { unreadable_.insert_or_assign(number, result.error()); });
    if (result && tile.guest) stats_.read_bytes += tile_bytes_;
    if (!tile.on_device) return is_here(number);
    ++in_flight_;
    from = buffer_of(frame_of(tile));
    to = home_of(tile);
  }
  copy(from, to, {}).then([this, number] {
    const MutexLock lock(mutex_);
    --in_flight_;
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
      return !tiles_[number].on_device || !free_bounces_.empty();
    });
    const MutexLock lock(mutex_);
    if (error_) break;
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
  if (error_) return *error_;
  return {};
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
      return !free_frames_.empty() && tiles_[number].state == State::on_disk;
    });
  } else {
    wait(&PagerStats::stall_read_s, "page-in", [&]() EBB_REQUIRES(mutex_) {
      const Tile& tile = tiles_[number];
      return tile.state == State::in_memory && !tile.in_use;
    });
  }
  const MutexLock lock(mutex_);
  if (error_) return *error_;
  Tile& tile = tiles_[number];
  EBB_CHECK(!tile.in_use);
  tile.in_use = true;
  if (!stays && use == Use::create) {
    tile.state = State::in_memory;
    take_frame(tile);
    std::ranges::fill(frame_of(tile), std::byte{0});
  } else if (!stays) {
    stats_.read_bytes += tile_bytes_;
  }
  return home_of(tile);
}

// --- out ----------------------------------------------------------------------------------------

void TileCache::release(std::uint64_t number, const Event& done) {
  {
    const MutexLock lock(mutex_);
    ++in_flight_;
  }
  done.then([this, number] {
    const MutexLock lock(mutex_);
    --in_flight_;
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
    ++in_flight_;
    ++releasing_;
    if (!tile.resident) {
      tile.state = State::leaving;
      stats_.written_bytes += tile_bytes_;
    }
  }
  done.then([this, number] {
    {
      const MutexLock lock(mutex_);
      Tile& tile = tiles_[number];
      tile.in_use = false;
      if (tile.resident) {
        tile.dirty = true;
        tile.changed = ++changes_;
        --in_flight_;
        --releasing_;
        return tell_all();
      }
    }
    pool_.post([this, number] {
      write_behind(number);
      const MutexLock lock(mutex_);
      --in_flight_;
      --releasing_;
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
    const TraceSpan span(trace_, rank_, Lane::compute, "checksum");
    store_->seal(write, bytes);
  }
  const Store::Place place = write.place;
  auto done = [this, number, write = std::move(write),
               begin = Clock::now()](const Result<>& result) mutable {
    transferred(Lane::write, number, begin);
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
    ++in_flight_;  // behind what may find no memory
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
  --in_flight_;
  if (result) store_->wrote(std::move(write));
  Tile& tile = tiles_[number];
  if (tile.resident) return resident_written(number, result);
  if (!result) return failed(number, result.error());
  tile.attempts = 0;
  if (std::exchange(tile.of_cut, false)) --cut_writes_;
  leave_memory(tile);
}

Result<> TileCache::settle() {
  wait(&PagerStats::stall_read_s, "settle",
       [this]() EBB_REQUIRES(mutex_) { return releasing_ == 0; });
  const MutexLock lock(mutex_);
  if (error_) return *error_;
  return {};
}

PagerStats TileCache::stats() const {
  const MutexLock lock(mutex_);
  return stats_;
}

}  // namespace ebb::libswap
