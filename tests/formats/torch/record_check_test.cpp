#include "ebb/formats/zip/record_check.h"

#include <gtest/gtest.h>

#include <cstdint>

#include "ebb/formats/core/crc32c.h"
#include "tests/support/source_tree.h"

namespace ebb {

namespace {

using formats::CheckedRecord;
using formats::RecordGaps;

TEST(RecordGaps, AreWhatNobodyHoldsBesideAPart) {
  RecordGaps gaps;
  gaps.hold(7, {60, 20}, 1);
  gaps.hold(7, {10, 20}, 2);
  gaps.hold(7, {20, 20}, 3);  // overlaps
  gaps.hold(3, {0, 5}, 4);    // all of it
  std::vector<std::uint64_t> sizes(8, 0);
  sizes[3] = 5;
  sizes[7] = 100;
  gaps.close(sizes);
  using Gaps = std::vector<FlatRange>;
  EXPECT_EQ(gaps.beside(7, {10, 10}, 2), (Gaps{{0, 10}}));
  EXPECT_EQ(gaps.beside(7, {20, 20}, 3), (Gaps{{40, 20}}));
  EXPECT_EQ(gaps.beside(7, {20, 5}, 3), Gaps{});
  EXPECT_EQ(gaps.beside(7, {60, 20}, 1), (Gaps{{80, 20}}));
  EXPECT_EQ(gaps.beside(3, {0, 5}, 4), Gaps{});
  EXPECT_EQ(gaps.beside(5, {0, 5}, 4), Gaps{});
}

// A hostile file has thousands of tensors of one element before gigabytes that nobody wants.
TEST(RecordGaps, AreReadByOneOfThoseBesideThem) {
  RecordGaps gaps;
  gaps.hold(0, {10, 4}, 1);
  gaps.hold(0, {10, 4}, 2);
  gaps.hold(0, {12, 2}, 3);
  gaps.close(std::vector<std::uint64_t>{1000});
  std::vector<FlatRange> read;
  for (const auto& [part, holder] : {std::pair(FlatRange{10, 4}, 1), std::pair(FlatRange{10, 4}, 2),
                                     std::pair(FlatRange{12, 2}, 3)})
    for (const FlatRange gap : gaps.beside(0, part, holder)) read.push_back(gap);
  EXPECT_EQ(read, (std::vector<FlatRange>{{0, 10}, {14, 986}}));
}

// A tensor without elements inside a gap: nobody reads it, so nothing beside it would be read.
TEST(RecordGaps, AreNotCutByWhatIsEmpty) {
  RecordGaps gaps;
  gaps.hold(0, {4, 0}, 1);
  gaps.hold(0, {10, 10}, 2);
  gaps.hold(0, {50, 0}, 3);
  gaps.close(std::vector<std::uint64_t>{100});
  EXPECT_EQ(gaps.beside(0, {10, 10}, 2), (std::vector<FlatRange>{{0, 10}, {20, 80}}));
}

// Whoever reads the last part finds nothing that it would have to read again.
TEST(RecordCheck, ReadsGapsOnlyAndNoticesAChangeInThem) {
  ByteVector bytes(100);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 7);
  const std::uint32_t crc = formats::crc32_zip(0, bytes);
  for (const bool changed : {false, true}) {
    test_support::MemoryTree tree("t");
    tree.add("a", bytes);
    if (changed) tree.bytes_of("a")[45] ^= std::byte{1};
    const auto source = tree.open("a");
    ASSERT_TRUE(source.has_value());
    const CheckedRecord record{"data/0", 0, 0, 100, crc};
    RecordGaps gaps;
    gaps.hold(0, {0, 40}, 1);
    gaps.hold(0, {50, 50}, 2);
    gaps.close(std::vector<std::uint64_t>{100});
    const auto read = [&](FlatRange part) {
      return check_part(tree, **source, record, part.first,
                        ByteView(bytes).subspan(part.first, part.count),
                        gaps.beside(0, part, part.first < 50 ? 1 : 2));
    };
    EXPECT_TRUE(read({90, 10}).has_value());  // the end, while others are at work
    EXPECT_TRUE(read({0, 40}).has_value());
    EXPECT_EQ(read({50, 40}).has_value(), !changed);
  }
}

}  // namespace

}  // namespace ebb
