#include "ebb/libswap/space/residency.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

namespace ebb::libswap {
namespace {

constexpr std::uint64_t kFewestReadyFrames = 6;
constexpr std::uint64_t kCopyBytes = 1u << 20;  // of one job
constexpr std::uint64_t kFar = std::uint64_t{1} << 62;

// An extent's frames, and the work frames beside them, are two holders.
Frames::Holder own(std::uint32_t extent) { return 2 * extent; }
Frames::Holder working(std::uint32_t extent) { return 2 * extent + 1; }
bool is_work(Frames::Holder holder) { return holder % 2 == 1; }
std::uint32_t extent_of(Frames::Holder holder) { return holder / 2; }

// Enough for a disk to be busy, and for the largest extent to come while another goes.
std::uint64_t worth_being_ready(std::uint64_t frames, std::uint64_t tile_bytes,
                                std::uint64_t largest) {
  const std::uint64_t some = std::clamp<std::uint64_t>(frames / 3, kFewestReadyFrames,
                                                       TileBudget::frames_in_flight(tile_bytes));
  return std::min(frames, std::max(some, 2 * largest));
}

}  // namespace

std::uint64_t Residency::least_frames(const Buffers& buffers) {
  std::uint64_t least = 1;
  for (const Buffers::Extent& extent : buffers.extents())
    least = std::max<std::uint64_t>(least, extent.buffers.size() > 1 ? 2 : extent.tiles);
  return least;
}

std::uint64_t Residency::most_frames(const Buffers& buffers) {
  return std::max<std::uint64_t>(1, 2 * buffers.tiles());
}

Residency::Residency(const Buffers& buffers, TileCache& cache, Pool& pool, std::uint64_t tile_bytes,
                     std::uint64_t frames)
    : buffers_(buffers),
      cache_(cache),
      pool_(pool),
      tile_bytes_(tile_bytes),
      frames_(frames),
      ready_frames_(worth_being_ready(frames, tile_bytes, buffers.most_tiles())),
      homes_(buffers.extents().size()) {}

std::span<std::byte> Residency::memory(std::uint64_t frame, std::uint64_t count) {
  return cache_.frames(frame, count);
}

bool Residency::all_tiles(std::uint32_t number,
                          bool (TileCache::*holds)(std::uint64_t) const) const {
  for (std::uint64_t i = 0; i < extent(number).tiles; ++i)
    if (!(cache_.*holds)(extent(number).first_tile + i)) return false;
  return true;
}

void Residency::write_out(std::uint32_t number) {
  for (std::uint64_t i = 0; i < extent(number).tiles; ++i)
    cache_.write_out(extent(number).first_tile + i);
  homes_[number].where = Where::writing;
}

// What has happened to it behind our back.
Residency::Where Residency::look(std::uint32_t number) {
  Home& home = homes_[number];
  if (home.where == Where::writing) {
    if (all_tiles(number, &TileCache::clean))
      home.where = Where::clean;
    else
      write_out(number);  // what a cut could not write is ours to write
  }
  if (home.where == Where::coming && all_tiles(number, &TileCache::arrived) &&
      !cache_.why_unreadable(extent(number).first_tile, extent(number).tiles))
    home.where = Where::clean;
  return home.where;
}

// Whether it could leave at once.
bool Residency::settled(std::uint32_t number) {
  const Where where = look(number);
  return where == Where::clean ||
         (where == Where::coming && all_tiles(number, &TileCache::arrived));
}

// --- who stays ----------------------------------------------------------------------------------

std::uint64_t Residency::next_use(const Home& home) const {
  if (home.hints > 0) return clock_ + (home.wanted - std::min(home.wanted, granted_));
  if (home.before == 0) return kFar + home.used;
  const std::uint64_t expected = home.used + (home.used - home.before);
  return expected > clock_ ? expected : clock_ + (clock_ - home.used);
}

// Buffers of one extent in a row are one use of it.
void Residency::use(std::uint32_t number) {
  Home& home = homes_[number];
  if (home.hints == 1) ++granted_;
  if (home.hints > 0) --home.hints;
  if (last_used_ == number) return;
  last_used_ = number;
  home.before = std::exchange(home.used, ++clock_);
}

Residency::Run Residency::free_now(std::uint64_t count, Also also) {
  const Run run =
      frames_.cheapest(count, [&](Frames::Holder holder) -> std::optional<std::uint64_t> {
        const Home& home = homes_[extent_of(holder)];
        if (is_work(holder) || home.leases > 0 || !settled(extent_of(holder))) return std::nullopt;
        if (also == Also::nothing && home.hints > 0) return std::nullopt;
        return next_use(home);
      });
  if (!run) return std::nullopt;
  for (const Frames::Holder holder : frames_.holders(*run, count)) leave(extent_of(holder));
  return run;
}

// Waits only for what the disk will have done by itself.
Result<std::uint64_t> Residency::room(std::uint64_t count) {
  for (;;) {
    if (const Run run = free_now(count, Also::prefetched)) return *run;
    const Run run =
        frames_.cheapest(count, [&](Frames::Holder holder) -> std::optional<std::uint64_t> {
          const Home& home = homes_[extent_of(holder)];
          if (is_work(holder) || home.leases > 0) return std::nullopt;
          return next_use(home);
        });
    if (!run) return Error{Code::no_memory, "leases hold the frames that it would need"};
    const auto holders = frames_.holders(*run, count);
    for (const Frames::Holder holder : holders)
      if (look(extent_of(holder)) == Where::dirty) write_out(extent_of(holder));
    EBB_TRY(cache_.wait_for("frame", [&] {
      return std::ranges::all_of(
          holders, [this](Frames::Holder holder) { return settled(extent_of(holder)); });
    }));
  }
}

// --- in and out of memory -----------------------------------------------------------------------

void Residency::come(std::uint32_t number, std::uint64_t frame) {
  Home& home = homes_[number];
  frames_.take(frame, extent(number).tiles, own(number));
  home.frame = frame;
  home.where = Where::coming;
  present_.push_back(number);
  for (std::uint64_t i = 0; i < extent(number).tiles; ++i)
    cache_.admit(extent(number).first_tile + i, frame + i);
}

void Residency::leave(std::uint32_t number) {
  Home& home = homes_[number];
  EBB_CHECK(!home.work);
  for (std::uint64_t i = 0; i < extent(number).tiles; ++i)
    cache_.dismiss(extent(number).first_tile + i);
  frames_.give_back(home.frame, extent(number).tiles);
  home.where = Where::absent;
  if (std::exchange(home.hints, 0) > 0) ++granted_;
  std::erase(present_, number);
}

// After an error of reading nothing of it is in memory: the next one who wants it tries again.
Result<> Residency::wait_for_arrival(std::uint32_t number) {
  const Buffers::Extent& tiles = extent(number);
  if (!all_tiles(number, &TileCache::arrived)) {
    ++stalls_;
    std::uint64_t here = 0;
    EBB_TRY(cache_.wait_for("page-in", [&] {
      while (here < tiles.tiles && cache_.arrived(tiles.first_tile + here)) ++here;
      return here == tiles.tiles;
    }));
  }
  const auto unreadable = cache_.why_unreadable(tiles.first_tile, tiles.tiles);
  if (!unreadable) {
    homes_[number].where = Where::clean;
    return {};
  }
  leave(number);
  return *unreadable;
}

// REQUIRES: it is leased.
Result<> Residency::bring_in(std::uint32_t number) {
  Home& home = homes_[number];
  // A prefetch is a hint: what failed of it is asked for once more.
  if (home.where == Where::coming && wait_for_arrival(number)) return {};
  EBB_TRY(cache_.failure());
  if (home.where == Where::absent) {
    EBB_TRY_ASSIGN(const std::uint64_t frame, room(extent(number).tiles));
    come(number, frame);
    return wait_for_arrival(number);
  }
  return {};
}

Result<std::span<std::byte>> Residency::to_read(const Piece& piece) {
  Home& home = homes_[piece.extent];
  ++home.leases;
  use(piece.extent);
  if (const Result<> here = bring_in(piece.extent); !here) {
    end_lease(piece.extent);
    return here.error();
  }
  return memory(home.frame, extent(piece.extent).tiles).subspan(piece.offset, piece.bytes);
}

Result<std::span<std::byte>> Residency::to_modify(const Piece& piece) {
  ++homes_[piece.extent].leases;
  use(piece.extent);
  const Result<> here = bring_in(piece.extent);
  Result<std::span<std::byte>> bytes = !here                  ? here.error()
                                       : shared(piece.extent) ? work_piece(piece)
                                                              : whole(piece);
  if (!bytes) end_lease(piece.extent);
  return bytes;
}

Result<std::span<std::byte>> Residency::work_piece(const Piece& piece) {
  Home& home = homes_[piece.extent];
  if (!home.work) {
    EBB_TRY_ASSIGN(const std::uint64_t frame, room(1));
    frames_.take(frame, 1, working(piece.extent));
    home.work = frame;
  }
  ++home.modified;
  const auto bytes = memory(*home.work, 1).subspan(piece.offset, piece.bytes);
  copy(memory(home.frame, 1).subspan(piece.offset, piece.bytes), bytes);
  return bytes;
}

Result<std::span<std::byte>> Residency::whole(const Piece& piece) {
  Home& home = homes_[piece.extent];
  const std::uint64_t tiles = extent(piece.extent).tiles;
  if (home.where == Where::dirty && all_tiles(piece.extent, &TileCache::clean))
    home.where = Where::clean;  // a cut has written it
  if (look(piece.extent) != Where::clean) {
    if (const Run run = free_now(tiles, Also::nothing)) {
      frames_.take(*run, tiles, working(piece.extent));
      home.work = run;
      const auto bytes = memory(*run, tiles).first(piece.bytes);
      copy(memory(home.frame, tiles).first(piece.bytes), bytes);
      return bytes;
    }
    write_out(piece.extent);
    ++stalls_;
    EBB_TRY(cache_.wait_for("write-behind", [&] { return look(piece.extent) == Where::clean; }));
  }
  home.in_place = true;
  return memory(home.frame, tiles).first(piece.bytes);
}

Result<std::span<std::byte>> Residency::to_fill(std::uint32_t number) {
  Home& home = homes_[number];
  const std::uint64_t tiles = extent(number).tiles;
  use(number);
  EBB_TRY_ASSIGN(home.frame, room(tiles));
  frames_.take(home.frame, tiles, own(number));
  present_.push_back(number);
  ++home.leases;
  home.in_place = true;
  home.where = Where::clean;
  const auto bytes = memory(home.frame, tiles);
  std::ranges::fill(bytes, std::byte{0});
  return bytes;
}

// --- the end of a lease -------------------------------------------------------------------------

void Residency::end_lease(std::uint32_t number) {
  Home& home = homes_[number];
  --home.leases;
  const bool done_with = shared(number) ? home.modified == 0 : home.leases == 0;
  if (!done_with || !home.work) return;
  frames_.give_back(*std::exchange(home.work, std::nullopt), extent(number).tiles);
}

void Residency::end_reading(const Piece& piece) { end_lease(piece.extent); }

void Residency::forget(const Piece& piece) {
  Home& home = homes_[piece.extent];
  if (shared(piece.extent)) --home.modified;
  end_lease(piece.extent);
  if (std::exchange(home.in_place, false)) leave(piece.extent);  // the disk has the old content
}

Result<> Residency::until_may_change(std::uint32_t number) {
  if (all_tiles(number, &TileCache::may_change)) return {};
  write_out(number);  // a cut still wants it: it goes before what the cut writes by itself
  return cache_.wait_for("cut", [&] { return all_tiles(number, &TileCache::may_change); });
}

void Residency::changed(std::uint32_t number, std::uint64_t step) {
  Home& home = homes_[number];
  for (std::uint64_t i = 0; i < extent(number).tiles; ++i)
    cache_.change(extent(number).first_tile + i, home.frame + i, step);
  home.where = Where::dirty;
}

Result<> Residency::keep(const Piece& piece, std::uint64_t step) {
  Home& home = homes_[piece.extent];
  EBB_TRY(until_may_change(piece.extent));
  if (shared(piece.extent)) {
    copy(memory(*home.work, 1).subspan(piece.offset, piece.bytes),
         memory(home.frame, 1).subspan(piece.offset, piece.bytes));
    --home.modified;
  } else if (home.work) {
    const std::uint64_t tiles = extent(piece.extent).tiles;
    frames_.give_back(home.frame, tiles);
    frames_.give_back(*home.work, tiles);
    home.frame = *std::exchange(home.work, std::nullopt);
    frames_.take(home.frame, tiles, own(piece.extent));
  }
  home.in_place = false;
  changed(piece.extent, step);
  end_lease(piece.extent);
  return {};
}

void Residency::filled(std::uint32_t number, std::uint64_t step) {
  homes_[number].in_place = false;
  changed(number, step);
  end_lease(number);
}

void Residency::copy(std::span<const std::byte> from, std::span<std::byte> to) {
  copied_bytes_ += from.size();
  pool_.run(formats::div_ceil(from.size(), kCopyBytes), [&](std::size_t i) {
    const std::size_t first = i * kCopyBytes;
    std::memcpy(to.data() + first, from.data() + first,
                std::min<std::size_t>(kCopyBytes, from.size() - first));
  });
}

// --- behind the caller's back -------------------------------------------------------------------

void Residency::prefetch(std::uint32_t number) {
  Home& home = homes_[number];
  if (home.hints++ > 0) return;
  home.wanted = ++wishes_;
  if (home.where == Where::absent) wanted_.push_back(number);
}

void Residency::advance() {
  write_behind();
  read_ahead();
}

// The tile that was used last is left alone while it is shared: its next buffer will be changed,
// too.
void Residency::write_behind() {
  if (present_.size() == homes_.size()) return;  // nothing is on the disk that could come
  std::uint64_t ready = frames_.free();
  std::vector<std::uint32_t> dirty;
  for (const std::uint32_t number : present_) {
    const Home& home = homes_[number];
    if (home.leases > 0 || home.hints > 0) continue;
    if (home.where != Where::dirty)
      ready += extent(number).tiles;
    else if (!(shared(number) && last_used_ == number))
      dirty.push_back(number);
  }
  if (ready >= ready_frames_) return;
  std::ranges::sort(dirty, std::greater(),
                    [this](std::uint32_t number) { return next_use(homes_[number]); });
  for (const std::uint32_t number : dirty) {
    if (ready >= ready_frames_) return;
    write_out(number);
    ready += extent(number).tiles;
  }
}

void Residency::read_ahead() {
  while (!wanted_.empty()) {
    const std::uint32_t number = wanted_.front();
    const Home& home = homes_[number];
    if (home.hints > 0 && home.where == Where::absent) {
      const Run run = free_now(extent(number).tiles, Also::nothing);
      if (!run) return;
      come(number, *run);
    }
    wanted_.pop_front();
  }
}

Result<> Residency::write_all() {
  for (const std::uint32_t number : present_)
    if (homes_[number].where == Where::dirty) write_out(number);
  return cache_.wait_for("flush", [this] {
    return std::ranges::none_of(
        present_, [this](std::uint32_t number) { return look(number) == Where::writing; });
  });
}

}  // namespace ebb::libswap
