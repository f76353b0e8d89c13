#include "ebb/formats/layout/placements.h"

#include <algorithm>

#include "ebb/formats/core/compose.h"
#include "ebb/formats/core/units.h"

namespace ebb::formats {
namespace {

constexpr std::uint64_t kMostBoxes = 1u << 16;

// Of one dimension, what a rank has, in its own order: ranges one after the other.
using Runs = std::vector<FlatRange>;

std::uint64_t count_of(const Runs& runs) {
  std::uint64_t count = 0;
  for (const FlatRange& run : runs) count += run.count;
  return count;
}

// Positions [first, end) of what the runs hold, appended.
void append_part(const Runs& runs, std::uint64_t first, std::uint64_t end, Runs& into) {
  std::uint64_t at = 0;
  for (const FlatRange& run : runs) {
    const std::uint64_t from = std::max(first, at);
    const std::uint64_t to = std::min(end, at + run.count);
    if (from < to) {
      const FlatRange part{run.first + (from - at), to - from};
      if (!into.empty() && into.back().first + into.back().count == part.first)
        into.back().count += part.count;
      else
        into.push_back(part);
    }
    at += run.count;
  }
}

// The range of `count` things that torch.chunk gives to part `index` of `parts`.
FlatRange chunk_of(std::uint64_t count, std::uint64_t parts, std::uint64_t index) {
  const std::uint64_t size = div_ceil(count, parts);
  const std::uint64_t first = size == 0 || index < div_ceil(count, size) ? size * index : count;
  return {first, std::min(size, count - first)};
}

Result<Runs> cut(const Runs& runs, const PlacedAxis& axis) {
  const std::uint64_t count = count_of(runs);
  Runs part;
  if (axis.placement.kind == Placement::Kind::shard) {
    const FlatRange mine = chunk_of(count, axis.ranks, axis.coordinate);
    append_part(runs, mine.first, mine.first + mine.count, part);
    return part;
  }
  // Of a dimension with fewer rows than parts, the last parts have none.
  const std::uint64_t split = std::min(axis.placement.split, std::max<std::uint64_t>(count, 1));
  if (split > kMostBoxes)
    return Error{Code::limit, compose("a dimension is cut in {} parts, the limit is {}",
                                      axis.placement.split, kMostBoxes)};
  for (std::uint64_t i = 0; i < split; ++i) {
    const FlatRange outer = chunk_of(count, axis.placement.split, i);
    const FlatRange mine = chunk_of(outer.count, axis.ranks, axis.coordinate);
    const std::uint64_t first = outer.first + mine.first;
    append_part(runs, first, first + mine.count, part);
  }
  return part;
}

// All combinations of the dimensions' runs, the first dimension slowest.
std::vector<PlacedBox> boxes_of_runs(const std::vector<Runs>& runs) {
  std::vector<PlacedBox> boxes{{}};
  for (const Runs& its : runs) {
    std::vector<PlacedBox> longer;
    for (const PlacedBox& box : boxes) {
      std::uint64_t at = 0;
      for (const FlatRange& run : its) {
        PlacedBox& next = longer.emplace_back(box);
        next.box.offset.push_back(run.first);
        next.box.extent.push_back(run.count);
        next.at.push_back(at);
        at += run.count;
      }
    }
    boxes = std::move(longer);
  }
  return boxes;
}

Result<> check_axis(const Shape& shape, const PlacedAxis& axis) {
  if (axis.coordinate >= axis.ranks)
    return Error{Code::layout, compose("coordinate {} on an axis of {} ranks of the mesh",
                                       axis.coordinate, axis.ranks)};
  if (axis.placement.kind == Placement::Kind::replicate) return {};
  if (axis.placement.dim >= shape.size())
    return Error{Code::layout, compose("dimension {} of a tensor of shape {} is cut",
                                       axis.placement.dim, to_string(shape))};
  if (axis.placement.split == 0) return Error{Code::layout, "a dimension is cut in 0 parts"};
  return {};
}

}  // namespace

Result<PlacedPart> placed_part(const Shape& shape, std::span<const PlacedAxis> axes) {
  std::vector<Runs> runs;
  for (const std::uint64_t extent : shape) runs.push_back(extent == 0 ? Runs() : Runs{{0, extent}});
  for (const PlacedAxis& axis : axes) {
    EBB_TRY(check_axis(shape, axis));
    if (axis.placement.kind == Placement::Kind::replicate) continue;
    Runs& its = runs[axis.placement.dim];
    EBB_TRY_ASSIGN(its, cut(its, axis));
  }
  PlacedPart part;
  std::optional<std::uint64_t> boxes = 1;
  for (const Runs& its : runs) {
    part.shape.push_back(count_of(its));
    if (boxes) boxes = checked_mul(*boxes, its.size());
  }
  if (!boxes || *boxes > kMostBoxes)
    return Error{Code::limit,
                 compose("a rank's part of a tensor of shape {} is in more than {} boxes, which is "
                         "the limit",
                         to_string(shape), kMostBoxes)};
  part.boxes = boxes_of_runs(runs);
  return part;
}

}  // namespace ebb::formats
