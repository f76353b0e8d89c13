// Masters in halves: stores made by hand from the page, read as the numbers they are.
#include <gtest/gtest.h>

#include <bit>
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
    m.states = {"master", state};
    m.groups = {{"muon", {}}};
    m.params = {{"w", {6, 100}, 0}, {"w", shape, 0}};
    Tile one, other;
    one.used_bytes = other.used_bytes = kBlockBytes;
    const std::uint32_t of_param = shape == Shape{6, 100} ? 0 : 1;
    one.segments = {{0, 0, DType::u16, 0, 250, 64, 2}, {of_param, 1, high, 0, count, 1024}};
    other.segments = {{0, 0, DType::u16, 250, 350, 0, 2}};
    m.tiles = {one, other};
    ByteVector data = native::encode_data_header(s);
    data.resize(native::data_file_bytes(s));
    const auto put = [&](std::uint64_t at, std::uint32_t half) {
      data[at] = static_cast<std::byte>(half & 0xff);
      data[at + 1] = static_cast<std::byte>(half >> 8 & 0xff);
    };
    for (std::size_t i = 0; i < kElems; ++i) {
      const std::uint64_t tile = i < 250 ? 0 : 1;
      put(native::tile_offset(s, tile, 0) + (tile == 0 ? 64 + 2 * i : 2 * (i - 250)), bits(i));
      const bool up = (bits(i) >> 15 & 1) != 0;
      put(native::tile_offset(s, 0, 0) + 1024 + 2 * i, (bits(i) >> 16) + (up ? 1 : 0));
    }
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
