#include "ebb/libmuon/plan/streaming.h"

#include <algorithm>

#include "ebb/formats/core/units.h"

namespace ebb::libmuon {

using formats::align_up;
using formats::div_ceil;

Streaming streaming_of(std::uint32_t passes, std::uint64_t cols, const TileElems& tiles) {
  const std::uint64_t rows = div_ceil(std::max(tiles.momentum, tiles.masters), cols);
  return {passes, static_cast<std::uint32_t>(div_ceil(rows, kSumUnit) * cols)};
}

std::vector<Leg> legs_of(const Streaming& streaming, std::uint64_t elems, const TileElems& tiles,
                         std::uint64_t place) {
  std::vector<Leg> legs;
  const auto add = [&](Visit visit, std::uint32_t pass, std::uint64_t first, std::uint64_t end) {
    if (end <= first) return first;
    legs.push_back({visit, pass, {first, end - first}, place});
    place += end - first;
    return end;
  };
  for (std::uint32_t pass = 1; pass < streaming.passes; ++pass)
    add(pass == 1 ? Visit::prepare : Visit::again, pass, 0, elems);
  const std::uint64_t panels = div_ceil(elems, streaming.panel());
  std::uint64_t made = 0, applied = 0;
  const auto apply = [&](std::uint64_t panel) {
    const std::uint64_t end = (panel + 1) * streaming.panel();
    applied =
        add(Visit::finish, 1, applied, end >= elems ? elems : end / tiles.masters * tiles.masters);
  };
  for (std::uint64_t panel = 0; panel < panels; ++panel) {
    const std::uint64_t reached = align_up((panel + 1) * streaming.panel(), tiles.momentum);
    made = add(Visit::again, streaming.passes, made, std::min(elems, reached));
    if (panel > 0) apply(panel - 1);
  }
  apply(panels - 1);
  return legs;
}

}  // namespace ebb::libmuon
