// States in blocks of int8: stores made by hand from the page, read as the numbers they stand for.
#include <gtest/gtest.h>

#include <cstring>

#include "ebb/formats/describe.h"
#include "ebb/formats/native/ebb.h"
#include "tests/formats/native/by_hand.h"

namespace ebb::formats {
namespace {

using test_support::MemoryTree;

// "w" [6, 100] in blocks of 256 codes, cut between its two tiles, and their three scales.
struct InBlocks {
  Shape scales = {3};
  std::uint64_t count = 3;  // of these
  DType dtype = DType::f32;

  std::shared_ptr<MemoryTree> tree() const {
    TwoTiles store;
    native::Manifest& manifest = store.manifest;
    manifest.states = {"momentum_buffer", "momentum_buffer.scale"};
    manifest.params = {{"w", {6, 100}, 0}, {"w", scales, 0}};
    const std::uint32_t encoding = native::block_encoding(256);
    manifest.tiles[0].segments = {{0, 0, DType::i8, 0, 512, 64, encoding},
                                  {1, 1, dtype, 0, count, 1024}};
    manifest.tiles[1].segments = {{0, 0, DType::i8, 512, 88, 0, encoding}};
    for (std::size_t i = 0; i < 600; ++i)
      (i < 512 ? store.tile(0) + 64 + i : store.tile(1) + i - 512)[0] =
          static_cast<std::byte>(code(i));
    const float values[] = {scale(0), scale(1), scale(2)};
    std::memcpy(store.tile(0) + 1024, values, sizeof(values));
    return std::move(store).tree();
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
