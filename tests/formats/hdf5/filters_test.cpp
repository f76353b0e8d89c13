#include "ebb/formats/hdf5/filters.h"

#include <gtest/gtest.h>

#include "ebb/formats/core/decompress.h"

namespace ebb {

namespace {

using formats::hdf5::Filter;
using formats::hdf5::undo_filters;

ByteVector bytes_of(std::initializer_list<int> numbers) {
  ByteVector out;
  for (const int number : numbers) out.push_back(static_cast<std::byte>(number));
  return out;
}

// zlib's own output for "aaaaaaaaaa".
const ByteVector kDeflated =
    bytes_of({0x78, 0x9c, 0x4b, 0x4c, 0x84, 0x01, 0x00, 0x14, 0xe1, 0x03, 0xcb});

// By hand; that h5py's checksums agree is for the fixtures to show.
TEST(Hdf5Filters, FletcherIsOfBigEndianWords) {
  EXPECT_EQ(formats::hdf5::fletcher32(bytes_of({0, 1})), 0x00010001u);
  EXPECT_EQ(formats::hdf5::fletcher32(bytes_of({0, 1, 0, 2})), 0x00040003u);
  EXPECT_EQ(formats::hdf5::fletcher32(bytes_of({1})), 0x01000100u);
}

// Both orders of the checksum's bytes are taken, and nothing else is.
TEST(Hdf5Filters, FletcherIsCompared) {
  const std::vector<Filter> fletcher = {{formats::hdf5::kFletcher32, {}}};
  const auto read = [&](std::initializer_list<int> stored) {
    return undo_filters(fletcher, 0, 1, bytes_of(stored), 4, "x");
  };
  for (const auto& sound : {read({0, 1, 0, 2, 3, 0, 4, 0}), read({0, 1, 0, 2, 0, 3, 0, 4})}) {
    ASSERT_TRUE(sound) << sound.error().message;
    EXPECT_EQ(*sound, bytes_of({0, 1, 0, 2}));
  }
  const auto flipped = read({0, 1, 0, 3, 3, 0, 4, 0});
  ASSERT_FALSE(flipped);
  EXPECT_EQ(flipped.error().message, "x: its checksum (fletcher32) is wrong");
}

TEST(Hdf5Filters, ShuffleIsUndoneWithARestAtTheEnd) {
  const std::vector<Filter> shuffle = {{formats::hdf5::kShuffle, {2}}};
  const auto plain = undo_filters(shuffle, 0, 2, bytes_of({1, 2, 11, 12, 9}), 5, "x");
  ASSERT_TRUE(plain);
  EXPECT_EQ(*plain, bytes_of({1, 11, 2, 12, 9}));
}

TEST(Hdf5Filters, AFilterThatWasSkippedIsNotUndone) {
  const std::vector<Filter> filters = {{formats::hdf5::kShuffle, {2}},
                                       {formats::hdf5::kDeflate, {4}}};
  const auto plain = undo_filters(filters, 2, 2, bytes_of({1, 2, 11, 12}), 4, "x");
  ASSERT_TRUE(plain) << plain.error().message;
  EXPECT_EQ(*plain, bytes_of({1, 11, 2, 12}));
}

TEST(Hdf5Filters, DeflateIsBoundedByTheChunk) {
  const std::vector<Filter> deflate = {{formats::hdf5::kDeflate, {4}}};
  const auto plain = undo_filters(deflate, 0, 1, kDeflated, 10, "x");
  ASSERT_TRUE(plain) << plain.error().message;
  EXPECT_EQ(*plain, ByteVector(10, std::byte{'a'}));
  const auto wrong = undo_filters(deflate, 0, 1, kDeflated, 9, "x");
  ASSERT_FALSE(wrong);
  EXPECT_EQ(wrong.error().message, "x: holds 10 bytes, not the 9 of a chunk");
  EXPECT_EQ(formats::unzlib(kDeflated, 5, "x").error().code, Code::limit);
}

TEST(Hdf5Filters, EveryPrefixAndEveryBitOfAStreamIsNoticed) {
  for (std::size_t size = 0; size < kDeflated.size(); ++size)
    EXPECT_FALSE(formats::unzlib(ByteView(kDeflated).first(size), 100, "x")) << size;
  for (std::size_t bit = 0; bit < kDeflated.size() * 8; ++bit) {
    ByteVector changed = kDeflated;
    changed[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    const auto plain = formats::unzlib(changed, 100, "x");
    // A bit of the header says how hard the compressor tried: that one changes nothing.
    EXPECT_TRUE(!plain || *plain == ByteVector(10, std::byte{'a'})) << bit;
  }
}

}  // namespace

}  // namespace ebb
