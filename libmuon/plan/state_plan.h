// The plan of a rank's state: who owns which matrix, which tile holds what, in which order a step
// visits tiles, and what that costs. Pure arithmetic; the manifest's tables are made from it.
//
// Which tile holds what is stored with the state and compared when it is resumed; the order of a
// step's visits is not: another one needs no new store.
//
// Muon matrices live whole at one rank (choose_owners()); AdamW state lives on the gradient's own
// shard. What a tile of either holds goes by the table (Columns).
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "ebb/formats/layout/layout.h"
#include "ebb/formats/native/manifest.h"
#include "ebb/libmuon/plan/adam_line.h"
#include "ebb/libmuon/plan/columns.h"
#include "ebb/libmuon/plan/model.h"
#include "ebb/libmuon/plan/model_layout.h"
#include "ebb/libmuon/plan/owner_order.h"

namespace ebb::libmuon {

// What a tile holds: elements [first, first + count) of its item, in all columns of its visits.
struct TileEntry {
  Visit visit = Visit::prepare;
  std::uint32_t item = 0;
  std::uint64_t first = 0;
  std::uint64_t count = 0;
  std::uint32_t first_part = 0;  // of the item: the one that holds `first`
};

class StatePlan {
 public:
  // Fails (Code::layout, Code::usage, Code::unsupported) naming the parameter or the setting.
  // `update_bytes`: room for the updates of two matrices, where they need no more (OwnerOrder); the
  // same on all ranks. What lies where does not depend on it.
  static Result<StatePlan> make(const ModelSpec& model, const PartitionSpec& partition,
                                std::uint64_t tile_bytes, Rank rank, std::uint64_t update_bytes,
                                const StateDTypes& dtypes = {});

  Rank rank() const { return rank_; }
  std::uint32_t world() const { return owners().spec().mesh.world(); }
  std::uint64_t tile_bytes() const { return tile_bytes_; }
  const Columns& columns() const { return columns_; }
  // The most elements of a tile of such visits, of any tile, and of several matrices in an item.
  std::uint64_t capacity(Visit visit) const { return columns_.capacity(visit, tile_bytes_); }
  std::uint64_t tile_elems() const;
  std::uint64_t item_elems() const;
  const ModelLayout& gradients() const { return *gradients_; }
  const ModelLayout& weights() const { return *weights_; }
  const ModelLayout& matrices() const { return *matrices_; }  // Muon's, whole at their owners
  const Layout& owners() const { return matrices_->layouts().front(); }  // by parameter
  const ModelLayout& shards() const { return *shards_; }                 // of AdamW ranges
  // Whether this rank is one of those that hold the parameter: an expert is not everywhere.
  bool here(std::uint32_t param) const;
  std::size_t params() const { return muon_.size(); }
  bool muon(std::uint32_t param) const { return muon_[param]; }
  Out out(std::uint32_t param) const { return outs_[param]; }
  // Ranges of a Muon parameter that items hold whole: its matrices, as far as they lie apart.
  std::vector<FlatRange> wholes(std::uint32_t param) const;
  // The elements of a parameter whose state this rank keeps; count 0 if none.
  FlatRange own_range(std::uint32_t param) const;
  // Whether what this rank holds of it in `trainer` (gradients() or weights()) is all of that.
  bool in_place(std::uint32_t param, const ModelLayout& trainer) const;

  const std::vector<Item>& items() const { return items_; }
  const std::vector<TileEntry>& tiles() const { return tiles_; }
  bool holds(const TileEntry& tile, std::uint32_t state) const {
    return columns_.find(tile.visit, state).has_value();
  }
  // Of this rank's matrices, which are the first of items().
  const OwnerOrder& order() const { return *order_; }
  std::uint64_t update_bytes() const { return update_bytes_; }
  const AdamLine& adam_line() const { return *adam_line_; }  // of all ranks
  // The tiles that one step visits, in that order: those of matrices by their place on the line of
  // order(), AdamW's by that on a line of adam_line().length(), which keeps step with it.
  const std::vector<std::uint64_t>& schedule() const { return schedule_; }
  // Updates that are handed out without a tile, as nobody keeps masters of them (Out::update), in
  // the order of a step: what masters' tiles would hold, where these would be visited.
  struct HandOut {
    TileEntry part;
    std::size_t before = 0;  // which visit of the schedule
  };
  const std::vector<HandOut>& hand_outs() const { return hand_outs_; }
  // Where a tile, or such a part, begins on its line.
  std::uint64_t place(const TileEntry& tile) const;

  // The parts of a tile: (part, its range inside the parameter, where it begins in the tile).
  struct Span {
    std::uint32_t param = 0;
    FlatRange range;
    std::uint64_t tile_first = 0;
  };
  std::vector<Span> spans(const TileEntry& tile) const;
  std::vector<formats::native::Segment> segments(const TileEntry& tile) const;

  std::uint64_t state_bytes() const;   // of this rank
  double newton_schulz_flops() const;  // of this rank, one step
  std::uint64_t adam_elems() const;
  // Equal on all ranks that describe the same state in the same places.
  std::uint64_t digest() const { return digest_; }

 private:
  explicit StatePlan(Columns columns) : columns_(std::move(columns)) {}
  void find_wholes(const ModelSpec& model);
  void add_muon_items(const ModelSpec& model);
  void add_adam_item(const ModelSpec& model);
  void lay_tiles();
  void order_visits();
  std::vector<TileEntry> cut(Visit visit, std::uint32_t item) const;
  void place_hand_outs();

  Columns columns_;
  Rank rank_{};
  std::uint64_t tile_bytes_ = 0;
  std::uint64_t update_bytes_ = 0;
  std::optional<ModelLayout> gradients_, weights_, matrices_, shards_;
  std::vector<bool> muon_;
  std::vector<Out> outs_;                                   // by parameter
  std::map<std::uint32_t, std::vector<FlatRange>> wholes_;  // of those that have more than one
  std::vector<Item> items_;
  std::optional<OwnerOrder> order_;
  std::optional<AdamLine> adam_line_;
  std::vector<TileEntry> tiles_;
  std::vector<std::uint64_t> schedule_;
  std::vector<HandOut> hand_outs_;
  double flops_ = 0;
  std::uint64_t adam_elems_ = 0;
  std::uint64_t digest_ = 0;
};

}  // namespace ebb::libmuon
