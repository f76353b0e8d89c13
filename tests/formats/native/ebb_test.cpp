// Stores made by hand from the page, read as checkpoints.
#include "ebb/formats/native/ebb.h"
#include "ebb/formats/native/store_files.h"

#include <gtest/gtest.h>

#include <cstring>

#include "ebb/formats/describe.h"
#include "ebb/formats/native/survey.h"
#include "tests/support/source_tree.h"

namespace ebb::formats {
namespace {

using native::Manifest;
using native::Superblock;
using native::Tile;
using native::Uuid;
using test_support::MemoryTree;

constexpr std::uint64_t kTile = 8192;
constexpr std::uint64_t kBlockBytes = 4096;

// Two ranks, three tensors: "w" [6, 500] master and momentum, "b" [7] master in bf16; the flat
// ranges of "w" meet inside a row, and a value says which element it is.
struct Sample {
  Uuid uuid{};
  Uuid parent{};
  std::string folder;  // "" or "store-.../"
  std::uint64_t generation = 5;
  std::uint64_t step = 40;
  bool second_rank = true;

  Superblock superblock(std::uint32_t rank) const {
    Superblock s;
    s.store = uuid;
    s.parent = parent;
    s.rank = Rank{rank};
    s.world = 2;
    s.tile_bytes = kTile;
    s.block_bytes = kBlockBytes;
    s.slots = 2;
    s.tiles = 2;
    s.region_bytes = 4096;
    return s;
  }
  Manifest manifest(std::uint32_t rank) const {
    Manifest m;
    m.store = uuid;
    m.rank = Rank{rank};
    m.world = 2;
    m.generation = generation;
    m.step = step;
    m.fingerprint = "onednn 2.6 avx512 fp32";
    m.states = {"master", "momentum_buffer"};
    m.groups = {{"muon", {{"lr", "0.02"}, {"nesterov", "true"}, {"steps", "5"}, {"ns", "keller"}}},
                {"adamw", {}}};
    m.params = {{"w", {6, 500}, 0}, {"b", {7}, 1}};
    m.blobs = {{"data_position", {std::byte{9}}}, {"rng", {static_cast<std::byte>(rank)}}};
    const std::uint64_t first = rank == 0 ? 0 : 1700;
    const std::uint64_t count = rank == 0 ? 1700 : 1300;
    Tile w;
    w.slot = 1;
    w.used_bytes = count * 4;
    w.written_step = step;
    w.segments = {{0, 0, DType::f32, first, count, 0}};
    Tile rest;
    rest.used_bytes = count * 4 + 16;
    rest.written_step = step - 1;
    rest.segments = {{0, 1, DType::f32, first, count, 16}};
    if (rank == 1) rest.segments.push_back({1, 0, DType::bf16, 0, 7, 0});
    m.tiles = {w, rest};
    return m;
  }
  // Element `e` of (param, state): four or two bytes of this number.
  static std::uint32_t value(std::uint32_t param, std::uint32_t state, std::uint64_t element) {
    return static_cast<std::uint32_t>(param * 50000 + state * 10000 + element);
  }
  std::uint32_t region() const { return static_cast<std::uint32_t>(generation % 3); }
  void add_to(MemoryTree& tree) const {
    for (std::uint32_t rank = 0; rank < (second_rank ? 2u : 1u); ++rank) {
      const Superblock s = superblock(rank);
      Manifest m = manifest(rank);
      ByteVector data = native::encode_data_header(s);
      data.resize(native::data_file_bytes(s), std::byte{0xee});
      for (std::size_t i = 0; i < m.tiles.size(); ++i) fill(s, i, m.tiles[i], data);
      ByteVector meta = encode(s);
      append_bytes(meta, encode(s));
      meta.resize(native::meta_file_bytes(s));
      const ByteVector encoded = encode(m);
      std::ranges::copy(
          encoded, meta.begin() + static_cast<std::ptrdiff_t>(native::region_offset(s, region())));
      const std::string below = folder + native::rank_directory(s.rank, s.world) + "/";
      tree.add(below + "lock", std::string_view("1\n"));
      tree.add(below + "meta.ebb", std::move(meta));
      tree.add(below + native::data_file(uuid, s.rank), std::move(data));
    }
  }

 private:
  static void fill(const Superblock& s, std::size_t index, Tile& tile, ByteVector& data) {
    std::byte* const at = data.data() + native::tile_offset(s, index, tile.slot);
    for (const native::Segment& segment : tile.segments)
      for (std::uint64_t e = 0; e < segment.count; ++e) {
        const std::uint32_t number = value(segment.param, segment.state, segment.first + e);
        const std::uint32_t size = bytes_of(segment.dtype);
        std::memcpy(at + segment.offset + e * size, &number, size);
      }
    for (std::uint64_t block = 0; block < div_ceil(tile.used_bytes, s.block_bytes); ++block)
      tile.crcs.push_back(native::block_crc(
          {s.store, s.rank, index, tile.slot, block, tile.written_step},
          ByteView(data).subspan(native::tile_offset(s, index, tile.slot) + block * s.block_bytes,
                                 s.block_bytes)));
  }
};

Uuid uuid_of(int number) {
  Uuid uuid{};
  uuid.fill(static_cast<std::byte>(number));
  return uuid;
}

std::shared_ptr<MemoryTree> tree_of(const Sample& sample) {
  auto tree = std::make_shared<MemoryTree>("run/swap");
  sample.add_to(*tree);
  return tree;
}

std::string message_of(const Result<std::unique_ptr<Checkpoint>>& described) {
  return described ? std::string("described") : described.error().message;
}

// Reads every chunk whole and by odd pieces; "" or the first thing that is wrong.
std::string check_contents(const Checkpoint& checkpoint) {
  for (const TensorEntry& tensor : checkpoint.catalog().tensors) {
    const std::uint32_t param = tensor.name == "w" ? 0 : 1;
    const std::uint32_t state = tensor.state == "master" ? 0 : 1;
    const std::uint32_t size = bytes_of(tensor.dtype);
    for (const Chunk& chunk : tensor.chunks) {
      const auto range = flat_range_of(tensor.shape, chunk.box);
      if (!range) return label_of(tensor) + ": not a flat box";
      ByteVector wanted(chunk.length), whole(chunk.length), pieces(chunk.length);
      for (std::uint64_t e = 0; e < range->count; ++e) {
        const std::uint32_t number = Sample::value(param, state, range->first + e);
        std::memcpy(wanted.data() + e * size, &number, size);
      }
      if (auto read = checkpoint.read(tensor, chunk, 0, whole); !read) return read.error().message;
      for (std::size_t at = 0; at < pieces.size(); at += 777) {
        const auto part =
            std::span(pieces).subspan(at, std::min<std::size_t>(777, pieces.size() - at));
        if (auto read = checkpoint.read(tensor, chunk, at, part); !read)
          return read.error().message;
      }
      if (whole != wanted || pieces != wanted) return label_of(tensor) + ": other bytes";
    }
  }
  return {};
}

TEST(EbbCheckpoint, ShowsTensorsGroupsValuesAndFiles) {
  Sample sample;
  sample.uuid = uuid_of(7);
  const auto tree = tree_of(sample);
  ASSERT_TRUE(detect_ebb(*tree));
  const auto described = describe(tree);  // through the registry
  ASSERT_TRUE(described) << described.error().message;
  const Catalog& catalog = (*described)->catalog();
  EXPECT_EQ(catalog.format, "ebb");
  EXPECT_EQ(catalog.producer, "Ebb, store version 1, onednn 2.6 avx512 fp32");
  EXPECT_EQ(catalog.step, 40);
  EXPECT_EQ(catalog.world, 2u);
  ASSERT_EQ(catalog.tensors.size(), 3u);
  EXPECT_EQ(catalog.tensors[0].key, "master.w");
  EXPECT_EQ(catalog.tensors[1].key, "momentum_buffer.w");
  EXPECT_EQ(catalog.tensors[2].key, "master.b");
  EXPECT_EQ(catalog.tensors[2].dtype, DType::bf16);
  // rank 0: rows 0-2 and 200 columns of row 3; rank 1: the rest of row 3, rows 4 and 5
  ASSERT_EQ(catalog.tensors[0].chunks.size(), 4u);
  EXPECT_EQ(catalog.tensors[0].chunks[1].box, (Box{{3, 0}, {1, 200}}));
  EXPECT_EQ(index_of(catalog.tensors[0].chunks[2].holder), 1u);
  EXPECT_EQ(catalog.files[catalog.tensors[0].chunks[2].file].name,
            "rank-00001-of-00002/" + native::data_file(uuid_of(7), Rank{1}));
  const auto covered = prove_coverage(catalog);
  EXPECT_TRUE(covered) << covered.error().message;
  ASSERT_EQ(catalog.groups.size(), 2u);
  EXPECT_EQ(catalog.groups[0].optimizer, "muon");
  EXPECT_EQ(catalog.groups[0].params, std::vector<std::string>{"w"});
  EXPECT_EQ(catalog.groups[0].settings[0].second.real, 0.02);
  EXPECT_EQ(catalog.groups[0].settings[1].second.kind, Value::Kind::boolean);
  EXPECT_EQ(catalog.groups[0].settings[2].second.integer, 5);
  EXPECT_EQ(catalog.groups[0].settings[3].second.text, "keller");
  ASSERT_EQ(catalog.values.size(), 4u);
  EXPECT_EQ(catalog.values[0].key, "step");
  EXPECT_EQ(catalog.values[1].key, "data_position");  // the same on both ranks: one value
  EXPECT_EQ(catalog.values[2].key, "rng@rank-0");
  EXPECT_EQ(catalog.values[3].key, "rng@rank-1");
  EXPECT_EQ(check_contents(**described), "");
}

TEST(EbbCheckpoint, AnyFlippedBitIsNamedByFileOffsetBlockAndTensor) {
  Sample sample;
  sample.uuid = uuid_of(7);
  const auto tree = tree_of(sample);
  const std::string name = "rank-00001-of-00002/" + native::data_file(uuid_of(7), Rank{1});
  const Superblock s = sample.superblock(1);
  // master.w of rank 1 lies in slot 1 of tile 0, 5200 bytes: two blocks, the second one partly used
  const std::uint64_t tile_at = native::tile_offset(s, 0, 1);
  for (std::uint64_t at = 0; at < kTile; at += 61) {
    ByteVector& data = tree->bytes_of(name);
    data[tile_at + at] ^= std::byte{0x10};
    const auto described = describe_ebb(tree);
    ASSERT_TRUE(described) << described.error().message;
    const std::uint64_t block = at / kBlockBytes;
    EXPECT_EQ(check_contents(**described),
              "run/swap/" + name + ":" + std::to_string(tile_at + block * kBlockBytes) +
                  ": block " + std::to_string(block) +
                  " of tile 0, in master.w, does not match its checksum");
    tree->bytes_of(name)[tile_at + at] ^= std::byte{0x10};
  }
}

TEST(EbbCheckpoint, AMissingRankIsNamed) {
  Sample sample;
  sample.uuid = uuid_of(7);
  sample.second_rank = false;
  const auto described = describe_ebb(tree_of(sample));
  ASSERT_FALSE(described);
  EXPECT_EQ(described.error().code, Code::incomplete);
  EXPECT_EQ(described.error().message,
            "run/swap/rank-00001-of-00002/meta.ebb: this rank's file is missing");
}

TEST(EbbCheckpoint, ATornNewestGenerationIsToldAndThePreviousOneShown) {
  Sample sample;
  sample.uuid = uuid_of(7);
  const auto tree = tree_of(sample);
  Sample newer = sample;
  newer.generation = 6;
  newer.step = 41;
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    const Superblock s = newer.superblock(rank);
    Manifest m = newer.manifest(rank);
    for (Tile& tile : m.tiles) tile.crcs.assign(div_ceil(tile.used_bytes, kBlockBytes), 1);
    ByteVector encoded = encode(m);
    if (rank == 1) std::fill_n(encoded.begin() + 512, 512, std::byte{0});
    std::ranges::copy(encoded,
                      tree->bytes_of(native::rank_directory(s.rank, 2) + "/meta.ebb").begin() +
                          static_cast<std::ptrdiff_t>(native::region_offset(s, 0)));
  }
  const auto described = describe_ebb(tree);
  ASSERT_TRUE(described) << described.error().message;
  EXPECT_EQ((*described)->catalog().step, 40);
  EXPECT_EQ(check_contents(**described), "");
  const auto& notes = (*described)->catalog().notes;
  ASSERT_EQ(notes.size(), 3u);
  EXPECT_EQ(notes[1], "rank 0 also has generation 6, which is not valid on all ranks");
  EXPECT_NE(notes[2].find("rank 1 also has generation 6, damaged: "), std::string::npos);
  EXPECT_NE(notes[2].find("rank-00001-of-00002/meta.ebb:"), std::string::npos);
}

TEST(EbbCheckpoint, ADamagedBlockBesideATornNewestGenerationIsDamage) {
  Sample sample;
  sample.uuid = uuid_of(7);
  const auto tree = tree_of(sample);
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    const Superblock s = sample.superblock(rank);
    Manifest m = sample.manifest(rank);
    m.generation = 6;
    for (Tile& tile : m.tiles) tile.crcs.assign(div_ceil(tile.used_bytes, kBlockBytes), 1);
    ByteVector encoded = encode(m);
    encoded.back() ^= std::byte{1};
    std::ranges::copy(encoded,
                      tree->bytes_of(native::rank_directory(s.rank, 2) + "/meta.ebb").begin() +
                          static_cast<std::ptrdiff_t>(native::region_offset(s, 0)));
    tree->bytes_of(native::rank_directory(s.rank, 2) + "/" +
                   native::data_file(s.store, s.rank))[native::tile_offset(s, 0, 1)] ^=
        std::byte{1};
  }
  const auto described = describe_ebb(tree);
  ASSERT_TRUE(described) << described.error().message;
  EXPECT_NE(check_contents(**described).find("does not match its checksum"), std::string::npos);
}

TEST(EbbCheckpoint, TheOnlyManifestIsNamedWithItsPlaceWhenItIsDamaged) {
  Sample sample;
  sample.uuid = uuid_of(7);
  const std::string name = "rank-00001-of-00002/meta.ebb";
  const std::uint64_t region = native::region_offset(sample.superblock(1), sample.region());
  for (const std::uint64_t inside : {std::uint64_t{3}, std::uint64_t{300}}) {  // header, sections
    const auto tree = tree_of(sample);
    tree->bytes_of(name)[region + inside] ^= std::byte{1};
    const auto described = describe_ebb(tree);
    ASSERT_FALSE(described);
    EXPECT_EQ(described.error().code, Code::corrupt);
    EXPECT_NE(described.error().message.find("rank 1 has none; run/swap/" + name + ":"),
              std::string::npos)
        << described.error().message;
    EXPECT_EQ(described.error().place.file, "run/swap/" + name);
  }
}

TEST(EbbCheckpoint, AManifestOfAnotherRankOrOneThatDoesNotFitIsNotTaken) {
  Sample sample;
  sample.uuid = uuid_of(7);
  const Superblock s = sample.superblock(0);
  const auto read_with = [&](const Manifest& m) {
    const auto tree = tree_of(sample);
    ByteVector& meta = tree->bytes_of("rank-00000-of-00002/meta.ebb");
    const std::uint64_t at = native::region_offset(s, 0);
    std::ranges::copy(encode(m), meta.begin() + static_cast<std::ptrdiff_t>(at));
    const MemorySource source("meta.ebb", meta);
    const auto scan = native::scan_meta(source);
    EXPECT_TRUE(scan);
    const auto whole = native::read_manifest(source, s, 0);
    return std::pair(scan->newest_valid(native::kMaxGeneration)->header.generation,
                     whole ? std::string() : whole.error().message);
  };
  const auto newer = [&](std::uint32_t rank) {
    Manifest m = sample.manifest(rank);
    m.generation = 6;
    for (Tile& tile : m.tiles) tile.crcs.assign(div_ceil(tile.used_bytes, kBlockBytes), 1);
    return m;
  };
  EXPECT_EQ(read_with(newer(0)), std::pair(std::uint64_t{6}, std::string()));
  const auto refused = [&](const Manifest& m, const std::string& why) {
    const auto [generation, message] = read_with(m);
    EXPECT_EQ(generation, 5u);
    EXPECT_NE(message.find(why), std::string::npos) << message;
  };
  refused(newer(1), "a manifest of another store or rank");
  Manifest other = newer(0);
  other.store = uuid_of(8);
  refused(other, "a manifest of another store or rank");
  Manifest slot = newer(0);
  slot.tiles[0].slot = 2;  // of two
  refused(slot, "tile 0 with slot 2");
  Manifest fewer = newer(0);
  fewer.tiles.pop_back();
  refused(fewer, "a manifest of 1 tiles in a store of 2");
  Manifest sums = newer(0);
  sums.tiles[1].crcs.pop_back();
  refused(sums, "tile 1 with slot 0");
}

TEST(EbbCheckpoint, OneGenerationCanBeAskedFor) {
  Sample sample;
  sample.uuid = uuid_of(7);
  const auto tree = tree_of(sample);
  EXPECT_TRUE(describe_ebb_generation(tree, 5));
  EXPECT_EQ(message_of(describe_ebb_generation(tree, 4)),
            "run/swap: generation 4 is not valid on all ranks: newest rank 0 has 5, rank 1 has 5");
  EXPECT_EQ(message_of(describe_ebb_generation(tree, 6)),
            "run/swap: generation 6 is not valid on all ranks: newest rank 0 has 5, rank 1 has 5");
}

TEST(EbbCheckpoint, ASwapDirectoryShowsTheStoreThatSupersedesItsParent) {
  Sample old;
  old.uuid = uuid_of(9);
  old.folder = native::store_directory(old.uuid) + "/";
  Sample fresh;
  fresh.uuid = uuid_of(3);
  fresh.parent = old.uuid;
  fresh.folder = native::store_directory(fresh.uuid) + "/";
  fresh.step = 77;
  const auto tree = tree_of(old);
  fresh.add_to(*tree);
  tree->add("lock", std::string_view("1\n"));
  const auto described = describe_ebb(tree);
  ASSERT_TRUE(described) << described.error().message;
  EXPECT_EQ((*described)->catalog().step, 77);
  EXPECT_EQ(check_contents(**described), "");
  Sample stranger = old;
  stranger.uuid = uuid_of(4);
  stranger.folder = native::store_directory(stranger.uuid) + "/";
  stranger.add_to(*tree);
  const auto refused = describe_ebb(tree);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::state);
}

TEST(EbbCheckpoint, ATruncatedFileIsNamedWithItsEnd) {
  Sample sample;
  sample.uuid = uuid_of(7);
  const std::string folder = "rank-00000-of-00002/";
  for (const std::string& name :
       {folder + "meta.ebb", folder + native::data_file(uuid_of(7), Rank{0})}) {
    const auto tree = tree_of(sample);
    const std::size_t size = tree->bytes_of(name).size();
    for (const std::size_t left :
         {std::size_t{0}, std::size_t{100}, std::size_t{4096}, size / 2, size - 1}) {
      tree->bytes_of(name).resize(left);
      const auto described = describe_ebb(tree);
      ASSERT_FALSE(described) << name << " " << left;
      EXPECT_NE(described.error().message.find(name + ":"), std::string::npos)
          << described.error().message;
      tree->bytes_of(name) = tree_of(sample)->bytes_of(name);
    }
  }
}

// Any byte of meta.ebb: the checkpoint is refused, or what it shows is right.
TEST(EbbCheckpoint, ADamagedMetaFileIsRefusedOrStillRight) {
  Sample sample;
  sample.uuid = uuid_of(7);
  const auto tree = tree_of(sample);
  std::size_t refused = 0, right = 0;
  const auto check = [&](std::size_t at) {
    const auto described = describe_ebb(tree);
    if (!described) {
      ++refused;
      EXPECT_NE(described.error().message.find("run/swap"), std::string::npos) << at;
      return;
    }
    ++right;
    EXPECT_EQ(check_contents(**described), "") << at;
  };
  const std::string name = "rank-00001-of-00002/meta.ebb";
  const std::size_t size = tree->bytes_of(name).size();
  for (std::size_t at = 0; at < size; at += at % 4096 < 700 ? 1 : 97) {
    tree->bytes_of(name)[at] ^= std::byte{0x41};
    check(at);
    tree->bytes_of(name)[at] ^= std::byte{0x41};
  }
  EXPECT_GT(refused, 400u);  // the one valid manifest
  EXPECT_GT(right, 2000u);   // one of two superblocks, empty regions
}

TEST(EbbCheckpoint, SwappedRankFoldersAreRefused) {
  Sample sample;
  sample.uuid = uuid_of(7);
  const auto tree = tree_of(sample);
  std::swap(tree->bytes_of("rank-00000-of-00002/meta.ebb"),
            tree->bytes_of("rank-00001-of-00002/meta.ebb"));
  const auto described = describe_ebb(tree);
  ASSERT_FALSE(described);
  EXPECT_EQ(described.error().code, Code::layout);
}

TEST(EbbCheckpoint, NothingCommittedIsSaidSo) {
  Sample sample;
  sample.uuid = uuid_of(7);
  const auto tree = tree_of(sample);
  for (const std::string rank : {"0", "1"}) {
    ByteVector& meta = tree->bytes_of("rank-0000" + rank + "-of-00002/meta.ebb");
    std::fill(meta.begin() + 8192, meta.end(), std::byte{0});
  }
  EXPECT_EQ(
      message_of(describe_ebb(tree)),
      "run/swap: no generation is valid on all ranks: newest rank 0 has none, rank 1 has none");
}

}  // namespace
}  // namespace ebb::formats
