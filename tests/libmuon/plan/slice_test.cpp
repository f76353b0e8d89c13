#include "ebb/libmuon/plan/slice.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

namespace ebb::libmuon {
namespace {

// Which elements of the parameter are in a box, one after another: by walking through all of them.
std::vector<std::uint64_t> elements_of(const Box& box, const Shape& shape) {
  std::vector<std::uint64_t> elements;
  for (std::uint64_t i = 0; i < formats::volume(shape); ++i) {
    bool inside = true;
    std::uint64_t rest = i;
    for (std::size_t dimension = shape.size(); dimension-- > 0; rest /= shape[dimension]) {
      const std::uint64_t at = rest % shape[dimension] - box.offset[dimension];
      inside = inside && at < box.extent[dimension];  // wraps where it is before
    }
    if (inside) elements.push_back(i);
  }
  return elements;
}

template <typename Take>
void for_boxes(const Shape& shape, const Take& take, Box box = {}) {
  const std::size_t dimension = box.offset.size();
  if (dimension == shape.size()) return take(box);
  for (std::uint64_t first = 0; first < shape[dimension]; ++first)
    for (std::uint64_t extent = 1; first + extent <= shape[dimension]; ++extent) {
      Box next = box;
      next.offset.push_back(first);
      next.extent.push_back(extent);
      for_boxes(shape, take, std::move(next));
    }
}

void expect_slice(const Slice& slice, const std::vector<std::uint64_t>& elements,
                  std::uint64_t all) {
  ASSERT_EQ(slice.elems, elements.size());
  for (std::uint64_t first = 0; first <= all; ++first)
    for (std::uint64_t count : {std::uint64_t{0}, std::uint64_t{1}, all / 3, all - first}) {
      count = std::min(count, all - first);
      const auto begin = std::ranges::lower_bound(elements, first);
      const auto end = std::ranges::lower_bound(elements, first + count);
      const FlatRange local = slice.local({first, count});
      EXPECT_EQ(local.first, static_cast<std::uint64_t>(begin - elements.begin()));
      EXPECT_EQ(local.count, static_cast<std::uint64_t>(end - begin));
      std::vector<std::uint64_t> walked;
      slice.for_runs(local, [&](FlatRange run) {
        for (std::uint64_t i = 0; i < run.count; ++i) walked.push_back(run.first + i);
      });
      EXPECT_EQ(walked, std::vector<std::uint64_t>(begin, end));
      if (local.count == 0) continue;
      EXPECT_EQ(slice.bounds(local), (FlatRange{*begin, *(end - 1) + 1 - *begin}));
    }
}

TEST(Slice, IsAnyBoxElementByElement) {
  std::size_t in_blocks = 0;
  for (const Shape& shape : {Shape{5}, Shape{3, 4}, Shape{2, 3, 3}, Shape{1, 3, 4}, Shape{2, 1, 3}})
    for_boxes(shape, [&](const Box& box) {
      const auto slice = Slice::of(box, shape);
      ASSERT_TRUE(slice);
      in_blocks += slice->block < slice->elems ? 1 : 0;
      expect_slice(*slice, elements_of(box, shape), formats::volume(shape));
    });
  EXPECT_GT(in_blocks, 0u);
}

TEST(Slice, OfBlocksOfBlocksIsNone) {
  const Shape shape{2, 2, 3, 2};
  std::size_t none = 0;
  for_boxes(shape, [&](const Box& box) {
    if (const auto slice = Slice::of(box, shape))
      expect_slice(*slice, elements_of(box, shape), formats::volume(shape));
    else
      ++none;
  });
  EXPECT_EQ(none, 0u);  // one of two places is no block
  EXPECT_FALSE(Slice::of({{0, 0, 0, 0}, {2, 2, 2, 1}}, {2, 3, 3, 2}));
}

TEST(Slice, OfTheSlowestDimensionIsARun) {
  EXPECT_EQ(Slice::of({{2, 0}, {2, 4}}, {6, 4}), Slice::run({8, 8}));
  EXPECT_TRUE(Slice::of({{0, 2, 0}, {1, 2, 4}}, {1, 6, 4})->is_run());
  EXPECT_FALSE(Slice::of({{0, 2, 0}, {2, 2, 4}}, {2, 6, 4})->is_run());
  EXPECT_EQ(Slice::of({{6, 0}, {0, 4}}, {6, 4}), Slice::run({24, 0}));
}

}  // namespace
}  // namespace ebb::libmuon
