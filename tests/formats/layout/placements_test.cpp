#include "ebb/formats/layout/placements.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <numeric>

#include "tests/formats/layout/oracle.h"

namespace ebb::formats {
namespace {

using oracle::Random;
using Kind = Placement::Kind;
using Rows = std::vector<std::uint64_t>;

// torch.chunk, as it is documented: parts of ceil(n / parts), the last ones shorter or empty.
Rows chunk(const Rows& rows, std::uint64_t parts, std::uint64_t index) {
  const std::uint64_t size = (rows.size() + parts - 1) / parts;
  Rows part;
  for (std::uint64_t i = index * size; i < std::min<std::uint64_t>(rows.size(), (index + 1) * size);
       ++i)
    part.push_back(rows[i]);
  return part;
}

// The rows of one dimension that a rank has, in its order, row by row.
Rows rows_of(std::uint64_t count, std::span<const PlacedAxis> axes, std::uint32_t dim) {
  Rows rows(count);
  std::iota(rows.begin(), rows.end(), 0);
  for (const PlacedAxis& axis : axes) {
    if (axis.placement.kind == Kind::replicate || axis.placement.dim != dim) continue;
    if (axis.placement.kind == Kind::shard) {
      rows = chunk(rows, axis.ranks, axis.coordinate);
      continue;
    }
    Rows part;
    for (std::uint64_t i = 0; i < axis.placement.split; ++i) {
      const Rows mine = chunk(chunk(rows, axis.placement.split, i), axis.ranks, axis.coordinate);
      part.insert(part.end(), mine.begin(), mine.end());
    }
    rows = std::move(part);
  }
  return rows;
}

std::vector<PlacedAxis> drawn_axes(Random& random, std::size_t dims) {
  std::vector<PlacedAxis> axes(static_cast<std::size_t>(random() % 4));
  for (PlacedAxis& axis : axes) {
    axis.ranks = 1 + random() % 4;
    axis.placement.kind = static_cast<Kind>(random() % 3);
    axis.placement.dim = static_cast<std::uint32_t>(random() % dims);
    axis.placement.split = axis.placement.kind == Kind::strided ? 1 + random() % 4 : 1;
  }
  return axes;
}

// Moves to the next rank of the mesh; false behind the last.
bool next_rank(std::vector<PlacedAxis>& axes) {
  for (std::size_t i = axes.size(); i-- > 0;) {
    if (++axes[i].coordinate < axes[i].ranks) return true;
    axes[i].coordinate = 0;
  }
  return false;
}

// Checks a part against the rows of both dimensions, and counts its elements in `times`.
void check_part(const PlacedPart& part, const std::array<Rows, 2>& rows, std::uint64_t columns,
                std::vector<std::uint64_t>& times) {
  ASSERT_EQ(part.shape, (Shape{rows[0].size(), rows[1].size()}));
  std::uint64_t elems = 0;
  for (const PlacedBox& placed : part.boxes) {
    elems += volume(placed.box.extent);
    for (std::uint64_t i = 0; i < placed.box.extent[0]; ++i)
      for (std::uint64_t j = 0; j < placed.box.extent[1]; ++j) {
        ASSERT_EQ(placed.box.offset[0] + i, rows[0][placed.at[0] + i]);
        ASSERT_EQ(placed.box.offset[1] + j, rows[1][placed.at[1] + j]);
        ++times[(placed.box.offset[0] + i) * columns + placed.box.offset[1] + j];
      }
  }
  ASSERT_EQ(elems, volume(part.shape));
}

TEST(Placements, EqualTheRowsThatChunkingOneByOneGives) {
  Random random(3);
  for (int round = 0; round < 2000; ++round) {
    const Shape shape{random() % 14, random() % 9};
    std::vector<PlacedAxis> axes = drawn_axes(random, 2);
    std::vector<std::uint64_t> times(volume(shape));
    std::uint64_t copies = 1;
    for (const PlacedAxis& axis : axes)
      if (axis.placement.kind == Kind::replicate) copies *= axis.ranks;
    do {
      const auto part = placed_part(shape, axes);
      ASSERT_TRUE(part.has_value()) << part.error().message;
      check_part(*part, {rows_of(shape[0], axes, 0), rows_of(shape[1], axes, 1)}, shape[1], times);
    } while (next_rank(axes));
    EXPECT_TRUE(std::ranges::all_of(times, [&](std::uint64_t n) { return n == copies; }));
  }
}

TEST(Placements, OfAScalarAreAllOfIt) {
  const auto part = placed_part({}, std::vector{PlacedAxis{.ranks = 4, .coordinate = 2}});
  ASSERT_TRUE(part.has_value());
  ASSERT_EQ(part->boxes.size(), 1u);
  EXPECT_EQ(part->boxes[0].box, whole({}));
}

TEST(Placements, ThatDoNotFitAreRefused) {
  const auto refused = [](PlacedAxis axis) {
    const auto part = placed_part({6, 4}, std::vector{axis});
    return part ? std::string() : part.error().message;
  };
  EXPECT_EQ(refused({.ranks = 2, .coordinate = 2, .placement = {Kind::shard}}),
            "coordinate 2 on an axis of 2 ranks of the mesh");
  EXPECT_EQ(refused({.ranks = 2, .coordinate = 0, .placement = {Kind::shard, 2}}),
            "dimension 2 of a tensor of shape [6, 4] is cut");
  EXPECT_EQ(refused({.ranks = 2, .coordinate = 0, .placement = {Kind::strided, 0, 0}}),
            "a dimension is cut in 0 parts");
  EXPECT_EQ(refused({.ranks = 1, .coordinate = 0, .placement = {Kind::strided, 0, 1ull << 60}}),
            "");
  const auto many = placed_part(
      {1ull << 40}, std::vector{PlacedAxis{
                        .ranks = 2, .coordinate = 1, .placement = {Kind::strided, 0, 1ull << 30}}});
  ASSERT_FALSE(many.has_value());
  EXPECT_EQ(many.error().code, Code::limit);
}

}  // namespace
}  // namespace ebb::formats
