// Items: what a step computes at once on a rank, in the order of their tiles. In Placement::owner
// the matrices that it owns; in Placement::shard its part of each bundle (ShardOrder). Behind them
// the second moments of all matrices that it computes, and all its AdamW ranges.
// Pure arithmetic.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "ebb/libmuon/plan/adam_line.h"
#include "ebb/libmuon/plan/columns.h"
#include "ebb/libmuon/plan/item.h"
#include "ebb/libmuon/plan/layouts.h"
#include "ebb/libmuon/plan/shard_order.h"
#include "ebb/libmuon/plan/step_order.h"

namespace ebb::libmuon {

// No update is as large.
inline constexpr std::uint64_t kNothingStreamed = ~std::uint64_t{0};

// Tiles of so many bytes that hold such columns.
struct TileSize {
  const Columns& columns;
  std::uint64_t bytes = 0;

  std::uint64_t capacity(TileKind kind) const { return columns.capacity(kind, bytes); }
  // Of several matrices in an item.
  ItemPacker::Room room() const;
  TileElems elems() const { return {capacity(TileKind::momentum), capacity(TileKind::masters)}; }
};

class Items {
 public:
  // What they follow from; borrowed while they are made.
  struct From {
    const ModelSpec& model;
    const Layouts& layouts;
    TileSize tiles;
    std::uint64_t update_bytes = 0;  // room for updates that are under way
    std::uint64_t stream_above = kNothingStreamed;
  };
  // Fails (Code::unsupported) naming a parameter whose matrix no tile can do.
  static Result<Items> make(const From& from);

  const std::vector<Item>& all() const { return all_; }
  // Of all ranks: what of a Muon parameter is computed whole.
  std::span<const ItemRange> matrix_runs(std::uint32_t param) const {
    return std::span(matrix_runs_)
        .subspan(first_run_[param], first_run_[param + 1] - first_run_[param]);
  }
  // Those that are matrices come first.
  std::uint32_t matrices() const { return static_cast<std::uint32_t>(decays_.size()); }
  // Whether gradients of such an item need its masters.
  bool decays(std::uint32_t item) const { return decays_[item]; }

  // Parts of the item of second moments, maybe empty ones: of each item of matrices, or in
  // Placement::shard of each matrix that is computed here, whose chunk moments_chunk() says.
  std::span<const FlatRange> moments() const { return moments_; }
  std::uint32_t moments_chunk(std::size_t matrix) const { return moments_chunks_[matrix]; }
  std::uint32_t moments_item() const { return matrices(); }  // it comes next

  // Of those that are matrices.
  const StepOrder& order() const { return *order_; }
  // Of all ranks' matrices; of none in Placement::owner.
  const ShardOrder* shard_order() const { return shard_order_ ? &*shard_order_ : nullptr; }
  // Of all ranks' AdamW ranges.
  const AdamLine& adam_line() const { return adam_line_; }

  double newton_schulz_flops() const { return flops_; }  // of this rank, one step
  std::uint64_t adam_elems() const { return adam_elems_; }

 private:
  explicit Items(const Layouts& layouts) : adam_line_(layouts) {}
  Result<> find_matrix_runs(const From& from);
  void add_matrices(const From& from);
  void add_shards(const From& from);
  void add_moments(const From& from);
  void add_shard_moments(const From& from);
  void add_moments_item(Item all);
  void add_adam_item(const From& from);

  std::vector<Item> all_;
  std::vector<ItemRange> matrix_runs_;    // by parameter
  std::vector<std::uint32_t> first_run_;  // of a parameter, and one behind the last
  std::vector<bool> decays_;
  std::vector<FlatRange> moments_;
  std::vector<std::uint32_t> moments_chunks_;
  std::optional<StepOrder> order_;
  std::optional<ShardOrder> shard_order_;
  AdamLine adam_line_;
  double flops_ = 0;
  std::uint64_t adam_elems_ = 0;
};

}  // namespace ebb::libmuon
