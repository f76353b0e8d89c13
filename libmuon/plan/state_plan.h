// The plan of a rank's state: who owns which matrix, which tile holds what, in which order a step
// visits tiles, and what that costs. Pure arithmetic; the manifest's tables are made from it.
//
// Which tile holds what is stored with the state and compared when it is resumed; the order of a
// step's visits is not: another one needs no new store.
//
// Where everything lies is Layouts, what is computed at once Items; what a tile holds goes by the
// table (Columns).
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "ebb/formats/native/manifest.h"
#include "ebb/libmuon/plan/columns.h"
#include "ebb/libmuon/plan/items.h"
#include "ebb/libmuon/plan/layouts.h"
#include "ebb/libmuon/plan/model.h"
#include "ebb/libmuon/plan/visit.h"

namespace ebb::libmuon {

// What a tile holds: elements [first, first + count) of its item, in all columns of its kind.
struct TileEntry {
  TileKind kind = TileKind::momentum;
  std::uint32_t item = 0;
  std::uint64_t first = 0;
  std::uint64_t count = 0;
  std::uint32_t first_part = 0;  // of the item: the one that holds `first`
};

// Whether the parameter has such tiles, and with them their states.
bool has_tiles(const ModelSpec& model, std::uint32_t param, TileKind kind);

class StatePlan {
 public:
  // Fails (Code::layout, Code::usage, Code::unsupported) naming the parameter or the setting.
  // `update_bytes`: room for the updates of two matrices, where they need no more (StepOrder), or
  // for those of a chunk (ShardOrder); the same on all ranks. What lies where does not depend on
  // it, nor on `stream_above`: updates that take more bytes, in fp32, are streamed where their
  // matrix can be (streams()).
  static Result<StatePlan> make(const ModelSpec& model, const PartitionSpec& partition,
                                std::uint64_t tile_bytes, Rank rank, std::uint64_t update_bytes,
                                const StateDTypes& dtypes = {},
                                std::uint64_t stream_above = kNothingStreamed);

  Rank rank() const { return layouts_.rank(); }
  std::uint32_t world() const { return layouts_.world(); }
  std::uint64_t tile_bytes() const { return tile_bytes_; }
  const Columns& columns() const { return columns_; }
  // The most elements of such a tile, and of any.
  std::uint64_t capacity(TileKind kind) const { return columns_.capacity(kind, tile_bytes_); }
  std::uint64_t tile_elems() const;
  TileSize tile_size() const { return {columns_, tile_bytes_}; }
  Out out(std::uint32_t param) const { return outs_[param]; }
  std::uint64_t elems(std::uint32_t param) const { return gradients().elems(param); }

  // Where everything lies (Layouts).
  using OwnRun = Layouts::OwnRun;
  const ModelLayout& gradients() const { return layouts_.gradients(); }
  const ModelLayout& weights() const { return layouts_.weights(); }
  const ModelLayout& matrices() const { return layouts_.matrices(); }
  const Layout& owners() const { return layouts_.owners(); }
  const ModelLayout& shards() const { return layouts_.shards(); }
  const ModelLayout& state() const { return layouts_.state(); }
  const ModelLayout& updates() const { return layouts_.updates(); }
  const ModelLayout& results() const { return layouts_.results(); }
  Placement placement() const { return layouts_.placement(); }
  std::size_t params() const { return layouts_.params(); }
  bool muon(std::uint32_t param) const { return layouts_.muon(param); }
  bool on_shards(std::uint32_t param) const { return layouts_.on_shards(param); }
  bool here(std::uint32_t param) const { return layouts_.here(param); }
  OwnRun run_of(std::uint32_t param, std::uint64_t element) const {
    return layouts_.run_of(param, element);
  }
  bool computes(std::uint32_t param, std::uint64_t element) const {
    return layouts_.computes(param, element);
  }
  std::vector<FlatRange> own_ranges(std::uint32_t param) const {
    return layouts_.own_ranges(param);
  }
  bool in_place(std::uint32_t param, std::uint64_t element, const ModelLayout& trainer) const {
    return layouts_.in_place(param, element, trainer);
  }

  // What is computed at once (Items).
  const std::vector<Item>& items() const { return items_.all(); }
  std::span<const ItemRange> matrix_runs(std::uint32_t param) const {
    return items_.matrix_runs(param);
  }
  const StepOrder& order() const { return items_.order(); }
  const ShardOrder* shard_order() const { return items_.shard_order(); }
  double newton_schulz_flops() const { return items_.newton_schulz_flops(); }
  std::uint64_t adam_elems() const { return items_.adam_elems(); }
  std::uint64_t update_bytes() const { return update_bytes_; }
  const AdamLine& adam_line() const { return items_.adam_line(); }

  const std::vector<TileEntry>& tiles() const { return tiles_; }
  bool holds(const TileEntry& tile, std::uint32_t state) const {
    return columns_.find(tile.kind, state).has_value();
  }
  // Whether weights are handed out of such a tile alone.
  bool has_weights(const TileEntry& tile) const {
    return columns_.bound_masters() ? tile.kind == TileKind::bound : holds(tile, kMaster);
  }
  // Whether these leave in a visit that moves masters.
  bool hands_out(const Visit& visit) const {
    return items()[visit.item].streaming.hands_out(visit.pass);
  }
  // The visits of one step, in that order: those of matrices by their place on the line of order(),
  // AdamW's by that on a line of adam_line().length(), which keeps step with it.
  const std::vector<Visit>& schedule() const { return schedule_; }
  // The tile of a visit; where there is none, what one of masters would hold.
  const TileEntry& entry(const Visit& visit) const {
    return (visit.has_tile() ? tiles_ : without_tile_)[visit.tile];
  }
  // Where a batch's second moments lie in their tile; count 0 if it has none.
  FlatRange moments_of(const ModelSpec& model, const Visit& visit, const ItemBatch& batch) const;

  // The parts of a tile: (part, its range inside the parameter, where it begins in the tile).
  struct Span {
    std::uint32_t param = 0;
    FlatRange range;
    std::uint64_t tile_first = 0;
    std::uint64_t tile_block = 0;  // of its first block, where a column of the tile is in blocks
  };
  std::vector<Span> spans(const TileEntry& tile) const;
  // Elements of a column in the tile, and where it begins, in bytes.
  struct Extent {
    Column column;
    std::uint64_t offset = 0, elems = 0;
  };
  std::vector<Extent> columns_in(const TileEntry& tile) const;
  // Of a column's elements, counted from its beginning in the tile, those of the span.
  static FlatRange elems_of(const Span& span, const Column& column);
  // What segments call a parameter, by number, are the model's parameters and behind them these,
  // which have shapes of their own: those of second moments, then those of scales.
  struct Derived {
    enum class Of : std::uint8_t { moments, scales };
    Of of = Of::moments;
    std::uint32_t param = 0;  // of the model
    Shape shape;
  };
  const std::vector<Derived>& derived() const { return derived_; }
  // The model's parameter that a segment is of.
  std::uint32_t param_of(const formats::native::Segment& segment) const {
    return segment.param < params() ? segment.param : derived_[segment.param - params()].param;
  }
  std::vector<formats::native::Segment> segments(const TileEntry& tile) const;

  std::uint64_t state_bytes() const;  // of this rank, in tiles that steps visit
  // Equal on all ranks that describe the same state in the same places.
  std::uint64_t digest() const { return digest_; }

 private:
  StatePlan(Columns columns, Layouts layouts, Items items)
      : columns_(std::move(columns)), layouts_(std::move(layouts)), items_(std::move(items)) {}
  void find_derived(const ModelSpec& model);
  void lay_tiles();
  void cut(std::vector<TileEntry>& into, TileKind kind, std::uint32_t item) const;
  std::vector<TileEntry> moments_tiles() const;
  std::uint64_t blocks_in(const TileEntry& tile) const;
  std::uint32_t number_of(std::uint32_t param, Derived::Of of) const;
  std::vector<Visit> visits_to(std::uint64_t tile) const;
  std::vector<Visit> visits_to_moments(std::uint64_t tile) const;
  std::vector<Visit> visits_to_shard_moments(std::uint64_t tile) const;
  void order_visits();
  std::uint64_t place(const Visit& visit) const;

  Columns columns_;
  Layouts layouts_;
  Items items_;
  std::uint64_t tile_bytes_ = 0, update_bytes_ = 0;
  std::vector<Out> outs_;  // by parameter
  std::vector<Derived> derived_;
  std::vector<TileEntry> tiles_;
  std::vector<TileEntry> without_tile_;  // by visit without a tile: what one of masters would hold
  std::vector<Visit> schedule_;
  std::uint64_t digest_ = 0;
};

}  // namespace ebb::libmuon
