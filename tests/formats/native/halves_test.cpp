// Masters in halves: stores made by hand from the page, read as the numbers they are.
#include <gtest/gtest.h>

#include <bit>
#include <cstring>

#include "ebb/formats/describe.h"
#include "ebb/formats/native/ebb.h"
#include "tests/formats/native/by_hand.h"

namespace ebb::formats {
namespace {

using test_support::MemoryTree;

constexpr std::uint64_t kElems = 600;

// "w" [6, 100]: low halves cut between two tiles, high ones behind the first of these.
struct InHalves {
  DType high = DType::bf16;
  Shape shape = {6, 100};  // of the high halves
  std::uint64_t count = kElems;
  const char* state = "param";

  // Both signs, rounded up and down, all low halves' first bits.
  static std::uint32_t bits(std::size_t i) {
    return static_cast<std::uint32_t>(i * 2654435761u) & 0xff7fffffu;
  }

  std::shared_ptr<MemoryTree> tree() const {
    TwoTiles store;
    native::Manifest& manifest = store.manifest;
    manifest.states = {"master", state};
    manifest.params = {{"w", {6, 100}, 0}, {"w", shape, 0}};
    const std::uint32_t of_param = shape == Shape{6, 100} ? 0 : 1;
    manifest.tiles[0].segments = {{0, 0, DType::u16, 0, 250, 64, 2},
                                  {of_param, 1, high, 0, count, 1024}};
    manifest.tiles[1].segments = {{0, 0, DType::u16, 250, 350, 0, 2}};
    const auto put = [](std::byte* at, std::uint32_t half) {
      at[0] = static_cast<std::byte>(half & 0xff);
      at[1] = static_cast<std::byte>(half >> 8 & 0xff);
    };
    for (std::size_t i = 0; i < kElems; ++i) {
      put(i < 250 ? store.tile(0) + 64 + 2 * i : store.tile(1) + 2 * (i - 250), bits(i));
      const bool up = (bits(i) >> 15 & 1) != 0;
      put(store.tile(0) + 1024 + 2 * i, (bits(i) >> 16) + (up ? 1 : 0));
    }
    return std::move(store).tree();
  }
};

TEST(EbbHalves, MastersInHalvesAreReadWhole) {
  const auto described = describe(InHalves{}.tree());
  ASSERT_TRUE(described) << described.error().message;
  const auto& tensors = (*described)->catalog().tensors;
  ASSERT_EQ(tensors.size(), 1u) << "high halves are none";
  EXPECT_EQ(tensors[0].state, "master");
  EXPECT_EQ(tensors[0].dtype, DType::f32);
  EXPECT_EQ(tensors[0].stored, DType::u16);
  EXPECT_TRUE(prove_coverage((*described)->catalog()));
  std::size_t read = 0;
  for (const Chunk& chunk : tensors[0].chunks) {
    const auto range = flat_range_of(tensors[0].shape, chunk.box);
    ASSERT_TRUE(range);
    // From the middle of an element on, across rows.
    ByteVector values(range->count * 4 - 7);
    ASSERT_TRUE((*described)->read(tensors[0], chunk, 6, std::span(values).first(values.size())));
    ByteVector wanted(range->count * 4);
    for (std::size_t i = 0; i < range->count; ++i, ++read) {
      const std::uint32_t bits = InHalves::bits(range->first + i);
      std::memcpy(wanted.data() + 4 * i, &bits, sizeof(bits));
    }
    EXPECT_TRUE(std::equal(values.begin(), values.end(), wanted.begin() + 6));
  }
  EXPECT_EQ(read, kElems);
}

TEST(EbbHalves, LowHalvesWithoutTheHighOnesAreRefusedByName) {
  const auto refused = [](const InHalves& store) {
    const auto described = describe(store.tree());
    return described ? std::string("read") : described.error().message;
  };
  const std::string belong = ", where BF16 of shape [6, 100] belong";
  EXPECT_EQ(refused({.high = DType::u16}),
            "master.w: its high halves are U16 of shape [6, 100]" + belong);
  EXPECT_EQ(refused({.shape = {600}}),
            "master.w: its high halves are BF16 of shape [600]" + belong);
  EXPECT_EQ(refused({.state = "weights"}),
            "master.w: its high halves are F32 of shape []" + belong);
  EXPECT_EQ(refused({.count = 500}), "param.w: row 5 is in no shard");
}

}  // namespace
}  // namespace ebb::formats
