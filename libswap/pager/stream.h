// Stream: a schedule of visits to tiles, over and over, in one known order. Where a tile lies is
// the store's table; when it is visited, and how often in one round, is the schedule's: the order
// may change without a new store. Bytes of a round are exactly those of its visits to tiles that
// are not resident.
//
// Reading goes on behind the caller's back: within a round as far as frames go, and, where the next
// round is like this one, into the next one's first tiles. Every wait is on a visit earlier in the
// schedule, so that one frame is enough. One thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ebb/libswap/pager/tile_cache.h"

namespace ebb::libswap {

// Of a place in the schedule where the caller has something to do without a tile.
inline constexpr std::uint64_t kNoTile = ~std::uint64_t{0};

struct TileVisit {
  std::uint64_t tile = 0;
  TileCache::Use use = TileCache::Use::modify;
};

class Stream {
 public:
  // A tile in the caller's hands.
  struct Lease {
    std::size_t position = 0;  // in the schedule
    std::uint64_t tile = 0;
    Buffer buffer;  // its bytes, there; none of kNoTile
  };

  // Whether the next round of this stream follows this one, with no other stream between.
  enum class Repeats : std::uint8_t { no, yes };
  Stream(TileCache& cache, std::vector<TileVisit> schedule, Repeats repeats);

  // A round begins; the tiles it changes are at `step` then. Visits to those of `left_out`, which
  // ascend, are not part of it. REQUIRES: the round before has ended.
  void begin(std::uint64_t step, std::vector<std::uint64_t> left_out = {});
  bool ended() const { return position_ == schedule_.size(); }
  std::size_t position() const { return position_; }  // of the visit that take() gives next
  // The next visit's tile. After an error the same one is the next, once the cache has gone on.
  // REQUIRES: !ended().
  Result<Lease> take();
  // Hands it back; `done` passes when nobody uses its bytes any more.
  void give_back(const Lease& lease, const Event& done);

 private:
  void pass_over_what_is_left_out();

  TileCache& cache_;
  const std::uint64_t reader_;
  const std::vector<TileVisit> schedule_;
  std::vector<std::uint64_t> reads_;  // of one round
  const Repeats repeats_;
  std::vector<std::uint64_t> left_out_;  // of the present round; ascending
  std::size_t position_;
  std::uint64_t step_ = 0;
};

}  // namespace ebb::libswap
