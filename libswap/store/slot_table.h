// SlotTable: which slot of a tile may be written (invariant I1 of docs/formats/commit.md).
// Bookkeeping only: no I/O, no lock; the Store guards it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

namespace ebb::libswap {

// One version of a tile: where it lies and what its blocks must look like.
struct TileVersion {
  std::uint8_t slot = 0;
  bool written = false;
  std::uint64_t step = 0;
  std::shared_ptr<const std::vector<std::uint32_t>> crcs;  // shared: a cut copies no table
};

class SlotTable {
 public:
  SlotTable(std::uint64_t tiles, std::uint32_t slots);

  // After recovery: this generation is the committed one, and the newest there is.
  void restore(std::uint64_t generation, std::uint32_t region, std::vector<TileVersion> tiles);

  const TileVersion& newest(std::uint64_t tile) const { return newest_[tile]; }
  std::uint64_t committed() const { return committed_ ? committed_->number : 0; }

  // The slot for bytes at `step`; the same until wrote(). nullopt: none is free.
  std::optional<std::uint8_t> place(std::uint64_t tile, std::uint64_t step);
  void wrote(std::uint64_t tile, std::uint64_t step, TileVersion version);

  bool can_cut() const;
  // Whether every tile has a free slot once the pending generation is committed. REQUIRES:
  // pending().
  bool can_commit() const;
  bool room_to_sweep() const;

  struct Cut {
    std::uint64_t generation = 0;
    std::uint64_t step = 0;
    std::uint32_t region = 0;  // holds no generation that is still needed
    std::vector<TileVersion> tiles;
  };
  // REQUIRES: can_cut().
  void cut(std::uint64_t generation, std::uint64_t step);
  const std::optional<Cut>& pending() const { return pending_; }
  // REQUIRES: pending().
  void commit();
  void abandon() { pending_.reset(); }

  bool pin(std::uint64_t generation);  // false: it is neither committed nor pinned
  void unpin(std::uint64_t generation);

 private:
  struct Generation {
    std::uint64_t number = 0;
    std::uint32_t region = 0;
    std::vector<std::uint8_t> slots;
  };
  struct Pin {
    std::shared_ptr<const Generation> generation;
    std::uint32_t count = 0;
  };
  // Bit s is set when slot s of the tile is referred to.
  std::uint32_t pinned(std::uint64_t tile) const;
  std::uint32_t held(std::uint64_t tile, std::uint64_t step) const;
  std::optional<std::uint32_t> free_region() const;

  const std::uint32_t slots_;
  std::vector<TileVersion> newest_;
  std::vector<std::uint8_t> placed_;  // place()'s answer, kNone after wrote()
  std::shared_ptr<const Generation> committed_;
  std::optional<Cut> pending_;
  std::map<std::uint64_t, Pin> pins_;
};

}  // namespace ebb::libswap
