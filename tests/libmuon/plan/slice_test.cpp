#include "ebb/libmuon/plan/slice.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

namespace ebb::libmuon {
namespace {

// Which elements of the parameter, one after another: by walking through all of them.
std::vector<std::uint64_t> elements_of(const Shape& shape, std::size_t dimension,
                                       std::uint32_t index, std::uint32_t parts) {
  std::uint64_t behind = 1;
  for (std::size_t i = dimension + 1; i < shape.size(); ++i) behind *= shape[i];
  const std::uint64_t extent = shape[dimension] / parts;
  std::vector<std::uint64_t> elements;
  for (std::uint64_t i = 0; i < formats::volume(shape); ++i) {
    const std::uint64_t at = i / behind % shape[dimension];
    if (at / extent == index) elements.push_back(i);
  }
  return elements;
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

TEST(Slice, IsThePartOfADimensionElementByElement) {
  for (const Shape& shape : {Shape{12}, Shape{6, 4}, Shape{4, 6}, Shape{2, 6, 3}, Shape{1, 4, 5}})
    for (std::size_t dimension = 0; dimension < shape.size(); ++dimension)
      for (std::uint32_t parts = 1; parts <= shape[dimension]; ++parts)
        for (std::uint32_t index = 0; index < parts && shape[dimension] % parts == 0; ++index)
          expect_slice(Slice::part(shape, dimension, index, parts),
                       elements_of(shape, dimension, index, parts), formats::volume(shape));
}

TEST(Slice, OfTheSlowestDimensionIsARun) {
  EXPECT_EQ(Slice::part({6, 4}, 0, 1, 3), Slice::run({8, 8}));
  EXPECT_TRUE(Slice::part({1, 6, 4}, 1, 1, 3).is_run());
  EXPECT_FALSE(Slice::part({2, 6, 4}, 1, 1, 3).is_run());
}

}  // namespace
}  // namespace ebb::libmuon
