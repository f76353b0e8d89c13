// The generator of the arrays that covering_test.cpp runs, by brute force.
#include <gtest/gtest.h>

#include "tests/libmuon/covering/array.h"

namespace ebb::test {
namespace {

// A few factors; the third value of the second is not with the first two of the last.
const Factors kFactors{.sizes = {5, 3, 4, 2, 3}, .never = {{{1, 2}, {4, 0}}, {{1, 2}, {4, 1}}}};

bool has(const Row& row, const std::vector<Choice>& set) {
  for (const Choice choice : set)
    if (row[choice.factor] != choice.value) return false;
  return true;
}

std::size_t rows_with(const std::vector<Row>& rows, const std::vector<Choice>& set) {
  std::size_t count = 0;
  for (const Row& row : rows) count += has(row, set) ? 1 : 0;
  return count;
}

TEST(CoveringArray, HasEveryPairAndTripleThatMayBeAndNoneThatMayNot) {
  for (const std::size_t strength : {2u, 3u}) {
    const auto rows = covering_array(kFactors, strength, 7);
    std::uint64_t product = 1;
    for (const std::uint32_t size : kFactors.sizes) product *= size;
    EXPECT_LT(rows.size(), strength == 2 ? product / 10 : product / 4);
    for (std::uint32_t a = 0; a < kFactors.sizes.size(); ++a)
      for (std::uint32_t b = a + 1; b < kFactors.sizes.size(); ++b)
        for (std::uint32_t x = 0; x < kFactors.sizes[a]; ++x)
          for (std::uint32_t y = 0; y < kFactors.sizes[b]; ++y) {
            const bool never = a == 1 && b == 4 && x == 2 && y < 2;
            EXPECT_EQ(rows_with(rows, {{a, x}, {b, y}}) == 0, never) << a << x << b << y;
          }
    for (const auto& set : sets_of(kFactors, strength)) EXPECT_GT(rows_with(rows, set), 0u);
  }
}

TEST(CoveringArray, IsTheSameForASeedAndAnotherForAnother) {
  EXPECT_EQ(covering_array(kFactors, 2, 7), covering_array(kFactors, 2, 7));
  EXPECT_NE(covering_array(kFactors, 2, 7), covering_array(kFactors, 2, 8));
}

}  // namespace
}  // namespace ebb::test
