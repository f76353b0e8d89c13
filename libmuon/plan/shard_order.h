// ShardOrder: where Muon's state stays on shards (Placement::shard), which matrices' updates travel
// together, and when a step visits what.
//
// A bundle is what is laid together: one matrix, or several whose parts fit into one tile on every
// rank and which all have masters, or none; where momentum is in blocks, one, or several that have
// a block in common. Bundles follow from shapes and layouts alone. A chunk is some bundles: what
// any rank gathers of it, and what any stages, is at most the chunk size, or one bundle's. A step
// takes turns, the same on all ranks, with P a chunk's momentum and F its masters:
//   P0 -  P1 F0 P2 F1 ... F(n-2) -  F(n-1)
// Masters that decay in the gradient are read in P, before the momentum.
// Behind its P a chunk's updates go whole to the ranks that compute them; F, three turns later, has
// them back. Newton-Schulz has the two turns between. AdamW has a share in every turn.
//
// Pure arithmetic, the same on all ranks.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ebb/libmuon/plan/columns.h"
#include "ebb/libmuon/plan/item.h"
#include "ebb/libmuon/plan/model.h"
#include "ebb/libmuon/plan/model_layout.h"
#include "ebb/libmuon/plan/step_order.h"

namespace ebb::libmuon {

// Whether what decay adds to a gradient has room of its own until U is made: U travels narrower.
bool decays_separately(const MuonSpec& spec);

class ShardOrder {
 public:
  // Turns from a chunk's momentum to its masters.
  static constexpr std::size_t kTurnsBetween = 3;

  // What an order follows from; borrowed while it is made.
  struct From {
    const ModelSpec& model;
    const ModelLayout& shards;
    const ModelLayout& matrices;  // whole at the owners, that compute
    ItemPacker::Room room;        // of a tile of several matrices
    std::uint64_t chunk_bytes = 0;
  };
  explicit ShardOrder(const From& from);

  // In the order of the model; ranges that hold whole matrices.
  std::size_t bundles() const { return bundles_.size(); }
  std::span<const Transit> bundle(std::size_t number) const { return bundles_[number]; }

  std::size_t chunks() const { return chunks_; }
  std::size_t chunk_of(std::size_t bundle) const { return chunk_of_[bundle]; }
  std::size_t turns() const { return chunks_ == 0 ? 1 : 2 * chunks_ + kTurnsBetween - 1; }
  // When a chunk's momentum or masters move: tiles of that kind are visited.
  static std::size_t turn_of(std::size_t chunk, TileKind kind) {
    return 2 * chunk + (kind == TileKind::momentum ? 0 : kTurnsBetween);
  }
  // The turns of items, each of which is of such a bundle.
  StepOrder step_order(std::span<const Item> items, std::span<const std::size_t> bundles) const;

 private:
  void pack(const From& from);
  std::vector<std::size_t> in_order(const From& from) const;
  void cut(const From& from);

  std::vector<std::vector<Transit>> bundles_;
  std::vector<std::size_t> chunk_of_;  // by bundle
  std::size_t chunks_ = 0;
};

}  // namespace ebb::libmuon
