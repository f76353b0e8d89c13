// Boxes: N-d offset + extent inside a tensor, and what a flat range of a row-major tensor looks
// like. Units are elements everywhere. Source of the splitting rule: docs/architecture.md, "flat
// ranges".
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ebb/formats/core/bytes.h"
#include "ebb/formats/layout/shape.h"

namespace ebb::formats {

struct Box {
  Shape offset;
  Shape extent;  // same length as offset
  bool operator==(const Box&) const = default;
};

struct FlatRange {  // elements [first, first + count) of the row-major tensor
  std::uint64_t first = 0;
  std::uint64_t count = 0;
  bool operator==(const FlatRange&) const = default;
};

// Product of the extents, 1 for a scalar; nullopt when it does not fit 64 bits.
std::optional<std::uint64_t> checked_volume(std::span<const std::uint64_t> extent);
// REQUIRES: it fits.
std::uint64_t volume(std::span<const std::uint64_t> extent);

Box whole(const Shape& shape);
bool inside(const Box& box, const Shape& shape);  // also false on a rank mismatch

// Empty boxes intersect nothing; scalars always intersect. REQUIRES: same number of dimensions.
std::optional<Box> intersect(const Box& a, const Box& b);
// What both hold; {} if nothing.
FlatRange overlap(FlatRange a, FlatRange b);

// At most 2N-1 boxes which concatenate to exactly the range's byte order. REQUIRES: range inside.
std::vector<Box> boxes_of(const Shape& shape, FlatRange range);

// The box in pieces of at most so many elements, in row-major order of their first ones: cut along
// the slowest dimension that has to be, evenly. REQUIRES: most > 0.
std::vector<Box> pieces_of(const Box& box, std::uint64_t most);

// The range a box covers when its elements are contiguous in the row-major tensor, else nullopt.
std::optional<FlatRange> flat_range_of(const Shape& shape, const Box& box);

// A box whose elements lie row-major and dense in `data` (mutable or not).
struct ConstBoxView {
  const Box& box;
  ByteView data;
};
struct BoxView {
  const Box& box;
  std::span<std::byte> data;
};
// Copies `region` (inside both boxes), element by element size. Longest contiguous runs are
// memcpy'd.
void copy_region(const Box& region, ConstBoxView source, BoxView target, std::uint32_t elem_bytes);

// Calls visit(FlatRange) for each run of consecutive elements of the row-major tensor that the box
// consists of, ascending; the runs in order are the box's own row-major order. REQUIRES: inside.
template <typename Visit>
void for_each_run(const Shape& shape, const Box& box, Visit visit) {
  if (volume(box.extent) == 0) return;
  std::size_t run_dim = shape.size();  // dimensions from here on are one run
  while (run_dim > 0 && box.extent[run_dim - 1] == shape[run_dim - 1]) --run_dim;
  if (run_dim > 0) --run_dim;
  const std::uint64_t count = volume(std::span(box.extent).subspan(run_dim));
  Shape position = box.offset;
  for (std::size_t d = 1; d > 0;) {
    std::uint64_t first = 0;
    for (std::size_t i = 0; i < shape.size(); ++i) first = first * shape[i] + position[i];
    visit(FlatRange{first, count});
    for (d = run_dim; d > 0 && ++position[d - 1] == box.offset[d - 1] + box.extent[d - 1]; --d)
      position[d - 1] = box.offset[d - 1];
  }
}

std::string to_string(const Shape& shape);  // "[512, 2048]"
std::string to_string(const Box& box);      // "[0:512, 128:256]"

}  // namespace ebb::formats

namespace ebb {
using formats::Box;
using formats::FlatRange;
}  // namespace ebb
