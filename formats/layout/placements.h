// What one rank holds of a tensor that torch's DTensor cuts over a mesh: pure arithmetic. Source:
// torch/distributed/tensor/placement_types.py (Shard and _StridedShard, _split_tensor).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ebb/formats/core/result.h"
#include "ebb/formats/layout/box.h"

namespace ebb::formats {

// What one axis of the mesh does to the tensor.
struct Placement {
  enum class Kind : std::uint8_t {
    replicate,  // the same at all of its ranks
    shard,      // dimension `dim` in parts, as torch.chunk cuts
    strided,    // in `split` parts first, of which each rank has a part of each
  };
  Kind kind = Kind::replicate;
  std::uint32_t dim = 0;
  std::uint64_t split = 1;
};

// One axis of the mesh, where a rank is on it, and what it does. In the order in which they cut.
struct PlacedAxis {
  std::uint64_t ranks = 1;
  std::uint64_t coordinate = 0;
  Placement placement = {};
};

// A box of the tensor, and where its first element lies in the rank's own tensor, in which it has
// the same extent.
struct PlacedBox {
  Box box;
  Shape at;
};

struct PlacedPart {
  Shape shape;                   // of the rank's own tensor
  std::vector<PlacedBox> boxes;  // that it consists of; none where it has no element
};

// Code::layout where axes and shape do not fit; Code::limit for more than 65536 boxes.
Result<PlacedPart> placed_part(const Shape& shape, std::span<const PlacedAxis> axes);

}  // namespace ebb::formats
