#include "libswap/sys/seen_parts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "formats/core/crc32c.h"

namespace {

using formats::ByteVector;
using formats::ByteView;
using formats::SeenPart;
using libswap::SeenParts;

SeenPart part_of(const ByteVector& bytes, std::uint64_t first, std::uint64_t size) {
  return {first, size, formats::crc32_zip(0, ByteView(bytes).subspan(first, size))};
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
    std::vector<SeenPart> known;
    for (const std::uint64_t piece : order) {
      known = seen.add("a", part_of(bytes, piece * 10, 10));
      seen.add("another", part_of(bytes, 0, 3));
    }
    ASSERT_EQ(known.size(), 1u);
    EXPECT_EQ(known[0].first, 0u);
    EXPECT_EQ(known[0].size, 1000u);
    EXPECT_EQ(known[0].crc, formats::crc32_zip(0, bytes));
  }
}

TEST(SeenParts, OverlapsAddNothingAndGapsStay) {
  const ByteVector bytes = some_bytes(100);
  SeenParts seen;
  seen.add("a", part_of(bytes, 10, 10));
  EXPECT_EQ(seen.add("a", part_of(bytes, 15, 10)).size(), 1u);
  EXPECT_EQ(seen.add("a", part_of(bytes, 5, 6)).size(), 1u);
  EXPECT_EQ(seen.add("a", part_of(bytes, 0, 100)).size(), 1u);
  EXPECT_EQ(seen.add("a", part_of(bytes, 10, 10)).size(), 1u);
  const auto known = seen.add("a", part_of(bytes, 30, 5));
  ASSERT_EQ(known.size(), 2u);
  EXPECT_EQ(known[0].size, 10u);
  EXPECT_EQ(known[1].first, 30u);
}

TEST(SeenParts, ForgetRatherThanGrow) {
  const ByteVector bytes = some_bytes(2 * SeenParts::kMostParts + 3);
  SeenParts seen;
  for (std::uint64_t i = 0; i < SeenParts::kMostParts; ++i) seen.add("a", part_of(bytes, 2 * i, 1));
  const auto known = seen.add("a", part_of(bytes, 2 * SeenParts::kMostParts, 1));
  EXPECT_EQ(known.size(), 1u);
}

}  // namespace
