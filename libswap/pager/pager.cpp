#include "ebb/libswap/pager/pager.h"

#include <algorithm>

#include "ebb/libswap/sys/process.h"

namespace ebb::libswap {
namespace {

// Frames beyond this buy nothing on disks measured here; the rest of a budget becomes residency.
constexpr std::uint64_t kMostFrames = 16;
constexpr std::uint64_t kFrameBytesWorthHaving = 64u << 20;

// Tile i of n is resident when the even spread of R over n passes a whole number there.
bool spread(std::uint64_t tile, std::uint64_t tiles, std::uint64_t resident) {
  return (tile + 1) * resident / tiles > tile * resident / tiles;
}

}  // namespace

Result<Pager::Split> Pager::split(std::uint64_t tiles, std::uint64_t tile_bytes,
                                  std::uint64_t budget_bytes) {
  const std::uint64_t affordable = budget_bytes / tile_bytes;
  if (tiles <= affordable) return Split{tiles, 0};
  if (affordable == 0)
    return Error{Code::no_memory,
                 compose("a state budget of {} bytes a rank holds no tile; the smallest that works "
                         "is one tile, {} bytes a rank",
                         budget_bytes, tile_bytes),
                 "give a larger --budget or a smaller --tile"};
  // A third of a small budget, never more than helps; the rest saves traffic for good.
  const std::uint64_t most =
      std::max<std::uint64_t>(kMostFrames, kFrameBytesWorthHaving / tile_bytes);
  const std::uint64_t wanted = std::clamp<std::uint64_t>(affordable / 3, 6, most);
  const std::uint64_t frames = std::min(affordable, wanted);
  return Split{affordable - frames, frames};
}

Result<std::unique_ptr<Pager>> Pager::open(IoQueue& io, Store& store, const Split& split,
                                           Trace* trace) {
  std::unique_ptr<Pager> pager(new Pager(io, store, split, trace));
  const std::uint64_t bytes = split.bytes(pager->tile_bytes_);
  if (bytes > 0) {
    EBB_TRY_ASSIGN(pager->memory_, AlignedBuffer::allocate(bytes));
  }
  return pager;
}

Pager::Pager(IoQueue& io, Store& store, const Split& split, Trace* trace)
    : io_(io),
      store_(store),
      trace_(trace),
      tile_bytes_(store.superblock().tile_bytes),
      rank_(store.superblock().rank),
      tile_count_(store.superblock().tiles),
      tiles_(tile_count_) {
  EBB_CHECK(split.resident == tiles_.size() || split.frames > 0);
  std::uint64_t next_frame = 0;
  for (std::uint64_t tile = 0; tile < tiles_.size(); ++tile) {
    tiles_[tile].resident = spread(tile, tiles_.size(), split.resident);
    if (tiles_[tile].resident)
      tiles_[tile].frame = next_frame++;
    else
      paged_.push_back(tile);
  }
  EBB_CHECK(next_frame == split.resident);
  for (std::uint64_t i = 0; i < split.frames; ++i) free_frames_.push_back(next_frame++);
}

Pager::~Pager() {
  const MutexLock lock(mutex_);
  reading_ = false;
  while (in_flight_ != 0) changed_.wait(mutex_);
}

std::span<std::byte> Pager::frame(std::uint64_t index) {
  return memory_.bytes().subspan(index * tile_bytes_, tile_bytes_);
}

Result<> Pager::sticky() const {
  if (error_) return *error_;
  return {};
}

void Pager::fail(Error error) {
  if (!error_) error_ = std::move(error);
  changed_.notify_all();
}

void Pager::wait(double& stall, const char* what, const std::function<bool()>& ready) {
  if (ready() || error_) return;
  const auto begin = Trace::Clock::now();
  const TraceSpan span(trace_, rank_, Lane::wait, what);
  while (!ready() && !error_) changed_.wait(mutex_);
  stall += seconds_since(begin);
}

// Reads go out strictly in order: a tile that is still being written holds back those after it.
void Pager::start_reads() {
  while (reading_ && !error_ && !free_frames_.empty() && !paged_.empty()) {
    const std::uint64_t tile = paged_[next_read_];
    TileState& state = tiles_[tile];
    if (state.state != State::on_disk) return;
    next_read_ = (next_read_ + 1) % paged_.size();
    state.state = State::reading;
    state.frame = free_frames_.back();
    free_frames_.pop_back();
    ++in_flight_;
    const Store::Place place = store_.read_place(tile);
    io_.submit({.kind = RawOp::Kind::read,
                .file = place.file,
                .offset = place.offset,
                .data = frame(state.frame),
                .priority = Priority::step,
                .done = [this, tile, begin = Trace::Clock::now()](Result<> result) {
                  transferred(Lane::read, tile, begin);
                  read_done(tile, std::move(result));
                }});
  }
}

void Pager::transferred(Lane lane, std::uint64_t tile, Trace::Clock::time_point begin) {
  if (trace_ != nullptr)
    trace_->add(rank_, lane, lane == Lane::read ? "page-in" : "write-behind", begin,
                Trace::Clock::now(), {tile, tile_bytes_});
}

void Pager::read_done(std::uint64_t tile, Result<> result) {
  const MutexLock lock(mutex_);
  --in_flight_;
  if (!result) return fail(std::move(result).error());
  EBB_CHECK(tiles_[tile].state == State::reading);
  tiles_[tile].state = State::in_memory;
  tiles_[tile].fresh = true;
  changed_.notify_all();
}

// Returns the tile's bytes, in memory, verified and allowed to change.
Result<std::span<std::byte>> Pager::arrive(Mode mode, std::uint64_t tile) {
  EBB_TRY_ASSIGN(const Arrived arrived, bring(mode, tile));
  if (arrived.fresh) {
    const TraceSpan span(trace_, rank_, Lane::compute, "verify");
    EBB_TRY(store_.verify(tile, arrived.bytes));
  }
  return arrived.bytes;
}

Result<Pager::Arrived> Pager::bring(Mode mode, std::uint64_t tile) {
  const MutexLock lock(mutex_);
  TileState& state = tiles_[tile];
  if (state.resident) {
    wait(stats_.stall_cut_s, "cut", [&] { return !state.cut_pending || mode == Mode::look; });
    EBB_TRY(sticky());
    return Arrived{frame(state.frame), false};
  }
  if (mode == Mode::create) {
    wait(stats_.stall_read_s, "frame", [&]() EBB_REQUIRES(mutex_) {
      return !free_frames_.empty() && state.state == State::on_disk;
    });
    EBB_TRY(sticky());
    state.state = State::in_memory;
    state.frame = free_frames_.back();
    free_frames_.pop_back();
    std::ranges::fill(frame(state.frame), std::byte{0});
    return Arrived{frame(state.frame), false};
  }
  reading_ = true;
  start_reads();
  wait(stats_.stall_read_s, "page-in", [&] { return state.state == State::in_memory; });
  EBB_TRY(sticky());
  stats_.read_bytes += tile_bytes_;
  return Arrived{frame(state.frame), std::exchange(state.fresh, false)};
}

Result<> Pager::leave(Mode mode, std::uint64_t tile, std::uint64_t step,
                      std::span<std::byte> bytes) {
  {
    const MutexLock lock(mutex_);
    TileState& state = tiles_[tile];
    if (mode == Mode::look && !state.resident) {
      state.state = State::on_disk;
      free_frames_.push_back(state.frame);
      start_reads();
    } else if (mode != Mode::look) {
      state.dirty = state.resident;
      state.step = step;
    }
    if (mode == Mode::look || state.resident) return {};
  }
  return write_behind(tile, step, bytes);
}

Result<> Pager::write_behind(std::uint64_t tile, std::uint64_t step, std::span<std::byte> bytes) {
  EBB_TRY_ASSIGN(Store::Write write, store_.begin_write(tile, step));
  {
    const TraceSpan span(trace_, rank_, Lane::compute, "checksum");
    store_.seal(write, bytes);
  }
  std::uint64_t epoch = 0;
  {
    const MutexLock lock(mutex_);
    EBB_CHECK(tiles_[tile].state == State::in_memory);
    tiles_[tile].state = State::writing;
    ++in_flight_;
    epoch = epoch_;
    stats_.written_bytes += tile_bytes_;
  }
  const Store::Place place = write.place;
  auto done = [this, tile, epoch, write = std::move(write),
               begin = Trace::Clock::now()](Result<> result) mutable {
    transferred(Lane::write, tile, begin);
    const MutexLock lock(mutex_);
    --in_flight_;
    if (epoch != epoch_) --cut_writes_;
    if (!result) return fail(std::move(result).error());
    store_.wrote(std::move(write));
    tiles_[tile].state = State::on_disk;
    free_frames_.push_back(tiles_[tile].frame);
    start_reads();
    changed_.notify_all();
  };
  io_.submit({.kind = RawOp::Kind::write,
              .file = place.file,
              .offset = place.offset,
              .data = bytes,
              .priority = Priority::step,
              .done = std::move(done)});
  return {};
}

Result<> Pager::sweep(Mode mode, std::uint64_t step, const Visitor& visitor) {
  {
    const MutexLock lock(mutex_);
    EBB_TRY(sticky());
    EBB_CHECK(mode != Mode::create || !reading_);
  }
  for (std::uint64_t tile = 0; tile < tile_count_; ++tile) {
    EBB_TRY_ASSIGN(const std::span<std::byte> bytes, arrive(mode, tile));
    Result<> visited = visitor(tile, bytes);
    if (!visited) {
      // The tile may be half changed: nothing of this sweep may be used any more.
      const MutexLock lock(mutex_);
      fail(visited.error());
      return visited;
    }
    EBB_TRY(leave(mode, tile, step, bytes));
  }
  return {};
}

Result<> Pager::load_residents() {
  const MutexLock lock(mutex_);
  for (std::uint64_t tile = 0; tile < tile_count_; ++tile) {
    const TileState& state = tiles_[tile];
    if (!state.resident) continue;
    const Store::Place place = store_.read_place(tile);
    EBB_TRY(io_.read(place.file, place.offset, frame(state.frame)));
    EBB_TRY(store_.verify(tile, frame(state.frame)));
  }
  return {};
}

void Pager::begin_cut() {
  const MutexLock lock(mutex_);
  EBB_CHECK(cut_writes_ == 0);
  ++epoch_;
  for (TileState& state : tiles_) {
    if (state.resident && state.dirty) state.cut_pending = true;
    if (!state.resident && state.state == State::writing) ++cut_writes_;
  }
}

Result<> Pager::write_cut_tile(std::uint64_t tile, std::uint64_t step, std::span<std::byte> bytes) {
  EBB_TRY_ASSIGN(Store::Write write, store_.begin_write(tile, step));
  store_.seal(write, bytes);
  const auto begin = Trace::Clock::now();
  EBB_TRY(io_.write(write.place.file, write.place.offset, bytes, Priority::background));
  transferred(Lane::write, tile, begin);
  store_.wrote(std::move(write));
  return {};
}

Result<> Pager::write_cut_tiles() {
  for (std::uint64_t tile = 0; tile < tile_count_; ++tile) {
    TileState state;
    {
      const MutexLock lock(mutex_);
      EBB_TRY(sticky());
      state = tiles_[tile];
    }
    if (!state.cut_pending) continue;
    EBB_TRY(write_cut_tile(tile, state.step, frame(state.frame)));
    const MutexLock lock(mutex_);
    tiles_[tile].cut_pending = false;
    tiles_[tile].dirty = false;
    stats_.cut_bytes += tile_bytes_;
    changed_.notify_all();
  }
  return {};
}

// A resident tile whose write failed is still whole in memory and dirty: the next cut writes it.
Result<> Pager::finish_cut() {
  const TraceSpan span(trace_, rank_, Lane::commit, "cut writes");
  const Result<> written = write_cut_tiles();
  const MutexLock lock(mutex_);
  for (TileState& state : tiles_) state.cut_pending = false;
  changed_.notify_all();
  while (cut_writes_ != 0 && !error_) changed_.wait(mutex_);
  return written ? sticky() : written;
}

PagerStats Pager::stats() const {
  const MutexLock lock(mutex_);
  return stats_;
}

}  // namespace ebb::libswap
