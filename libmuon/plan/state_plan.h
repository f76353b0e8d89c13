// The plan of a rank's state: who owns which matrix, which tile holds what, in which order a step
// visits tiles, and what that costs. Pure arithmetic; the manifest's tables are made from it.
//
// Which tile holds what is stored with the state and compared when it is resumed; the order of a
// step's visits is not: another one needs no new store.
//
// Muon matrices live whole at one rank (longest-processing-time on Newton-Schulz cost); AdamW state
// lives on the gradient's own shard. All state is fp32.
#pragma once

#include <cstdint>
#include <vector>

#include "ebb/formats/layout/layout.h"
#include "ebb/formats/native/manifest.h"
#include "ebb/libmuon/plan/model.h"

namespace ebb::libmuon {

// Indices into Manifest::states; the names are what other formats call them.
enum class StateId : std::uint32_t { master = 0, momentum_buffer = 1, exp_avg = 2, exp_avg_sq = 3 };
std::vector<std::string> state_names();

// A range of a parameter inside an item's stream of elements.
struct ItemPart {
  std::uint32_t param = 0;
  FlatRange range;               // of the row-major parameter
  std::uint64_t item_first = 0;  // where it begins in the item
};

// What is computed at once: one large matrix or several small ones; or this rank's AdamW ranges.
struct Item {
  std::vector<ItemPart> parts;
  std::uint64_t elems = 0;
};

// Packs an owner's matrices, in the order of the model: those that are small share an item as long
// as one tile holds them, so that many of them do not pay a tile each.
class ItemPacker {
 public:
  explicit ItemPacker(std::uint64_t tile_elems) : tile_elems_(tile_elems) {}
  void add(std::uint32_t param, FlatRange range);
  const std::vector<Item>& items() const { return items_; }

 private:
  std::uint64_t tile_elems_;
  std::vector<Item> items_;
};

enum class TileKind : std::uint8_t { momentum, master, adam };

// What a tile holds: elements [first, first + count) of its item.
struct TileEntry {
  TileKind kind = TileKind::momentum;
  std::uint32_t item = 0;
  std::uint64_t first = 0;
  std::uint64_t count = 0;
  std::uint32_t first_part = 0;  // of the item: the one that holds `first`
};

class StatePlan {
 public:
  // Fails (Code::layout, Code::usage, Code::unsupported) naming the parameter or the setting.
  static Result<StatePlan> make(const ModelSpec& model, const PartitionSpec& partition,
                                std::uint64_t tile_bytes, Rank rank);

  Rank rank() const { return rank_; }
  std::uint32_t world() const { return gradients_->spec().mesh.world(); }
  std::uint64_t tile_bytes() const { return tile_bytes_; }
  std::uint64_t tile_elems() const { return tile_bytes_ / sizeof(float); }
  const Layout& gradients() const { return *gradients_; }
  const Layout& weights() const { return *weights_; }
  const Layout& owners() const { return *owners_; }  // of Muon matrices
  const Layout& shards() const { return *shards_; }  // of AdamW ranges
  bool muon(std::uint32_t param) const { return muon_[param]; }
  // The elements of a parameter whose state this rank keeps; count 0 if none.
  FlatRange own_range(std::uint32_t param) const;
  // Whether what this rank holds of it in `trainer` (gradients() or weights()) is all of that.
  bool in_place(std::uint32_t param, const Layout& trainer) const;

  const std::vector<Item>& items() const { return items_; }
  const std::vector<TileEntry>& tiles() const { return tiles_; }
  // The tiles that one step visits, in order: M0 M1 W0 M2 W1 ... with M and W the momentum and the
  // masters of an item, so that an item's Newton-Schulz has the paging of two items beside it;
  // AdamW tiles evenly between.
  std::vector<std::uint64_t> schedule() const;

  // The parts of a tile: (part, its range inside the parameter, where it begins in the tile).
  struct Span {
    std::uint32_t param = 0;
    FlatRange range;
    std::uint64_t tile_first = 0;
  };
  std::vector<Span> spans(const TileEntry& tile) const;
  // Bytes one state takes in an AdamW tile: w, exp_avg, exp_avg_sq lie one after another.
  static std::uint64_t adam_stride(const TileEntry& tile);
  std::vector<formats::native::Segment> segments(const TileEntry& tile) const;

  std::uint64_t state_elems() const;   // fp32 elements of state on this rank
  std::uint64_t largest_item() const;  // elements of U (and of O)
  double newton_schulz_flops() const;  // of this rank, one step
  std::uint64_t adam_elems() const;
  // Equal on all ranks that describe the same state in the same places.
  std::uint64_t digest() const { return digest_; }

 private:
  StatePlan() = default;
  void add_muon_items(const ModelSpec& model);
  void add_adam_item(const ModelSpec& model);
  void lay_tiles();

  Rank rank_{};
  std::uint64_t tile_bytes_ = 0;
  std::optional<Layout> gradients_, weights_, owners_, shards_;
  std::vector<bool> muon_;
  std::vector<Item> items_;
  std::vector<TileEntry> tiles_;
  double flops_ = 0;
  std::uint64_t adam_elems_ = 0;
  std::uint64_t digest_ = 0;
};

}  // namespace ebb::libmuon
