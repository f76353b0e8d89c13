// What lies where in a tile of a StatePlan.
#include <algorithm>
#include <utility>

#include "ebb/libmuon/plan/state_plan.h"

namespace ebb::libmuon {

using formats::native::Segment;

std::vector<StatePlan::Span> StatePlan::spans(const TileEntry& tile) const {
  std::vector<Span> spans;
  const std::uint64_t block = columns_.block(tile.kind);
  std::uint64_t blocks = 0;
  for (const ItemPart& part :
       parts_of(items()[tile.item], {tile.first, tile.count}, tile.first_part)) {
    EBB_CHECK(part.range.first % block == 0);
    spans.push_back({part.param, part.range, part.item_first - tile.first, blocks});
    blocks += formats::div_ceil(part.range.count, block);
  }
  return spans;
}

FlatRange StatePlan::elems_of(const Span& span, const Column& column) {
  return {column.in_blocks() ? span.tile_block : span.tile_first,
          formats::div_ceil(span.range.count, column.block)};
}

std::uint64_t StatePlan::blocks_in(const TileEntry& tile) const {
  const std::uint64_t block = columns_.block(tile.kind);
  if (block == 1) return tile.count;
  const Span last = spans(tile).back();
  return last.tile_block + formats::div_ceil(last.range.count, block);
}

std::vector<StatePlan::Extent> StatePlan::columns_in(const TileEntry& tile) const {
  const std::uint64_t blocks = blocks_in(tile);
  const auto offsets = columns_.offsets(tile.kind, tile.count, blocks);
  std::vector<Extent> extents;
  for (std::size_t i = 0; i < offsets.size(); ++i) {
    const Column& column = columns_.of(tile.kind)[i];
    extents.push_back({column, offsets[i], column.in_blocks() ? blocks : tile.count});
  }
  return extents;
}

std::uint32_t StatePlan::number_of(std::uint32_t param, Derived::Of of) const {
  const auto key = [](const Derived& one) { return std::pair(one.of, one.param); };
  const auto found = std::ranges::lower_bound(derived_, std::pair(of, param), {}, key);
  return static_cast<std::uint32_t>(params() + (found - derived_.begin()));
}

std::vector<Segment> StatePlan::segments(const TileEntry& tile) const {
  std::vector<Segment> segments;
  const auto number = [&](std::uint32_t param, const Column& column) {
    if (column.in_blocks()) return number_of(param, Derived::Of::scales);
    return tile.kind == TileKind::moments ? number_of(param, Derived::Of::moments) : param;
  };
  for (const auto& [column, offset, elems] : columns_in(tile))
    for (const Span& span : spans(tile)) {
      const FlatRange held = elems_of(span, column);
      segments.push_back({.param = number(span.param, column),
                          .state = column.state,
                          .dtype = column.dtype,
                          .first = span.range.first / column.block,
                          .count = held.count,
                          .offset = offset + held.first * bytes_of(column.dtype),
                          .encoding = column.encoding});
    }
  return segments;
}

std::uint64_t StatePlan::state_bytes() const {
  std::uint64_t bytes = 0;
  for (const TileEntry& tile : tiles_) {
    if (tile.kind == TileKind::bound) continue;
    for (const Extent& extent : columns_in(tile))
      bytes += extent.elems * bytes_of(extent.column.dtype);
  }
  return bytes;
}

}  // namespace ebb::libmuon
