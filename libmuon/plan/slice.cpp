#include "ebb/libmuon/plan/slice.h"

#include <span>
#include <vector>

#include "ebb/formats/core/check.h"

namespace ebb::libmuon {

std::optional<Slice> Slice::of(const Box& box, const Shape& shape) {
  EBB_CHECK(box.offset.size() == shape.size() && box.extent.size() == shape.size());
  struct Level {
    std::uint64_t elems = 0, pitch = 0;  // of one of them; from one to the next
  };
  std::vector<Level> levels;  // the fastest first
  const auto from = [](const Shape& extents, std::size_t dimension) {
    return formats::volume(std::span(extents).subspan(dimension));
  };
  const std::uint64_t elems = formats::volume(box.extent);
  if (elems == 0) return run({formats::volume(shape), 0});
  std::uint64_t first = 0;
  for (std::size_t i = shape.size(); i-- > 0;) {
    first += box.offset[i] * from(shape, i + 1);
    const std::uint64_t here = from(box.extent, i);
    if (box.extent[i] == shape[i] || here == elems)
      continue;  // the next lies behind; there is none
    if (!levels.empty() && levels.back().elems == here) levels.pop_back();  // one of them
    levels.push_back({here, from(shape, i)});
  }
  if (levels.empty()) return run({first, elems});
  Slice slice{first, levels[0].elems, levels[0].pitch, elems};
  if (levels.size() == 2) {
    slice.block = levels[1].elems;
    slice.block_pitch = levels[1].pitch;
  }
  return levels.size() <= 2 ? std::optional(slice) : std::nullopt;
}

}  // namespace ebb::libmuon
