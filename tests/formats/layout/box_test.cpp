#include "ebb/formats/layout/box.h"

#include <gtest/gtest.h>

#include "tests/formats/layout/oracle.h"

namespace ebb::formats {
namespace {

using oracle::Random;
using oracle::up_to;

Shape random_shape(Random& random) {
  Shape shape(up_to(random, 5));
  for (std::uint64_t& size : shape) size = 1 + up_to(random, 4);
  return shape;
}

Box random_box(Random& random, const Shape& shape) {
  Box box = whole(shape);
  for (std::size_t d = 0; d < shape.size(); ++d) {
    box.offset[d] = up_to(random, shape[d] - 1);
    box.extent[d] = 1 + up_to(random, shape[d] - box.offset[d] - 1);
  }
  return box;
}

TEST(Box, VolumeSeesOverflowAndScalars) {
  EXPECT_EQ(checked_volume(Shape{}), 1u);
  EXPECT_EQ(checked_volume(Shape{3, 0, 7}), 0u);
  EXPECT_EQ(checked_volume(Shape{std::uint64_t{1} << 32, std::uint64_t{1} << 31}),
            std::uint64_t{1} << 63);
  EXPECT_EQ(checked_volume(Shape{std::uint64_t{1} << 32, std::uint64_t{1} << 32}), std::nullopt);
  EXPECT_EQ(checked_volume(Shape{std::uint64_t{1} << 63, 4, 0}), 0u);
}

TEST(Box, InsideRefusesOverflowAndOtherRanks) {
  EXPECT_TRUE(inside({{}, {}}, {}));
  EXPECT_TRUE(inside({{4, 0}, {0, 8}}, {4, 8}));
  EXPECT_FALSE(inside({{3, 0}, {2, 8}}, {4, 8}));
  EXPECT_FALSE(inside({{~std::uint64_t{0}, 0}, {2, 8}}, {4, 8}));
  EXPECT_FALSE(inside({{0}, {4}}, {4, 8}));
  EXPECT_FALSE(inside({{0, 0}, {4}}, {4, 8}));
}

TEST(Box, EmptyBoxesIntersectNothingAndScalarsAlways) {
  EXPECT_EQ(intersect({{0}, {0}}, {{0}, {4}}), std::nullopt);
  EXPECT_EQ(intersect({{2}, {0}}, {{0}, {4}}), std::nullopt);
  EXPECT_EQ(intersect(Box{}, Box{}), Box{});
  EXPECT_EQ(intersect({{0, 2}, {4, 4}}, {{3, 0}, {9, 3}}), (Box{{3, 2}, {1, 1}}));
}

TEST(FlatRange, BecomesAtMost2NMinus1BoxesInByteOrder) {
  Random random(1);
  for (int round = 0; round < 3000; ++round) {
    const Shape shape = random_shape(random);
    const std::uint64_t elems = volume(shape);
    const std::uint64_t first = up_to(random, elems);
    const FlatRange range{first, up_to(random, elems - first)};
    std::uint64_t next = first;
    const std::vector<Box> boxes = boxes_of(shape, range);
    for (const Box& box : boxes) {
      ASSERT_TRUE(inside(box, shape));
      for (const std::uint64_t element : oracle::elements_of(shape, box))
        ASSERT_EQ(element, next++) << to_string(shape) << to_string(box);
    }
    EXPECT_EQ(next, first + range.count);
    EXPECT_LE(boxes.size(), shape.empty() ? 1 : 2 * shape.size() - 1);
  }
}

TEST(FlatRange, OfTwoDimensionsIsPartialRowWholeRowsPartialRow) {
  EXPECT_EQ(boxes_of({4, 10}, {7, 20}),
            (std::vector<Box>{{{0, 7}, {1, 3}}, {{1, 0}, {1, 10}}, {{2, 0}, {1, 7}}}));
  EXPECT_EQ(boxes_of({4, 10}, {10, 20}), (std::vector<Box>{{{1, 0}, {2, 10}}}));
  EXPECT_EQ(boxes_of({4, 10}, {12, 3}), (std::vector<Box>{{{1, 2}, {1, 3}}}));
  EXPECT_EQ(boxes_of({}, {0, 1}), std::vector<Box>{Box{}});
  EXPECT_TRUE(boxes_of({4, 10}, {40, 0}).empty());
  EXPECT_TRUE(boxes_of({0, 10}, {0, 0}).empty());
}

TEST(FlatRange, OfABoxExistsExactlyWhenItsElementsAreContiguous) {
  Random random(2);
  int contiguous = 0;
  for (int round = 0; round < 3000; ++round) {
    const Shape shape = random_shape(random);
    const Box box = random_box(random, shape);
    const std::vector<std::uint64_t> elements = oracle::elements_of(shape, box);
    const bool dense = elements.back() - elements.front() + 1 == elements.size();
    const auto range = flat_range_of(shape, box);
    ASSERT_EQ(range.has_value(), dense) << to_string(shape) << to_string(box);
    if (range) {
      EXPECT_EQ(*range, (FlatRange{elements.front(), elements.size()}));
    }
    contiguous += dense ? 1 : 0;
  }
  EXPECT_GT(contiguous, 300);
  EXPECT_LT(contiguous, 2700);
}

TEST(CopyRegion, MovesExactlyTheRegionBetweenAnyTwoBoxes) {
  Random random(3);
  int copied = 0;
  for (int round = 0; round < 3000; ++round) {
    const Shape shape = random_shape(random);
    const Box from = random_box(random, shape);
    const Box to = random_box(random, shape);
    const auto common = intersect(from, to);
    if (!common) continue;
    // Sometimes less than all they have in common.
    const Box region = intersect(*common, random_box(random, shape)).value_or(*common);
    ++copied;
    std::vector<std::uint32_t> source;
    for (const std::uint64_t element : oracle::elements_of(shape, from))
      source.push_back(static_cast<std::uint32_t>(element));
    std::vector<std::uint32_t> target(volume(to.extent), 0xdeadbeef);
    copy_region(region, {from, std::as_bytes(std::span(source))},
                {to, std::as_writable_bytes(std::span(target))}, 4);
    const std::vector<std::uint64_t> in_region = oracle::elements_of(shape, region);
    std::size_t i = 0;
    for (const std::uint64_t element : oracle::elements_of(shape, to)) {
      const bool inside_region = std::ranges::find(in_region, element) != in_region.end();
      ASSERT_EQ(target[i++], inside_region ? element : 0xdeadbeef);
    }
  }
  EXPECT_GT(copied, 1000);
}

TEST(Box, PrintsAsSlices) {
  EXPECT_EQ(to_string(Shape{512, 2048}), "[512, 2048]");
  EXPECT_EQ(to_string(Box{{0, 128}, {512, 128}}), "[0:512, 128:256]");
  EXPECT_EQ(to_string(Shape{}), "[]");
}

}  // namespace
}  // namespace ebb::formats
