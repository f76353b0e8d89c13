#include "ebb/libmuon/plan/streaming.h"

#include <algorithm>
#include <limits>

#include "ebb/formats/core/units.h"

namespace ebb::libmuon {

using formats::align_up;
using formats::div_ceil;

namespace {

constexpr std::uint64_t kMost = std::numeric_limits<std::uint32_t>::max();  // columns, or units

Streaming in_strips(std::uint32_t passes, const Block& matrix, std::uint64_t tile_elems,
                    std::uint64_t room) {
  const std::uint64_t least = align_up(
      std::min(div_ceil(matrix.cols, Streaming::kMostStrips), Streaming::kTilesLong * tile_elems),
      kSumUnit);
  const std::uint64_t affordable = room / (Streaming::kStripsAtOnce * matrix.rows());
  const std::uint64_t width = std::max(least, affordable / kSumUnit * kSumUnit);
  const std::uint64_t units = matrix.rows() * width / kSumUnit;
  if (matrix.cols <= width || matrix.cols > kMost || units > kMost) return {};
  Streaming streaming{.units = static_cast<std::uint32_t>(units),
                      .cols = static_cast<std::uint32_t>(matrix.cols),
                      .strip_cols = static_cast<std::uint32_t>(width)};
  streaming.passes = 1 + (passes - 1) * streaming.strips();
  return streaming;
}

// Legs of one matrix, one behind the other.
struct Line {
  std::uint64_t place = 0;
  std::vector<Leg> legs = {};

  // To where they go.
  std::uint64_t add(Action action, std::uint32_t pass, std::uint64_t first, std::uint64_t end) {
    if (end <= first) return first;
    legs.push_back({action, pass, {first, end - first}, place});
    place += end - first;
    return end;
  }
};

void add_strips(const Streaming& streaming, std::uint64_t elems, Line& line) {
  const std::uint32_t before = streaming.passes - streaming.strips();
  for (std::uint32_t strip = 1; strip <= streaming.strips(); ++strip) {
    line.add(Action::recompute, before + strip, 0, elems);
    if (strip > 1) line.add(Action::finish, strip - 1, 0, elems);
  }
  line.add(Action::finish, streaming.strips(), 0, elems);
}

void add_panels(const Streaming& streaming, std::uint64_t elems, const TileElems& tiles,
                Line& line) {
  const std::uint64_t panels = div_ceil(elems, streaming.panel());
  std::uint64_t made = 0, applied = 0;
  const auto apply = [&](std::uint64_t panel) {
    const std::uint64_t end = (panel + 1) * streaming.panel();
    applied = line.add(Action::finish, 1, applied,
                       end >= elems ? elems : end / tiles.masters * tiles.masters);
  };
  for (std::uint64_t panel = 0; panel < panels; ++panel) {
    const std::uint64_t reached = align_up((panel + 1) * streaming.panel(), tiles.momentum);
    made = line.add(Action::recompute, streaming.passes, made, std::min(elems, reached));
    if (panel > 0) apply(panel - 1);
  }
  apply(panels - 1);
}

}  // namespace

Slice Streaming::strip_made_in(std::uint32_t pass, std::uint64_t elems) const {
  const std::uint64_t first = std::uint64_t{strip(pass)} * strip_cols;
  const std::uint64_t width = std::min<std::uint64_t>(strip_cols, cols - first);
  return {first, width, cols, elems / cols * width};
}

bool Streaming::needs(Action action, std::uint32_t pass, FlatRange some,
                      std::uint64_t elems) const {
  if (!wide() || action == Action::prepare || (action == Action::finish && hands_out(pass)))
    return true;
  return strip_made_in(made_in(action, pass), elems).local(some).count > 0;
}

Streaming streaming_of(std::uint32_t passes, const Block& matrix, const TileElems& tiles,
                       std::uint64_t room) {
  const std::uint64_t tile = std::max(tiles.momentum, tiles.masters);
  if (matrix.rows() < matrix.cols) return in_strips(passes, matrix, tile, room);
  const std::uint64_t rows = div_ceil(tile, matrix.cols);
  const std::uint64_t units = div_ceil(rows, kSumUnit) * matrix.cols;
  if (units > kMost) return {};
  return {passes, static_cast<std::uint32_t>(units)};
}

std::vector<Leg> legs_of(const Streaming& streaming, std::uint64_t elems, const TileElems& tiles,
                         std::uint64_t place) {
  Line line{place};
  const std::uint32_t last = streaming.wide() ? streaming.strips() : 1;  // passes for O
  for (std::uint32_t pass = 1; pass + last <= streaming.passes; ++pass)
    line.add(pass == 1 ? Action::prepare : Action::recompute, pass, 0, elems);
  if (streaming.wide())
    add_strips(streaming, elems, line);
  else
    add_panels(streaming, elems, tiles, line);
  return std::move(line.legs);
}

}  // namespace ebb::libmuon
