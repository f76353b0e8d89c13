// The plan of a rank's state: who owns which matrix, which tile holds what, in which order a step
// visits tiles, and what that costs. Pure arithmetic; the manifest's tables are made from it.
//
// Which tile holds what is stored with the state and compared when it is resumed; the order of a
// step's visits is not: another one needs no new store.
//
// Every Muon matrix is computed whole at one rank (choose_owners()), where its state lives too, or
// that lives on the gradient's own shard (Placement), as AdamW's state does. What a tile of either
// holds goes by the table (Columns).
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "ebb/formats/layout/layout.h"
#include "ebb/formats/native/manifest.h"
#include "ebb/libmuon/plan/adam_line.h"
#include "ebb/libmuon/plan/columns.h"
#include "ebb/libmuon/plan/model.h"
#include "ebb/libmuon/plan/model_layout.h"
#include "ebb/libmuon/plan/owner_order.h"
#include "ebb/libmuon/plan/shard_order.h"
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

// No update is as large.
inline constexpr std::uint64_t kNothingStreamed = ~std::uint64_t{0};

class StatePlan {
 public:
  // Fails (Code::layout, Code::usage, Code::unsupported) naming the parameter or the setting.
  // `update_bytes`: room for the updates of two matrices, where they need no more (OwnerOrder), or
  // for those of a chunk (ShardOrder); the same on all ranks. What lies where does not depend on
  // it, nor on `stream_above`: updates that take more bytes, in fp32, are streamed where their
  // matrix can be (streams()).
  static Result<StatePlan> make(const ModelSpec& model, const PartitionSpec& partition,
                                std::uint64_t tile_bytes, Rank rank, std::uint64_t update_bytes,
                                const StateDTypes& dtypes = {},
                                std::uint64_t stream_above = kNothingStreamed);

  Rank rank() const { return rank_; }
  std::uint32_t world() const { return owners().spec().mesh.world(); }
  std::uint64_t tile_bytes() const { return tile_bytes_; }
  const Columns& columns() const { return columns_; }
  // The most elements of such a tile, of any tile, and of several matrices in an item.
  std::uint64_t capacity(TileKind kind) const { return columns_.capacity(kind, tile_bytes_); }
  std::uint64_t tile_elems() const;
  ItemPacker::Room item_room() const;
  TileElems item_tiles() const {
    return {capacity(TileKind::momentum), capacity(TileKind::masters)};
  }
  const ModelLayout& gradients() const { return *gradients_; }
  const ModelLayout& weights() const { return *weights_; }
  Placement placement() const { return placement_; }
  const ModelLayout& matrices() const { return *matrices_; }  // Muon's, whole at their owners
  // Of the runs of matrices that lie at one owner, in the order of parameters.
  const Layout& owners() const { return matrices_->layout(0); }
  // Of AdamW ranges, and in Placement::shard of all state.
  const ModelLayout& shards() const { return *shards_; }
  bool on_shards(std::uint32_t param) const {
    return !muon_[param] || placement_ == Placement::shard;
  }
  // Of what travels there: U and O.
  const ModelLayout& updates() const { return updates_ ? *updates_ : *shards_; }
  const ModelLayout& results() const { return results_ ? *results_ : *shards_; }
  // Where the state is kept.
  const ModelLayout& state() const { return *state_; }
  // Whether this rank is one of those that hold the parameter: an expert is not everywhere.
  bool here(std::uint32_t param) const;
  std::size_t params() const { return muon_.size(); }
  bool muon(std::uint32_t param) const { return muon_[param]; }
  Out out(std::uint32_t param) const { return outs_[param]; }
  std::span<const ItemRange> wholes(std::uint32_t param) const {
    return std::span(wholes_).subspan(first_whole_[param],
                                      first_whole_[param + 1] - first_whole_[param]);
  }
  std::uint64_t elems(std::uint32_t param) const { return gradients_->elems(param); }
  // Matrices of one owner that follow each other.
  struct OwnRun {
    FlatRange range;
    Rank owner{};
  };
  // That of an element of a Muon parameter.
  OwnRun run_of(std::uint32_t param, std::uint64_t element) const;
  // Whether this rank is the one that computes the matrix of such an element.
  bool computes(std::uint32_t param, std::uint64_t element) const {
    return run_of(param, element).owner == rank_;
  }
  // The elements of a parameter whose state this rank keeps, ascending.
  std::vector<FlatRange> own_ranges(std::uint32_t param) const;
  // Whether this rank's buffer in `trainer` (gradients() or weights()) holds what it keeps the
  // state of: of a matrix' run that has the element, of all that AdamW has of the parameter.
  bool in_place(std::uint32_t param, std::uint64_t element, const ModelLayout& trainer) const;

  const std::vector<Item>& items() const { return items_; }
  const std::vector<TileEntry>& tiles() const { return tiles_; }
  bool holds(const TileEntry& tile, std::uint32_t state) const {
    return columns_.find(tile.kind, state).has_value();
  }
  // Whether weights are handed out of such a tile alone.
  bool has_weights(const TileEntry& tile) const {
    return columns_.in_halves() ? tile.kind == TileKind::highs : holds(tile, kMaster);
  }
  // Whether these leave in a visit that moves masters.
  bool hands_out(const Visit& visit) const {
    return items_[visit.item].streaming.hands_out(visit.pass);
  }
  // Of this rank's matrices, which are the first of items(); of none in Placement::shard.
  const OwnerOrder& order() const { return *order_; }
  // Of all ranks' matrices; of none in Placement::owner.
  const ShardOrder* shard_order() const { return shard_order_ ? &*shard_order_ : nullptr; }
  std::uint64_t update_bytes() const { return update_bytes_; }
  const AdamLine& adam_line() const { return *adam_line_; }  // of all ranks
  // The visits of one step, in that order: those of matrices by their place on the line of order(),
  // AdamW's by that on a line of adam_line().length(), which keeps step with it. In
  // Placement::shard both by their turn.
  const std::vector<Visit>& schedule() const { return schedule_; }
  // The tile of a visit; where there is none, what one of masters would hold.
  const TileEntry& entry(const Visit& visit) const {
    return (visit.has_tile() ? tiles_ : hand_outs_)[visit.tile];
  }
  // Where a visit is on its line. REQUIRES: Placement::owner, or AdamW's.
  std::uint64_t place(const Visit& visit) const;
  // REQUIRES: Placement::shard.
  std::size_t turn(const Visit& visit) const;
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

  std::uint64_t state_bytes() const;   // of this rank, in tiles that steps visit
  double newton_schulz_flops() const;  // of this rank, one step
  std::uint64_t adam_elems() const;
  // Equal on all ranks that describe the same state in the same places.
  std::uint64_t digest() const { return digest_; }

 private:
  explicit StatePlan(Columns columns) : columns_(std::move(columns)) {}
  Result<> lay_out(const ModelSpec& model, const PartitionSpec& partition,
                   std::span<const ParamClass> classes);
  Result<> lay_matrices(const ModelSpec& model);
  void choose_homes();
  Result<> find_wholes(const ModelSpec& model);
  Streaming streaming_of(const ModelSpec& model, std::uint32_t param, const FlatRange& whole) const;
  bool comes_in_strips(const MuonSpec& spec, const Block& matrix) const;
  void find_derived(const ModelSpec& model);
  void add_matrices(const ModelSpec& model);
  void add_moments_item(const ModelSpec& model);
  void add_lent_moments(const ModelSpec& model);
  void add_moments(Item all);
  void add_shards(const ModelSpec& model);
  void add_adam_item(const ModelSpec& model);
  void lay_tiles();
  void cut(std::vector<TileEntry>& into, TileKind kind, std::uint32_t item) const;
  std::vector<TileEntry> moments_tiles() const;
  std::uint64_t blocks_in(const TileEntry& tile) const;
  std::uint32_t number_of(std::uint32_t param, Derived::Of of) const;
  std::vector<Visit> visits_to(std::uint64_t tile) const;
  std::vector<Visit> visits_to_moments(std::uint64_t tile) const;
  std::vector<Visit> lending_visits(std::uint64_t tile) const;
  void order_visits();
  void order_turns();

  Columns columns_;
  Rank rank_{};
  std::uint64_t tile_bytes_ = 0;
  std::uint64_t update_bytes_ = 0, stream_above_ = kNothingStreamed;
  Placement placement_ = Placement::owner;
  std::optional<ModelLayout> gradients_, weights_, matrices_, shards_, state_, updates_, results_;
  std::vector<bool> muon_;
  std::vector<Out> outs_;                   // by parameter
  std::vector<ItemRange> wholes_;           // by parameter
  std::vector<std::uint32_t> first_whole_;  // of a parameter, and one behind the last
  std::vector<Derived> derived_;
  std::vector<Item> items_;
  std::vector<bool> decays_;  // by matrices' item: gradients need the masters
  // By matrices' item, or in Placement::shard by matrix that is computed here: its part of the item
  // of second moments, maybe none; and there the chunk.
  std::vector<FlatRange> moments_;
  std::vector<std::size_t> lent_in_;
  std::uint32_t moments_item_ = 0;
  std::optional<OwnerOrder> order_;
  std::optional<ShardOrder> shard_order_;
  std::vector<std::size_t> bundles_;  // by item: which of shard_order_
  std::optional<AdamLine> adam_line_;
  std::vector<TileEntry> tiles_;
  std::vector<TileEntry> hand_outs_;  // by visit without a tile: what one of masters would hold
  std::vector<Visit> schedule_;
  double flops_ = 0;
  std::uint64_t adam_elems_ = 0;
  std::uint64_t digest_ = 0;
};

}  // namespace ebb::libmuon
