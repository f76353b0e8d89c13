#include "ebb/formats/hdf5/superblock.h"

#include <gtest/gtest.h>

#include "tests/formats/hdf5/probed_tree.h"

namespace ebb {

namespace {

using formats::MemorySource;
using formats::hdf5::read_superblock;
using test_support::hdf5_bytes;

TEST(Hdf5Superblock, EveryPrefixOfAFileIsIncompleteOrNoHdf5) {
  const ByteVector whole = hdf5_bytes(200);
  for (std::size_t size = 0; size < whole.size(); ++size) {
    const MemorySource file(
        "f", ByteVector(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size)));
    EXPECT_FALSE(read_superblock(file)) << size;
  }
  EXPECT_TRUE(read_superblock(MemorySource("f", whole)));
}

TEST(Hdf5Superblock, IsFoundBehindAUserBlock) {
  ByteVector bytes(1024);
  ByteVector file = hdf5_bytes(300);
  // Addresses count from the base, the stated end from the file's beginning.
  const std::uint64_t base = 1024, end = 1324;
  std::memcpy(file.data() + 24, &base, 8);
  std::memcpy(file.data() + 40, &end, 8);
  formats::append_bytes(bytes, file);
  const auto block = read_superblock(MemorySource("f", bytes));
  ASSERT_TRUE(block) << block.error().message;
  EXPECT_EQ(block->at, 1024u);
  EXPECT_EQ(block->end, 1324u);
}

TEST(Hdf5Superblock, AFileThatWasNotClosedIsIncomplete) {
  ByteVector bytes(200);
  const ByteVector head = hdf5_bytes(96);
  std::copy_n(head.begin(), 8, bytes.begin());
  bytes[8] = std::byte{3};
  bytes[9] = bytes[10] = std::byte{8};
  bytes[28] = std::byte{200};
  EXPECT_TRUE(read_superblock(MemorySource("f", bytes)));
  bytes[11] = std::byte{1};
  const auto open = read_superblock(MemorySource("f", bytes));
  ASSERT_FALSE(open);
  EXPECT_EQ(open.error().code, Code::incomplete);
  EXPECT_NE(open.error().message.find("was not closed"), std::string::npos);
}

}  // namespace

}  // namespace ebb
