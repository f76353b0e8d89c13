// Spans below 64 elements take the plain path, longer ones the windows: one element at a time is
// the reference.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include "ebb/libmuon/kernels/kernels.h"
#include "tests/libmuon/kernels/numbers.h"

namespace ebb::libmuon {
namespace {

__extension__ using Quad = __float128;

ExactSum one_by_one(std::span<const float> values) {
  ExactSum sum;
  for (const float& value : values) sum.add({&value, 1});
  return sum;
}

ExactSum at_once(std::span<const float> values) {
  ExactSum sum;
  sum.add(values);
  return sum;
}

// Any finite bit pattern: subnormals, zeros of both signs and the largest numbers among them.
std::vector<float> any_numbers(std::size_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<float> values;
  while (values.size() < count) {
    const auto value = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
    if (std::isfinite(value)) values.push_back(value);
  }
  return values;
}

TEST(ExactSum, WindowsEqualOneElementAtATimeOnAnyBits) {
  for (std::uint32_t seed = 0; seed < 50; ++seed) {
    const auto values = any_numbers(64 + seed * 61, seed);
    EXPECT_EQ(at_once(values).limbs, one_by_one(values).limbs) << seed;
  }
  const auto normal = testing::gaussian(5000, 1);
  EXPECT_EQ(at_once(normal).limbs, one_by_one(normal).limbs);
  for (const float extreme :
       {std::numeric_limits<float>::denorm_min(), std::numeric_limits<float>::min(),
        std::numeric_limits<float>::max(), 0.0f, -0.0f}) {
    std::vector<float> values(2048, extreme);
    EXPECT_EQ(at_once(values).limbs, one_by_one(values).limbs) << extreme;
    values[1000] = std::numeric_limits<float>::max();
    EXPECT_EQ(at_once(values).limbs, one_by_one(values).limbs) << extreme;
    values[1001] = std::numeric_limits<float>::denorm_min();
    EXPECT_EQ(at_once(values).limbs, one_by_one(values).limbs) << extreme;
  }
}

// Of every distance between the largest number and the smallest, significands all ones: squares end
// in the second window, on its border, or below.
TEST(ExactSum, WindowsEqualOneElementAtATimeWhereverASquareEnds) {
  const float ones = std::nextafter(2.0f, 0.0f);
  for (const int top : {127, 0, -60})
    for (int apart = 0; apart <= 60; ++apart) {
      std::vector<float> values(2048, std::ldexp(ones, top));
      for (std::size_t i = 0; i < values.size(); i += 3) values[i] = std::ldexp(ones, top - apart);
      EXPECT_EQ(at_once(values).limbs, one_by_one(values).limbs) << top << " " << apart;
    }
}

// What is left of each square is as large as it can be, and of one sign: sums of the lower window
// at their limits.
TEST(ExactSum, WindowsEqualOneElementAtATimeWhereAllNumbersAreTheSame) {
  std::mt19937 random(7);
  for (int trial = 0; trial < 2000; ++trial) {
    const auto significand = static_cast<float>(0x800000u | (random() >> 9));
    std::vector<float> values(1024, significand);
    values.front() = std::ldexp(significand, static_cast<int>(random() % 22));
    ASSERT_EQ(at_once(values).limbs, one_by_one(values).limbs) << trial;
  }
}

TEST(ExactSum, AnswersTheLargestMagnitude) {
  for (const std::size_t count : {0u, 1u, 63u, 64u, 1024u, 5000u}) {
    auto values = testing::gaussian(count, 8);
    for (std::size_t i = 0; i <= count; i += 61) {
      EXPECT_EQ(ExactSum().add(values), largest_magnitude(values)) << count;
      if (i < count) values[i] = i % 2 == 0 ? -std::ldexp(1.0f, static_cast<int>(i % 100)) : 0;
    }
    if (count == 0) continue;
    values[count / 2] = std::nanf("");
    EXPECT_EQ(ExactSum().add(values), std::numeric_limits<float>::infinity()) << count;
  }
}

TEST(ExactSum, AnyPartitionMergedInAnyOrderGivesTheSameLimbs) {
  auto values = testing::gaussian(20000, 2);
  const auto wild = any_numbers(500, 3);
  values.insert(values.begin() + 7000, wild.begin(), wild.end());
  const ExactSum whole = at_once(values);
  std::mt19937 random(4);
  for (int trial = 0; trial < 200; ++trial) {
    const std::size_t parts = 1 + random() % 17;
    std::vector<std::size_t> cuts = {0, values.size()};
    while (cuts.size() < parts + 1) cuts.push_back(random() % values.size());
    std::sort(cuts.begin(), cuts.end());
    std::vector<ExactSum> sums;
    for (std::size_t i = 0; i + 1 < cuts.size(); ++i)
      sums.push_back(at_once(std::span(values).subspan(cuts[i], cuts[i + 1] - cuts[i])));
    std::shuffle(sums.begin(), sums.end(), random);
    ExactSum merged;
    for (const ExactSum& sum : sums) merged.merge(sum);
    ASSERT_EQ(merged.limbs, whole.limbs) << trial;

    ExactSum raw;  // what a sum over ranks does
    for (const ExactSum& sum : sums)
      for (std::size_t i = 0; i < raw.limbs.size(); ++i) raw.limbs[i] += sum.limbs[i];
    raw.carry();
    ASSERT_EQ(raw.limbs, whole.limbs) << trial;
    ASSERT_EQ(raw.value(), whole.value());
  }
}

TEST(ExactSum, ValueIsCorrectlyRounded) {
  std::mt19937 random(5);
  for (int trial = 0; trial < 300; ++trial) {
    // Exponents near each other: the sum fits a quad, whose conversion rounds correctly.
    std::vector<float> values =
        testing::gaussian(1 + random() % 100, static_cast<std::uint32_t>(trial));
    const int shift = static_cast<int>(random() % 240) - 120;
    for (float& value : values) value = std::ldexp(std::abs(value) + 0.25f, shift);
    Quad sum = 0;
    for (const float value : values) sum += static_cast<Quad>(value) * static_cast<Quad>(value);
    EXPECT_EQ(at_once(values).value(), static_cast<double>(sum));
  }
}

TEST(ExactSum, TiesGoToEvenAndTheSmallestElementBreaksThem) {
  const float large = std::ldexp(1.0f, 26);
  std::vector<float> values = {large, large, 1.0f};  // 2^53 + 1
  EXPECT_EQ(at_once(values).value(), std::ldexp(1.0, 53));
  values.push_back(std::numeric_limits<float>::denorm_min());
  EXPECT_EQ(at_once(values).value(), std::ldexp(1.0, 53) + 2);
  EXPECT_EQ(at_once({}).value(), 0.0);
  const float least = std::numeric_limits<float>::denorm_min();
  EXPECT_EQ(at_once({&least, 1}).value(), std::ldexp(1.0, -298));
}

TEST(ExactSum, HoldsTheLargestNumberAnyNumberOfTimes) {
  const std::vector<float> values(1 << 20, std::numeric_limits<float>::max());
  ExactSum sum = at_once(values);
  for (int doubling = 0; doubling < 60; ++doubling) sum.merge(ExactSum(sum));
  const double max = static_cast<double>(std::numeric_limits<float>::max());
  EXPECT_EQ(sum.value(), std::ldexp(max * max, 80));
}

TEST(ExactSum, ANumberThatIsNotFiniteIsSeenAndAddsNothing) {
  for (const float bad : {std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity(), std::nanf("")})
    for (const std::size_t count : {10u, 3000u}) {
      auto values = testing::gaussian(count, 6);
      values[count / 2] = 0;
      const ExactSum good = at_once(values);
      values[count / 2] = bad;
      ExactSum sum = at_once(values);
      EXPECT_FALSE(sum.finite);
      EXPECT_EQ(sum.limbs, good.limbs);
      EXPECT_TRUE(std::isnan(sum.value()));
      ExactSum merged = good;
      merged.merge(sum);
      EXPECT_FALSE(merged.finite);
    }
}

}  // namespace
}  // namespace ebb::libmuon
