// How a list of tensors is cut over ranks: the partition policies of ZeRO, FSDP and Megatron as
// pure arithmetic, on a mesh. Sources: DeepSpeed stage_1_and_2.py/stage3.py
// (zero12, zero12_boundary, zero3), torch DTensor Shard(0) (rows), Megatron layer-wise
// (layer_wise), torch FSDP2 with uneven shards and Megatron-FSDP (uneven_rows).
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "ebb/formats/core/result.h"
#include "ebb/formats/core/units.h"
#include "ebb/formats/layout/box.h"
#include "ebb/formats/layout/mesh.h"

namespace ebb::formats {

enum class Policy : std::uint8_t {  // numbers are stored: never renumber
  replicated = 0,                   // every rank holds everything
  zero12 =
      1,  // one flat buffer of all tensors in order, tail pad to world * align_elems, cut evenly
  zero12_boundary =
      2,      // as zero12, but a cut never splits a tensor; every partition padded to the largest.
              // Cuts: runs of tensors in order, with the smallest possible largest run, each
              // run taking all that fits; trailing partitions may be empty
  zero3 = 3,  // per tensor: ceil(numel / world) elements a rank, padding inside the tensor
  rows =
      4,  // per tensor: ceil(rows / world) rows a rank (torch.chunk), trailing ranks may be empty;
          // a scalar counts as one row. The buffer pads every part to ceil(rows / world) rows
  layer_wise = 5,   // whole tensors, owners[tensor] says where
  uneven_rows = 6,  // per tensor: rows[tensor][shard] rows a shard, some may have none; no padding
};
std::string_view name_of(Policy policy);                    // "zero12", "zero12-boundary", ...
std::optional<Policy> policy_named(std::string_view name);  // takes '-' and '_'

// A box this rank holds, and where its row-major elements begin in the rank's buffer for that
// tensor.
struct Piece {
  Box box;
  std::uint64_t local_first = 0;
};

class Layout {
 public:
  struct Spec {
    Policy policy = Policy::replicated;
    Mesh mesh = {};
    // The policy cuts into shard_world / split shards, and what one of these has of a tensor is cut
    // again, evenly, into so many: shards of the mesh, one next to the other.
    std::uint32_t split = 1;
    std::uint64_t align_elems = 1;           // zero12*: partitions start on a multiple of this
    std::vector<std::uint32_t> owners = {};  // layer_wise: a shard index per tensor
    // uneven_rows: of each tensor, how many rows each shard has; together all of them.
    std::vector<std::vector<std::uint64_t>> rows = {};
  };
  // Tensors in bucket order. Fails (Code::layout) when the spec cannot hold them, naming which and
  // why.
  static Result<Layout> make(Spec spec, std::vector<Shape> tensors);
  // For several layouts of the same tensors.
  static Result<Layout> sharing(Spec spec, std::shared_ptr<const std::vector<Shape>> tensors);

  const Spec& spec() const { return spec_; }
  const std::vector<Shape>& tensors() const { return *tensors_; }
  std::uint64_t elems(std::size_t tensor) const { return elems_[tensor]; }

  // All policies give a rank one flat range of a tensor; its boxes are pieces(). {0, 0} if nothing,
  // as for a rank of the world outside of the mesh.
  FlatRange held(std::size_t tensor, Rank rank) const;
  FlatRange held_by(std::size_t tensor, std::uint32_t shard) const;
  // Shards (whose ranks the mesh knows) that hold something of `range`: [first, last], and maybe
  // some between them that hold nothing of the tensor. REQUIRES: range not empty, inside the
  // tensor; policy is not replicated.
  struct ShardSpan {
    std::uint32_t first = 0;
    std::uint32_t last = 0;
  };
  ShardSpan shards_of(std::size_t tensor, FlatRange range) const;
  // No shard holds more elements of the tensor.
  std::uint64_t largest_part(std::size_t tensor) const;

  // What `rank` holds of `tensor`, ascending in local_first, padding left out; empty if nothing.
  std::vector<Piece> pieces(std::size_t tensor, Rank rank) const;
  // Elements of the rank's buffer for that tensor, without padding.
  std::uint64_t local_elems(std::size_t tensor, Rank rank) const;
  // The rank's whole flat partition: where the tensor's part begins in it (0 if it holds nothing of
  // it), its length, its padding. REQUIRES: split = 1, as the next two.
  std::uint64_t buffer_first(std::size_t tensor, Rank rank) const;
  std::uint64_t buffer_elems(Rank rank) const;
  std::uint64_t padding_elems(Rank rank) const;

 private:
  Layout() = default;
  void lay_parts();
  void lay_flat();
  void lay_boundary();
  void lay_uneven();
  std::uint32_t shards() const { return spec_.mesh.shard_world / spec_.split; }  // of the policy
  FlatRange held_unsplit(std::size_t tensor, std::uint32_t shard) const;
  ShardSpan unsplit_shards_of(std::size_t tensor, FlatRange range) const;
  std::uint64_t largest_unsplit(std::size_t tensor) const;
  std::uint64_t part_elems(std::size_t tensor) const;
  std::uint64_t elems_before(std::size_t tensor, std::uint32_t shard) const;
  std::optional<std::uint32_t> shard_of(Rank rank) const;  // REQUIRES: a rank of the world

  Spec spec_;
  std::shared_ptr<const std::vector<Shape>> tensors_;
  std::vector<std::uint64_t> elems_;  // of each
  // Where each tensor begins, + end: in the flat order (zero12*), else in the buffer of its
  // holders.
  std::vector<std::uint64_t> first_;
  std::vector<std::uint64_t> cut_;  // zero12_boundary: index of the first tensor per shard, + end
  std::vector<std::uint64_t> shard_elems_;        // layer_wise: elements of each shard's buffer
  std::vector<std::vector<std::uint64_t>> ends_;  // uneven_rows: by tensor, of shards, in elements
  std::uint64_t partition_elems_ = 0;  // zero12*: elements of one partition, padding included
};

}  // namespace ebb::formats

namespace ebb {
using formats::Layout;
using formats::Policy;
}  // namespace ebb
