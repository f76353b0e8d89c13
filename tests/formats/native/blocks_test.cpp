// States in blocks of int8: stores made by hand from the page, read as the numbers they stand for.
#include <gtest/gtest.h>

#include <cstring>

#include "ebb/formats/native/ebb.h"
#include "ebb/formats/native/manifest.h"
#include "ebb/formats/native/store_files.h"
#include "ebb/formats/registry.h"
#include "tests/support/source_tree.h"

namespace ebb::formats {
namespace {

using native::Manifest;
using native::Superblock;
using native::Tile;
using test_support::MemoryTree;

constexpr std::uint64_t kBlockBytes = 4096;

// "w" [6, 100] in blocks of 256 codes, cut between its two tiles, and their three scales.
struct InBlocks {
  Shape scales = {3};
  std::uint64_t count = 3;  // of these
  DType dtype = DType::f32;

  std::shared_ptr<MemoryTree> tree() const {
    Superblock s;
    s.store.fill(std::byte{7});
    s.tile_bytes = 2 * kBlockBytes;
    s.block_bytes = kBlockBytes;
    s.slots = 2;
    s.tiles = 2;
    s.region_bytes = 4096;
    Manifest m;
    m.store = s.store;
    m.generation = 1;
    m.states = {"momentum_buffer", "momentum_buffer.scale"};
    m.groups = {{"muon", {}}};
    m.params = {{"w", {6, 100}, 0}, {"w", scales, 0}};
    Tile one, other;
    one.used_bytes = other.used_bytes = kBlockBytes;
    const std::uint32_t encoding = native::block_encoding(256);
    one.segments = {{0, 0, DType::i8, 0, 512, 64, encoding}, {1, 1, dtype, 0, count, 1024}};
    other.segments = {{0, 0, DType::i8, 512, 88, 0, encoding}};
    m.tiles = {one, other};
    ByteVector data = native::encode_data_header(s);
    data.resize(native::data_file_bytes(s));
    for (std::size_t i = 0; i < 600; ++i)
      data[native::tile_offset(s, i / 512, 0) + (i < 512 ? 64 + i : i - 512)] =
          static_cast<std::byte>(code(i));
    const float values[] = {scale(0), scale(1), scale(2)};
    std::memcpy(data.data() + native::tile_offset(s, 0, 0) + 1024, values, sizeof(values));
    for (std::size_t i = 0; i < 2; ++i)
      m.tiles[i].crcs.push_back(
          native::block_crc({s.store, s.rank, i, 0, 0, 0},
                            ByteView(data).subspan(native::tile_offset(s, i, 0), kBlockBytes)));
    ByteVector meta = encode(s);
    append_bytes(meta, encode(s));
    meta.resize(native::meta_file_bytes(s));
    std::ranges::copy(encode(m), meta.begin() + native::region_offset(s, 1));
    auto tree = std::make_shared<MemoryTree>("run/swap");
    const std::string below = native::rank_directory(s.rank, s.world) + "/";
    tree->add(below + "lock", std::string_view("1\n"));
    tree->add(below + "meta.ebb", std::move(meta));
    tree->add(below + native::data_file(s.store, s.rank), std::move(data));
    return tree;
  }
  static int code(std::size_t i) { return static_cast<int>(i * 37 % 255) - 127; }
  static float scale(std::size_t block) { return 0.5f + static_cast<float>(block); }
};

TEST(EbbBlocks, StatesInBlocksOfInt8AreReadAsTheNumbersTheyStandFor) {
  const auto described = describe(InBlocks{}.tree());
  ASSERT_TRUE(described) << described.error().message;
  const auto& tensors = (*described)->catalog().tensors;
  ASSERT_EQ(tensors.size(), 1u) << "scales are none";
  EXPECT_EQ(tensors[0].state, "momentum_buffer");
  EXPECT_EQ(tensors[0].dtype, DType::f32);
  EXPECT_EQ(tensors[0].stored, DType::i8);
  EXPECT_TRUE(prove_coverage((*described)->catalog()));
  for (const Chunk& chunk : tensors[0].chunks) {
    const auto range = flat_range_of(tensors[0].shape, chunk.box);
    ASSERT_TRUE(range);
    std::vector<float> values(range->count);
    ASSERT_TRUE(
        (*described)->read(tensors[0], chunk, 0, std::as_writable_bytes(std::span(values))));
    for (std::size_t i = 0; i < values.size(); ++i) {
      const std::size_t at = range->first + i;
      EXPECT_EQ(values[i], static_cast<float>(InBlocks::code(at)) * InBlocks::scale(at / 256));
    }
    constexpr std::size_t kWithin = 200;  // of a block, and on into the next
    if (values.size() <= kWithin) continue;
    std::vector<float> rest(values.size() - kWithin);
    ASSERT_TRUE((*described)
                    ->read(tensors[0], chunk, kWithin * sizeof(float),
                           std::as_writable_bytes(std::span(rest))));
    EXPECT_TRUE(std::ranges::equal(rest, std::span(values).subspan(kWithin)));
  }
}

TEST(EbbBlocks, BlocksWithoutTheirScalesAreRefusedByName) {
  const auto refused = [](const InBlocks& store) { return describe(store.tree()).error().message; };
  EXPECT_EQ(refused({.scales = {4}, .count = 4}),
            "momentum_buffer.w: its scales are F32 of shape [4], where F32 of shape [3] belong");
  EXPECT_EQ(refused({.dtype = DType::i32}),
            "momentum_buffer.w: its scales are I32 of shape [3], where F32 of shape [3] belong");
  EXPECT_EQ(refused({.count = 2}), "momentum_buffer.scale.w: row 2 is in no shard");
}

}  // namespace
}  // namespace ebb::formats
