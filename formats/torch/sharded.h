// Tensors of which each rank has saved its part: torch's DTensor and ShardedTensor. What the pickle
// says of the whole - shape, mesh, placements, or boxes - and which of its boxes lie in this file.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <variant>
#include <vector>

#include "ebb/formats/layout/placements.h"
#include "ebb/formats/torch/composite.h"
#include "ebb/formats/torch/mesh_of.h"
#include "ebb/formats/torch/unread.h"

namespace ebb::formats {

// A box of the whole tensor, and where its elements lie: a tensor of that extent.
struct TensorShard {
  Box box;
  TorchTensor tensor;  // unless it is made of parts:
  std::optional<TorchComposite> made = {};
};

struct ShardedPart {
  std::string_view kind;  // "DTensor", "ShardedTensor"
  DType dtype = DType::f32;
  Shape shape;                            // of the whole
  std::shared_ptr<const RankList> ranks;  // that hold it, ascending
  std::optional<std::uint32_t> rank;      // whose part this is
  std::vector<TensorShard> shards;        // those with elements

  bool is_whole() const { return shards.size() == 1 && shards.front().box == whole(shape); }
};

// True for a node that is one, however it is wrapped.
bool is_sharded_tensor(const PickleGraph& graph, PickleId id);

// Those of one file.
class ShardedReader {
 public:
  // As for MeshReader.
  ShardedReader(const TorchFile& file, std::shared_ptr<const ByteSource> source,
                std::optional<std::uint32_t> named)
      : graph_(file.graph()), meshes_(file, std::move(source), named) {}

  // What cannot be read of what is well formed is an UnreadForm: sums that are not finished, a form
  // that is not known. Code::layout where the part is not what the mesh says. REQUIRES: it is one.
  using Part = std::variant<ShardedPart, UnreadForm>;
  Result<Part> part_of(PickleId id);

 private:
  struct Wrapper;
  Error bad(std::string_view why) const;
  Result<Part> dtensor(const Wrapper& wrapper);
  Result<Part> made_of_parts(TorchComposite made, const PlacedPart& placed, ShardedPart part);
  Result<Part> sharded_tensor(const Wrapper& wrapper);
  Result<> add_local_shards(PickleId list, ShardedPart& part) const;
  std::shared_ptr<const RankList> sorted(const std::shared_ptr<const RankList>& ranks);

  const PickleGraph& graph_;
  MeshReader meshes_;
  std::map<const RankList*, std::shared_ptr<const RankList>> in_order_;  // of meshes
};

}  // namespace ebb::formats
