// Items that do not lie as they are wanted, read in parts: every part right, nothing read twice.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "ebb/formats/core/units.h"
#include "ebb/formats/dcp/dcp.h"
#include "tests/support/counting_tree.h"
#include "tests/support/emit_in_memory.h"
#include "tests/support/source_tree.h"

namespace ebb {

namespace {

namespace fs = std::filesystem;

TEST(DcpPayload, PartsOfACompressedItemDecodeItOnce) {
  const fs::path folder = fs::path(EBB_FIXTURES) / "dcp" / "zstd_w2" / "data";
  const auto tree = std::make_shared<test_support::CountingTree>(test_support::load_tree(folder));
  const auto checkpoint = formats::describe_dcp(tree);
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;
  std::size_t in_parts = 0;
  for (const TensorEntry& tensor : (*checkpoint)->catalog().tensors)
    for (const Chunk& chunk : tensor.chunks) {
      ByteVector whole(formats::volume(chunk.box.extent) * bytes_of(tensor.dtype));
      if (whole.size() < 16) continue;
      const std::uint64_t before = tree->read();
      ByteVector parts(whole.size());
      for (std::size_t at = 0; at < parts.size(); at += 7) {
        const auto part = std::span(parts).subspan(at, std::min<std::size_t>(7, parts.size() - at));
        const auto read = (*checkpoint)->read(tensor, chunk, at, part);
        ASSERT_TRUE(read) << read.error().message;
        ++in_parts;
      }
      EXPECT_EQ(tree->read() - before, chunk.length) << *tensor.key;
      ASSERT_TRUE((*checkpoint)->read(tensor, chunk, 0, whole));
      EXPECT_EQ(parts, whole) << *tensor.key;
    }
  EXPECT_GT(in_parts, 100u);
  for (const std::uint64_t bytes : tree->decoded_bytes()) EXPECT_GT(bytes, 0u);
}

TEST(DcpPayload, PartsOfAStridedItemAreThoseOfTheWhole) {
  const fs::path folder = fs::path(EBB_FIXTURES) / "dcp" / "zoo_w1" / "data";
  const auto checkpoint = formats::describe_dcp(test_support::load_tree(folder));
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;
  for (const TensorEntry& tensor : (*checkpoint)->catalog().tensors) {
    const auto whole = test_support::elements_of(**checkpoint, tensor);
    ASSERT_TRUE(whole) << whole.error().message;
    if (tensor.chunks.size() != 1) continue;
    ByteVector parts(whole->size());
    for (std::size_t at = 0; at < parts.size(); at += 11) {
      const auto part = std::span(parts).subspan(at, std::min<std::size_t>(11, parts.size() - at));
      ASSERT_TRUE((*checkpoint)->read(tensor, tensor.chunks[0], at, part));
    }
    EXPECT_EQ(parts, *whole) << *tensor.key;
  }
}

}  // namespace

}  // namespace ebb
