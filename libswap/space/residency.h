// Residency: which extents are in memory, within a budget of frames, and which bytes a lease is
// given.
//
// What lies in an extent's own frames is its last released content, always: a cut may write it at
// any moment. Who wants to modify is therefore given
//  - a piece of a work frame, where several buffers share the extent;
//  - the frames themselves, where they hold what the disk holds: then the disk keeps the old
//    content;
//  - a copy in frames that nobody needs, or, where there are none, the frames themselves after they
//    were written.
//
// When frames are needed, those go first that will be used again the latest, as far as the times
// between uses tell. Where every extent is used once a step, that is what was used last: so the
// others stay, and a budget of half the state saves half the traffic.
//
// One thread.
#pragma once

#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "ebb/libswap/pager/tile_cache.h"
#include "ebb/libswap/space/buffers.h"
#include "ebb/libswap/space/frames.h"

namespace ebb::libswap {

class Residency {
 public:
  // The least and the most frames that are of use.
  static std::uint64_t least_frames(const Buffers& buffers);
  static std::uint64_t most_frames(const Buffers& buffers);

  // All are borrowed. `frames`: those of the cache.
  Residency(const Buffers& buffers, TileCache& cache, Pool& pool, std::uint64_t tile_bytes,
            std::uint64_t frames);

  struct Piece {
    std::uint32_t extent = 0;
    std::uint64_t offset = 0, bytes = 0;
  };
  // Code::no_memory: every frame that could do is leased.
  Result<std::span<std::byte>> to_read(const Piece& piece);
  Result<std::span<std::byte>> to_modify(const Piece& piece);
  // For an extent that nothing was ever written of: zeros.
  Result<std::span<std::byte>> to_fill(std::uint32_t extent);

  void end_reading(const Piece& piece);
  // What was modified is forgotten.
  void forget(const Piece& piece);
  // What was modified is the content, at `step`. After an error it is not yet, and the lease stays.
  Result<> keep(const Piece& piece, std::uint64_t step);
  void filled(std::uint32_t extent, std::uint64_t step);

  void prefetch(std::uint32_t extent);
  // Writes behind, and reads what was prefetched, as far as frames go; never waits.
  void advance();
  // Until everything that was released is with the disk.
  Result<> write_all();

  // So many frames are kept free, or on their way to be.
  std::uint64_t ready_frames() const { return ready_frames_; }
  std::uint64_t stalls() const { return stalls_; }
  std::uint64_t copied_bytes() const { return copied_bytes_; }

 private:
  enum class Where : std::uint8_t { absent, coming, clean, dirty, writing };
  struct Home {
    Where where = Where::absent;
    bool in_place = false;  // leased to be modified where it lies
    std::uint32_t leases = 0;
    std::uint32_t modified = 0;  // of them, pieces of the work frame
    std::uint64_t frame = 0;
    std::optional<std::uint64_t> work;
    std::uint64_t hints = 0;   // prefetches that no acquire has followed
    std::uint64_t wanted = 0;  // the place of the first of them among those of all extents
    std::uint64_t used = 0, before = 0;  // when, by clock_
  };
  using Run = std::optional<std::uint64_t>;

  const Buffers::Extent& extent(std::uint32_t number) const { return buffers_.extents()[number]; }
  bool shared(std::uint32_t number) const { return extent(number).buffers.size() > 1; }
  std::span<std::byte> memory(std::uint64_t frame, std::uint64_t count);
  bool all_tiles(std::uint32_t number, bool (TileCache::*holds)(std::uint64_t) const) const;
  void write_out(std::uint32_t number);
  Where look(std::uint32_t number);
  bool settled(std::uint32_t number);
  std::uint64_t next_use(const Home& home) const;
  void use(std::uint32_t number);

  Result<> bring_in(std::uint32_t number);
  Result<> wait_for_arrival(std::uint32_t number);
  void come(std::uint32_t number, std::uint64_t frame);
  void leave(std::uint32_t number);
  enum class Also : std::uint8_t { nothing, prefetched };  // may go although it was asked for
  Run free_now(std::uint64_t count, Also also);
  Result<std::uint64_t> room(std::uint64_t count);
  Result<std::span<std::byte>> work_piece(const Piece& piece);
  Result<std::span<std::byte>> whole(const Piece& piece);
  void end_lease(std::uint32_t number);
  Result<> until_may_change(std::uint32_t number);
  void changed(std::uint32_t number, std::uint64_t step);
  void copy(std::span<const std::byte> from, std::span<std::byte> to);
  void write_behind();
  void read_ahead();

  const Buffers& buffers_;
  TileCache& cache_;
  Pool& pool_;
  const std::uint64_t tile_bytes_;
  Frames frames_;
  const std::uint64_t ready_frames_;
  std::vector<Home> homes_;             // by extent
  std::vector<std::uint32_t> present_;  // those that are not absent
  std::deque<std::uint32_t> wanted_;
  std::uint64_t wishes_ = 0, granted_ = 0;
  std::uint64_t clock_ = 0;
  std::optional<std::uint32_t> last_used_;
  std::uint64_t stalls_ = 0;
  std::uint64_t copied_bytes_ = 0;
};

}  // namespace ebb::libswap
