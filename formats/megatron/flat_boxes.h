// Megatron-core up to 0.15 stores optimizer state flat inside each tensor-parallel box: where such
// flat pieces lie in the tensor's own shape. Internal to formats/megatron.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ebb/formats/core/result.h"
#include "ebb/formats/layout/box.h"

namespace ebb::formats::megatron {

struct FlatPiece {
  Box box;                  // in the tensor's own shape
  std::uint64_t first = 0;  // elements into the stored chunk
};

// `stored`: [X/x, Y/y, ..., x*y*...] for a tensor of shape `own` = [X, Y, ...] whose boxes are
// [x, y, ...]. `chunk`: a box of `stored`. The pieces in order are the chunk's own row-major order.
// Fails (Code::corrupt) when the two shapes do not belong to each other; `label` names the tensor.
Result<std::vector<FlatPiece>> pieces_of_flat_boxes(const Shape& own, const Shape& stored,
                                                    const Box& chunk, const std::string& label);

}  // namespace ebb::formats::megatron
