// What is registered: where it lies, and what is refused.
#include "ebb/libswap/space/frames.h"
#include "tests/libswap/space/space_rig.h"

namespace ebb::libswap::space_tests {
namespace {

TEST(Buffers, SmallOnesShareATileAndLargeOnesTakeMany) {
  Buffers buffers;
  for (const std::uint64_t bytes : {100u, 3000u, 1u, 2000u, 3u * 4096u + 1u, 50u, 4096u})
    ASSERT_TRUE(ok(buffers.add({bytes_named("b" + std::to_string(buffers.all().size()), bytes)})));
  buffers.lay(kTile);
  std::vector<std::vector<std::uint32_t>> held;
  for (const Buffers::Extent& extent : buffers.extents()) held.push_back(extent.buffers);
  EXPECT_EQ(held, (std::vector<std::vector<std::uint32_t>>{{0, 1, 2}, {3, 5}, {4}, {6}}));
  EXPECT_EQ(buffers.extents()[2].tiles, 4u);
  EXPECT_EQ(buffers.tiles(), 7u);
  for (const Buffers::Buffer& buffer : buffers.all()) EXPECT_EQ(buffer.offset % 64, 0u);
}

TEST(Buffers, AManifestNamesEveryElementOnce) {
  Buffers buffers;
  const Shape shape{5, 1000};
  ASSERT_TRUE(ok(buffers.add({{"w", "master", DType::f32, shape, {1000, 3000}},
                              {"w", "momentum", DType::bf16, shape, {1000, 3000}}})));
  ASSERT_TRUE(ok(buffers.add({{"v", "master", DType::f64, {7}, {0, 7}}})));
  ASSERT_TRUE(ok(buffers.add({{"w", "scale", DType::f32, {5}, {0, 5}}})));
  buffers.lay(kTile);
  const auto manifest = buffers.manifest();
  ASSERT_EQ(manifest.params.size(), 3u);
  EXPECT_EQ(manifest.params[0].name, "w");
  EXPECT_EQ(manifest.params[1].name, "w");  // of another shape, behind the first
  EXPECT_EQ(manifest.params[1].shape, Shape{5});
  EXPECT_EQ(manifest.params[2].name, "v");
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint64_t> next = {{{0, 0}, 1000},
                                                                           {{0, 1}, 1000}};
  for (const auto& tile : manifest.tiles)
    for (const auto& segment : tile.segments) {
      std::uint64_t& first = next[{segment.param, segment.state}];
      EXPECT_EQ(segment.first, first);
      first += segment.count;
      EXPECT_LE(segment.offset + segment.count * formats::bytes_of(segment.dtype), tile.used_bytes);
    }
  EXPECT_EQ((next[{0, 0}]), 4000u);
  EXPECT_EQ((next[{0, 1}]), 4000u);
  EXPECT_EQ((next[{1, 2}]), 5u);
  EXPECT_EQ((next[{2, 0}]), 7u);
}

TEST(Buffers, WhatCannotBeKeptIsNamed) {
  Buffers buffers;
  ASSERT_TRUE(ok(buffers.add({bytes_named("w", 4)})));
  EXPECT_TRUE(refused(buffers.add({}), Code::usage));
  EXPECT_TRUE(refused(buffers.add({bytes_named("w", 4)}), Code::layout, "w (state) is registered"));
  EXPECT_TRUE(refused(buffers.add({bytes_named("none", 0)}), Code::layout, "none (state)"));
  EXPECT_TRUE(
      refused(buffers.add({{"f", "s", DType::f4, {4}, {0, 4}}}), Code::unsupported, "f (s)"));
  EXPECT_TRUE(refused(buffers.add({{"r", "s", DType::u8, {4}, {2, 3}}}), Code::layout, "r (s)"));
  EXPECT_TRUE(refused(buffers.add({{"h", "s", DType::u8, {1ull << 40, 1ull << 40}, {}}}),
                      Code::layout, "h (s)"));
  EXPECT_TRUE(refused(buffers.add({bytes_named(std::string(70000, 'x'), 1)}), Code::limit));
}

TEST(Frames, GivesTheRunThatIsMissedTheLatest) {
  Frames frames(10);
  frames.take(0, 3, 1);
  frames.take(4, 2, 2);
  frames.take(7, 1, 3);
  EXPECT_EQ(frames.free(), 4u);
  const auto missed = [](Frames::Holder holder) -> std::optional<std::uint64_t> {
    if (holder == 3) return std::nullopt;
    return holder == 1 ? 50 : 90;
  };
  EXPECT_EQ(frames.cheapest(1, missed), 3u);
  EXPECT_EQ(frames.cheapest(2, missed), 8u);
  EXPECT_EQ(frames.cheapest(3, missed), 3u);  // a free one and those of 2
  EXPECT_EQ(frames.cheapest(5, missed), 0u);  // both runs would miss 1
  EXPECT_EQ(frames.cheapest(8, missed), std::nullopt);
  EXPECT_EQ(frames.holders(2, 5), (std::vector<Frames::Holder>{1, 2}));
  frames.give_back(7, 1);
  EXPECT_EQ(frames.cheapest(4, missed), 6u);
}

}  // namespace
}  // namespace ebb::libswap::space_tests
