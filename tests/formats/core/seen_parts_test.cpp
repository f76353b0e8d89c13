#include "ebb/formats/core/seen_parts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <random>
#include <string>

#include "ebb/formats/core/crc32c.h"

namespace ebb {

namespace {

using formats::SeenParts;

std::optional<std::uint32_t> add(SeenParts& seen, const ByteVector& all, std::uint64_t first,
                                 std::uint64_t count, const std::string& key = "a") {
  const ByteView part = ByteView(all).subspan(first, count);
  return seen.add(key, all.size(), first, part, formats::crc32_zip(0, part));
}

ByteVector some_bytes(std::size_t count) {
  std::mt19937 random(5);
  ByteVector bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

TEST(SeenParts, BecomeTheWholeInAnyOrder) {
  const ByteVector bytes = some_bytes(1000);
  std::vector<std::uint64_t> order(100);
  std::iota(order.begin(), order.end(), 0);
  for (unsigned seed = 0; seed < 20; ++seed) {
    std::shuffle(order.begin(), order.end(), std::mt19937(seed));
    SeenParts seen;
    for (std::size_t i = 0; i < order.size(); ++i) {
      const auto crc = add(seen, bytes, order[i] * 10, 10);
      if (i + 1 < order.size()) {
        ASSERT_EQ(crc, std::nullopt);
      } else {
        ASSERT_EQ(crc, formats::crc32_zip(0, bytes));
      }
      EXPECT_EQ(add(seen, bytes, 0, 3, "another"), std::nullopt);
    }
  }
}

TEST(SeenParts, WhatIsSeenTwiceCountsOnce) {
  const ByteVector bytes = some_bytes(100);
  SeenParts seen;
  EXPECT_EQ(add(seen, bytes, 10, 10), std::nullopt);
  EXPECT_EQ(add(seen, bytes, 15, 10), std::nullopt);  // over its end
  EXPECT_EQ(add(seen, bytes, 5, 6), std::nullopt);    // over its start
  EXPECT_EQ(add(seen, bytes, 10, 10), std::nullopt);  // nothing new
  EXPECT_EQ(add(seen, bytes, 40, 10), std::nullopt);
  EXPECT_EQ(add(seen, bytes, 20, 80), std::nullopt);  // around it
  EXPECT_EQ(add(seen, bytes, 0, 7), formats::crc32_zip(0, bytes));
}

TEST(SeenParts, BeginAgainOnceTheyWereWhole) {
  const ByteVector bytes = some_bytes(100);
  SeenParts seen;
  for (int round = 0; round < 2; ++round) {
    EXPECT_EQ(add(seen, bytes, 0, 50), std::nullopt);
    EXPECT_EQ(add(seen, bytes, 50, 50), formats::crc32_zip(0, bytes));
  }
}

TEST(SeenParts, ForgetRatherThanGrow) {
  const ByteVector bytes = some_bytes(2 * SeenParts::kMostParts + 1);
  SeenParts seen;
  for (std::uint64_t i = 0; i <= SeenParts::kMostParts; ++i) add(seen, bytes, 2 * i, 1);
  for (std::uint64_t i = 0; i < SeenParts::kMostParts; ++i)
    EXPECT_EQ(add(seen, bytes, 2 * i + 1, 1), std::nullopt);
}

}  // namespace

}  // namespace ebb
