#include "ebb/formats/layout/box.h"

#include <algorithm>
#include <cstring>

#include "ebb/formats/core/check.h"
#include "ebb/formats/core/compose.h"
#include "ebb/formats/core/units.h"

namespace ebb::formats {
namespace {

// Elements from the start of `box`'s row-major data to the element at `position` of the tensor.
std::uint64_t index_within(const Box& box, std::span<const std::uint64_t> position) {
  std::uint64_t index = 0;
  for (std::size_t d = 0; d < position.size(); ++d)
    index = index * box.extent[d] + (position[d] - box.offset[d]);
  return index;
}

// Cuts [first, first + count) of the trailing dimensions from `dim` on into boxes; the leading ones
// are fixed at `prefix`.
void append_boxes(const Shape& shape, Shape& prefix, FlatRange range, std::vector<Box>& out) {
  const std::size_t dim = prefix.size();
  const std::uint64_t row = volume(std::span(shape).subspan(dim + 1));
  const auto descend = [&](std::uint64_t index, FlatRange within_row) {
    prefix.push_back(index);
    append_boxes(shape, prefix, within_row, out);
    prefix.pop_back();
  };
  std::uint64_t first = range.first;
  const std::uint64_t end = range.first + range.count;
  if (const std::uint64_t into_row = first % row; into_row != 0) {
    const std::uint64_t part = std::min(row - into_row, end - first);
    descend(first / row, {into_row, part});
    first += part;
  }
  if (const std::uint64_t rows = (end - first) / row; rows > 0) {
    Box box{prefix, Shape(dim, 1)};
    box.offset.push_back(first / row);
    box.extent.push_back(rows);
    box.offset.resize(shape.size(), 0);
    box.extent.insert(box.extent.end(), shape.begin() + static_cast<std::ptrdiff_t>(dim) + 1,
                      shape.end());
    out.push_back(std::move(box));
    first += rows * row;
  }
  if (first < end) descend(first / row, {0, end - first});
}

}  // namespace

std::optional<std::uint64_t> checked_volume(std::span<const std::uint64_t> extent) {
  if (std::ranges::find(extent, 0u) != extent.end()) return 0;
  std::uint64_t product = 1;
  for (const std::uint64_t size : extent) {
    const auto next = checked_mul(product, size);
    if (!next) return std::nullopt;
    product = *next;
  }
  return product;
}

std::uint64_t volume(std::span<const std::uint64_t> extent) {
  const auto product = checked_volume(extent);
  EBB_CHECK(product.has_value());
  return *product;
}

Box whole(const Shape& shape) { return {Shape(shape.size(), 0), shape}; }

bool inside(const Box& box, const Shape& shape) {
  if (box.offset.size() != shape.size() || box.extent.size() != shape.size()) return false;
  for (std::size_t d = 0; d < shape.size(); ++d)
    if (box.offset[d] > shape[d] || box.extent[d] > shape[d] - box.offset[d]) return false;
  return true;
}

std::optional<Box> intersect(const Box& a, const Box& b) {
  EBB_CHECK(a.offset.size() == b.offset.size());
  Box common;
  common.offset.reserve(a.offset.size());
  common.extent.reserve(a.offset.size());
  for (std::size_t d = 0; d < a.offset.size(); ++d) {
    const std::uint64_t first = std::max(a.offset[d], b.offset[d]);
    const std::uint64_t end = std::min(a.offset[d] + a.extent[d], b.offset[d] + b.extent[d]);
    if (first >= end) return std::nullopt;
    common.offset.push_back(first);
    common.extent.push_back(end - first);
  }
  return common;
}

FlatRange overlap(FlatRange a, FlatRange b) {
  const std::uint64_t first = std::max(a.first, b.first);
  const std::uint64_t end = std::min(a.first + a.count, b.first + b.count);
  return end > first ? FlatRange{first, end - first} : FlatRange{};
}

std::vector<Box> boxes_of(const Shape& shape, FlatRange range) {
  const std::uint64_t elems = volume(shape);
  EBB_CHECK(range.first <= elems && range.count <= elems - range.first);
  if (range.count == 0) return {};
  if (shape.empty()) return {Box{}};
  if (range.count == elems) return {whole(shape)};
  if (shape.size() == 1) return {Box{{range.first}, {range.count}}};
  std::vector<Box> boxes;
  Shape prefix;
  append_boxes(shape, prefix, range, boxes);
  return boxes;
}

std::vector<Box> pieces_of(const Box& box, std::uint64_t most) {
  EBB_CHECK(most > 0);
  const std::uint64_t elems = volume(box.extent);
  if (elems <= most) return {box};
  std::size_t dim = 0;
  while (box.extent[dim] == 1) ++dim;
  const std::uint64_t rows = box.extent[dim];
  const std::uint64_t row = elems / rows;
  const std::uint64_t count = row <= most ? div_ceil(rows, most / row) : rows;
  std::vector<Box> pieces;
  for (std::uint64_t i = 0; i < count; ++i) {
    // The first `rows % count` pieces have one row more.
    const std::uint64_t first = i * (rows / count) + std::min(i, rows % count);
    Box piece = box;
    piece.offset[dim] += first;
    piece.extent[dim] = rows / count + (i < rows % count ? 1 : 0);
    for (Box& part : pieces_of(piece, most)) pieces.push_back(std::move(part));
  }
  return pieces;
}

std::optional<FlatRange> flat_range_of(const Shape& shape, const Box& box) {
  EBB_CHECK(inside(box, shape));
  const std::uint64_t elems = volume(box.extent);
  if (elems == 0) return FlatRange{};
  std::size_t dim = shape.size();
  while (dim > 0 && box.extent[dim - 1] == shape[dim - 1]) --dim;
  // Dimension dim-1 may be cut; those before it must be a single index.
  for (std::size_t d = 0; d + 1 < dim; ++d)
    if (box.extent[d] != 1) return std::nullopt;
  return FlatRange{index_within(whole(shape), box.offset), elems};
}

void copy_region(const Box& region, ConstBoxView source, BoxView target, std::uint32_t elem_bytes) {
  const std::size_t dims = region.offset.size();
  EBB_CHECK(source.box.offset.size() == dims && target.box.offset.size() == dims);
  EBB_CHECK(source.data.size() == volume(source.box.extent) * elem_bytes);
  EBB_CHECK(target.data.size() == volume(target.box.extent) * elem_bytes);
  if (volume(region.extent) == 0) return;
  EBB_CHECK(intersect(region, source.box) == region && intersect(region, target.box) == region);

  // Trailing dimensions that are whole in both boxes, and the one before them, are one run.
  std::size_t run_dim = dims;
  std::uint64_t run_elems = 1;
  while (run_dim > 0) {
    run_elems *= region.extent[--run_dim];
    if (region.extent[run_dim] != source.box.extent[run_dim] ||
        region.extent[run_dim] != target.box.extent[run_dim])
      break;
  }
  Shape position = region.offset;
  while (true) {
    std::memcpy(target.data.data() + index_within(target.box, position) * elem_bytes,
                source.data.data() + index_within(source.box, position) * elem_bytes,
                run_elems * elem_bytes);
    std::size_t d = run_dim;
    while (d > 0 && ++position[d - 1] == region.offset[d - 1] + region.extent[d - 1]) {
      position[d - 1] = region.offset[d - 1];
      --d;
    }
    if (d == 0) return;
  }
}

std::string to_string(const Shape& shape) {
  std::string text = "[";
  for (std::size_t d = 0; d < shape.size(); ++d)
    (text += d == 0 ? "" : ", ") += std::to_string(shape[d]);
  return text + "]";
}

std::string to_string(const Box& box) {
  std::string text = "[";
  for (std::size_t d = 0; d < box.offset.size(); ++d)
    ((text += d == 0 ? "" : ", ") += compose("{}:", box.offset[d])) +=
        std::to_string(box.offset[d] + box.extent[d]);
  return text + "]";
}

}  // namespace ebb::formats
