#include "ebb/formats/megatron/flat_boxes.h"

#include "ebb/formats/core/units.h"

namespace ebb::formats::megatron {
namespace {

constexpr std::uint64_t kMaxBoxes = 64;  // under one chunk

// The local boxes' shape; fails when `own` is not cut evenly or the flat length is another.
Result<Shape> box_shape(const Shape& own, const Shape& stored, const std::string& label) {
  const auto bad = [&](std::string_view why) {
    return Error{Code::corrupt, compose("{}: stored as {}, but its own shape {} {}", label,
                                        to_string(stored), to_string(own), why)};
  };
  if (stored.size() != own.size() + 1) return bad("has not one dimension less");
  Shape box;
  for (std::size_t d = 0; d < own.size(); ++d) {
    if (stored[d] == 0 || own[d] % stored[d] != 0)
      return bad("does not divide into that many boxes");
    box.push_back(own[d] / stored[d]);
  }
  if (volume(box) != stored.back()) return bad("gives boxes of another size");
  return box;
}

}  // namespace

Result<std::vector<FlatPiece>> pieces_of_flat_boxes(const Shape& own, const Shape& stored,
                                                    const Box& chunk, const std::string& label) {
  EBB_TRY_ASSIGN(const Shape local, box_shape(own, stored, label));
  std::vector<FlatPiece> pieces;
  if (volume(chunk.extent) == 0) return pieces;
  // Ranks write parts of their own box; a chunk over many is nothing Megatron makes.
  std::uint64_t boxes = 1;
  for (std::size_t d = 0; d < own.size(); ++d)
    boxes = checked_mul(boxes, chunk.extent[d]).value_or(kMaxBoxes + 1);
  if (boxes > kMaxBoxes)
    return Error{Code::limit, compose("{}: chunk {} covers more than {} boxes, which is the limit",
                                      label, to_string(chunk), kMaxBoxes)};
  const FlatRange range{chunk.offset.back(), chunk.extent.back()};
  std::uint64_t first = 0;
  // Over the boxes the chunk touches, in row-major order of their grid.
  Shape grid(chunk.offset.begin(), chunk.offset.end() - 1);
  for (std::size_t d = 1; d > 0;) {
    for (Box& box : boxes_of(local, range)) {
      for (std::size_t i = 0; i < own.size(); ++i) box.offset[i] += grid[i] * local[i];
      const std::uint64_t elems = volume(box.extent);
      pieces.push_back({std::move(box), first});
      first += elems;
    }
    for (d = own.size(); d > 0 && ++grid[d - 1] == chunk.offset[d - 1] + chunk.extent[d - 1]; --d)
      grid[d - 1] = chunk.offset[d - 1];
  }
  return pieces;
}

}  // namespace ebb::formats::megatron
