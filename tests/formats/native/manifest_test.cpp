// The bytes of docs/formats/native.md, pinned; and that nothing else is accepted.
#include "ebb/formats/native/manifest.h"

#include <gtest/gtest.h>

#include "ebb/formats/core/crc32c.h"
#include "ebb/formats/native/store_files.h"

namespace ebb::formats::native {
namespace {

Uuid uuid_from(std::uint8_t first) {
  Uuid uuid{};
  for (std::size_t i = 0; i < uuid.size(); ++i) uuid[i] = static_cast<std::byte>(first + i);
  return uuid;
}

Superblock sample_superblock() {
  Superblock s;
  s.store = uuid_from(0x10);
  s.parent = uuid_from(0xa0);
  s.rank = Rank{1};
  s.world = 2;
  s.tile_bytes = 65536;
  s.block_bytes = 16384;
  s.slots = 3;
  s.tiles = 5;
  s.region_bytes = 8192;
  s.layout_digest = 0x1122334455667788;
  return s;
}

Manifest sample_manifest() {
  Manifest m;
  m.store = uuid_from(0x10);
  m.rank = Rank{1};
  m.world = 2;
  m.generation = 7;
  m.step = 42;
  m.fingerprint = "onednn fp32";
  m.states = {"master", "momentum_buffer"};
  m.groups = {{"muon", {{"lr", "0.02"}, {"nesterov", "true"}}}, {"adamw", {}}};
  m.params = {{"h.0.w", {4, 6}, 0}, {"scale", {}, 1}};
  Tile first;
  first.slot = 2;
  first.used_bytes = 96;
  first.written_step = 41;
  first.segments = {{0, 0, DType::f32, 0, 12, 0}, {0, 1, DType::bf16, 6, 18, 48}};
  first.crcs = {0xdeadbeef};
  Tile second;
  second.used_bytes = 4;
  second.segments = {{1, 0, DType::f32, 0, 1, 0}};
  second.crcs = {1};
  m.tiles = {first, second};
  m.blobs = {{"rng", {std::byte{1}, std::byte{0}, std::byte{255}}}};
  return m;
}

std::string hex(ByteView bytes) {
  std::string text;
  for (const std::byte byte : bytes) {
    text += "0123456789abcdef"[std::to_integer<std::size_t>(byte >> 4)];
    text += "0123456789abcdef"[std::to_integer<std::size_t>(byte & std::byte{15})];
  }
  return text;
}

// Gives a damaged manifest the checksums it would have if it had been written so.
void reseal(ByteVector& bytes) {
  const std::uint32_t crc = crc32c(0, ByteView(bytes).first(bytes.size() - 4));
  std::memcpy(bytes.data() + bytes.size() - 4, &crc, 4);
}
void reseal_section(ByteVector& bytes, std::size_t tag_at) {
  const auto size = load_le<std::uint64_t>(ByteView(bytes).subspan(tag_at + 8));
  const std::uint32_t crc =
      crc32c(0, ByteView(bytes).subspan(tag_at + 16, static_cast<std::size_t>(size)));
  std::memcpy(bytes.data() + tag_at + 4, &crc, 4);
  reseal(bytes);
}
std::size_t find_tag(const ByteVector& bytes, std::string_view tag) {
  return text_of(bytes).find(tag);
}

TEST(Superblock, HasTheBytesOfThePage) {
  const ByteVector bytes = encode(sample_superblock());
  ASSERT_EQ(bytes.size(), 4096u);
  EXPECT_EQ(hex(ByteView(bytes).first(96)),
            "4542425355504552"                  // EBBSUPER
            "0100000002000000"                  // version, world
            "101112131415161718191a1b1c1d1e1f"  // store
            "a0a1a2a3a4a5a6a7a8a9aaabacadaeaf"  // parent
            "0100000003000000"                  // rank, slots
            "0000010000000000"                  // tile bytes
            "0040000000000000"                  // block bytes
            "0500000000000000"                  // tiles
            "0020000000000000"                  // region bytes
            "8877665544332211");                // layout digest
  EXPECT_EQ(load_le<std::uint32_t>(ByteView(bytes).subspan(4092)),
            crc32c(0, ByteView(bytes).first(4092)));
}

TEST(Superblock, ComesBackAsItWas) {
  const auto decoded = decode_superblock(encode(sample_superblock()), "meta.ebb", 0);
  ASSERT_TRUE(decoded) << decoded.error().message;
  EXPECT_EQ(encode(*decoded), encode(sample_superblock()));
}

TEST(Superblock, EveryPrefixAndEveryFlippedBitIsRefused) {
  const ByteVector bytes = encode(sample_superblock());
  for (std::size_t size = 0; size < bytes.size(); size += 13)
    EXPECT_FALSE(decode_superblock(ByteView(bytes).first(size), "meta.ebb", 0));
  for (std::size_t bit = 0; bit < bytes.size() * 8; bit += bit < 1024 ? 1 : 97) {
    ByteVector damaged = bytes;
    damaged[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
    EXPECT_FALSE(decode_superblock(damaged, "meta.ebb", 0)) << bit;
  }
}

TEST(Superblock, GeometryThatCannotBeIsRefusedThoughItsChecksumIsRight) {
  const auto refused = [](auto change) {
    Superblock s = sample_superblock();
    change(s);
    const auto decoded = decode_superblock(encode(s), "meta.ebb", 4096);
    return decoded ? std::string("accepted") : decoded.error().message;
  };
  EXPECT_EQ(refused([](Superblock& s) { s.world = 0; }),
            "meta.ebb:4096: a world of 0 ranks; 1 to 65536 are possible");
  EXPECT_EQ(refused([](Superblock& s) { s.rank = Rank{2}; }),
            "meta.ebb:4096: rank 2 in a world of 2");
  EXPECT_EQ(refused([](Superblock& s) { s.slots = 9; }),
            "meta.ebb:4096: 9 slots for a tile; 2 to 8 are possible");
  EXPECT_NE(refused([](Superblock& s) { s.block_bytes = 100; }), "accepted");
  EXPECT_NE(refused([](Superblock& s) { s.tile_bytes = 65537; }), "accepted");
  EXPECT_NE(refused([](Superblock& s) { s.tiles = ~std::uint64_t{0}; }), "accepted");
  EXPECT_NE(refused([](Superblock& s) { s.region_bytes = 1; }), "accepted");
  EXPECT_EQ(refused([](Superblock& s) { s.version = 2; }),
            "meta.ebb:4096: written by a newer version of Ebb (store version 2)");
}

TEST(Manifest, HasTheBytesOfThePage) {
  const ByteVector bytes = encode(sample_manifest());
  ASSERT_EQ(bytes.size(), 4096u);
  const std::string text = hex(bytes);
  EXPECT_EQ(text.substr(0, 128),
            "4542424d414e4946"                  // EBBMANIF
            "0100000001000000"                  // version, rank
            "101112131415161718191a1b1c1d1e1f"  // store
            "0200000007000000"                  // world, sections
            "0700000000000000"                  // generation
            "2a00000000000000"                  // step
            "0010000000000000");                // size
  const auto section = [&](std::string_view tag, std::size_t size) {
    return hex(ByteView(bytes).subspan(find_tag(bytes, tag) + 8, size + 8));
  };
  EXPECT_EQ(section("FNGR", 11), "0b00000000000000" + hex(view_of("onednn fp32")));
  EXPECT_EQ(section("PARM", 54),
            "3600000000000000"
            "02000000"
            "05000000682e302e77"  // h.0.w
            "00000000"
            "02000000"
            "0400000000000000"
            "0600000000000000"
            "05000000"
            "7363616c65"  // scale
            "01000000"
            "00000000");
  EXPECT_EQ(section("TILE", 72),
            "b000000000000000"
            "0200000000000000"
            "02000000"
            "02000000"
            "6000000000000000"
            "2900000000000000"
            "00000000"
            "00000000"
            "01000000"
            "00000000"
            "0000000000000000"
            "0c00000000000000"
            "0000000000000000");
  EXPECT_EQ(section("CRCS", 16),
            "1000000000000000"
            "01000000"
            "efbeadde"
            "01000000"
            "01000000");
  EXPECT_EQ(section("BLOB", 22),
            "1600000000000000"
            "01000000"
            "03000000"
            "726e67"
            "0300000000000000"
            "0100ff");
  EXPECT_EQ(text.substr(2 * 4080, 24),
            "0700000000000000"
            "00000000");
}

TEST(Manifest, ComesBackAsItWas) {
  const ByteVector bytes = encode(sample_manifest());
  const auto decoded = decode_manifest(bytes, "meta.ebb", 8192);
  ASSERT_TRUE(decoded) << decoded.error().message;
  EXPECT_EQ(encode(*decoded), bytes);
  EXPECT_EQ(decoded->tiles[0].segments, sample_manifest().tiles[0].segments);
  EXPECT_EQ(decoded->groups, sample_manifest().groups);
  EXPECT_EQ(decoded->params[0].name, "h.0.w");
  EXPECT_EQ(decoded->fingerprint, "onednn fp32");
}

TEST(Manifest, EveryPrefixIsRefused) {
  const ByteVector bytes = encode(sample_manifest());
  for (std::size_t size = 0; size < bytes.size(); ++size)
    EXPECT_FALSE(decode_manifest(ByteView(bytes).first(size), "meta.ebb", 8192)) << size;
}

TEST(Manifest, EveryFlippedBitIsRefusedWithItsPlace) {
  const ByteVector bytes = encode(sample_manifest());
  for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    ByteVector damaged = bytes;
    damaged[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
    const auto decoded = decode_manifest(damaged, "meta.ebb", 8192);
    ASSERT_FALSE(decoded) << bit;
    EXPECT_EQ(decoded.error().message.find("meta.ebb:"), 0u) << decoded.error().message;
  }
}

TEST(Manifest, AnyBytesUnderValidChecksumsGiveAValueOrOneError) {
  const ByteVector bytes = encode(sample_manifest());
  for (const std::string_view tag : {"FNGR", "STAT", "GRPS", "PARM", "TILE", "CRCS", "BLOB"}) {
    const std::size_t at = find_tag(bytes, tag);
    const auto size = load_le<std::uint64_t>(ByteView(bytes).subspan(at + 8));
    for (std::size_t i = 0; i < size; ++i) {
      for (const unsigned value : {0u, 1u, 0x7fu, 0xffu}) {
        ByteVector damaged = bytes;
        damaged[at + 16 + i] = static_cast<std::byte>(value);
        reseal_section(damaged, at);
        const auto decoded = decode_manifest(damaged, "meta.ebb", 8192);
        if (decoded)
          EXPECT_EQ(encode(*decoded), damaged);  // nothing was ignored
        else
          EXPECT_EQ(decoded.error().message.find("meta.ebb:"), 0u);
      }
    }
  }
}

TEST(Manifest, AnUnknownSectionIsRefusedAsNewer) {
  ByteVector bytes = encode(sample_manifest());
  const std::size_t at = find_tag(bytes, "CRCS");
  std::memcpy(bytes.data() + at, "PRNT", 4);
  reseal(bytes);
  const auto decoded = decode_manifest(bytes, "meta.ebb", 8192);
  ASSERT_FALSE(decoded);
  EXPECT_EQ(decoded.error().code, Code::unsupported);
  EXPECT_NE(decoded.error().message.find("section \"PRNT\""), std::string::npos);
  EXPECT_NE(decoded.error().message.find("newer version of Ebb"), std::string::npos);
}

// What a later version may store without another number of the format: refused by name.
TEST(Manifest, AnEncodingThatThisVersionDoesNotKnowIsRefusedByName) {
  const auto refused = [](std::size_t field, std::uint32_t number) {
    ByteVector bytes = encode(sample_manifest());
    const std::size_t at = find_tag(bytes, "TILE");
    const std::size_t second_segment = at + 16 + 8 + 24 + 40;
    std::memcpy(bytes.data() + second_segment + 4 * field, &number, 4);
    reseal_section(bytes, at);
    const auto decoded = decode_manifest(bytes, "meta.ebb", 8192);
    EXPECT_FALSE(decoded);
    if (decoded) return std::string("accepted");
    EXPECT_EQ(decoded.error().code, Code::unsupported);
    return decoded.error().message.substr(decoded.error().message.find(' ') + 1);
  };
  constexpr std::size_t kDType = 2, kEncoding = 3;
  const std::string what = "momentum_buffer of parameter h.0.w is stored ";
  const std::string newer = ": written by a newer version of Ebb";
  EXPECT_EQ(refused(kEncoding, 1), what + "in encoding 1" + newer) << "blocks of nothing";
  EXPECT_EQ(refused(kEncoding, 1 | 128 << 8),
            "parameter h.0.w has blocks of dtype number 2, unknown to this version");
  EXPECT_EQ(refused(kEncoding, 2),
            "parameter h.0.w has low halves of dtype number 2, unknown to this version");
  EXPECT_EQ(refused(kEncoding, 3), what + "in encoding 3" + newer);
  EXPECT_EQ(refused(kEncoding, 1u << 31), what + "in encoding 2147483648" + newer);
  EXPECT_EQ(refused(kDType, 24),
            "parameter h.0.w is stored as dtype number 24, unknown to this version");
}

TEST(Manifest, ReferencesOutsideItsTablesAreRefusedByName) {
  const auto refused = [](auto change) {
    Manifest m = sample_manifest();
    change(m);
    const auto decoded = decode_manifest(encode(m), "meta.ebb", 0);
    return decoded ? std::string("accepted") : decoded.error().message;
  };
  using std::string;
  const auto names = [](const string& message, std::string_view part) {
    return message.find(part) != string::npos;
  };
  EXPECT_PRED2(names, refused([](Manifest& m) { m.params[0].group = 2; }), "is in group 2 of 2");
  EXPECT_PRED2(names, refused([](Manifest& m) { m.tiles[0].segments[0].param = 2; }),
               "parameter 2, state 0; there are 2 and 2");
  EXPECT_PRED2(names, refused([](Manifest& m) { m.tiles[0].segments[0].count = 25; }),
               "parameter h.0.w has elements 0 + 25 of 24");
  EXPECT_PRED2(names, refused([](Manifest& m) { m.tiles[0].segments[0].offset = 90; }),
               "parameter h.0.w leaves its tile");
  EXPECT_PRED2(names, refused([](Manifest& m) { m.tiles[0].slot = 8; }), "tile 0 in slot 8");
  EXPECT_PRED2(names, refused([](Manifest& m) { m.params[0].shape = {1ull << 40, 1ull << 40}; }),
               "more than 2^64 elements");
  EXPECT_PRED2(names, refused([](Manifest& m) { m.generation = 0; }), "generation 0");
}

TEST(ManifestHeader, AVoidOneKeepsOnlyTheNumber) {
  const ByteVector bytes = encode(sample_manifest());
  const auto header = decode_manifest_header(bytes, "meta.ebb", 8192);
  ASSERT_TRUE(header);
  EXPECT_EQ(header->bytes, bytes.size());
  EXPECT_FALSE(header->is_void);
  const ByteVector over = encode_void_header(*header);
  EXPECT_EQ(over.size(), 4096u);
  const auto voided = decode_manifest_header(over, "meta.ebb", 8192);
  ASSERT_TRUE(voided) << voided.error().message;
  EXPECT_TRUE(voided->is_void);
  EXPECT_EQ(voided->generation, 7u);
  const auto manifest = decode_manifest(over, "meta.ebb", 8192);
  ASSERT_FALSE(manifest);
  EXPECT_EQ(manifest.error().message, "meta.ebb:8192: generation 7 was abandoned");
}

TEST(BlockCrc, BindsABlockToItsPlaceAndStep) {
  const ByteVector bytes(4096, std::byte{7});
  const BlockPlace place{uuid_from(1), Rank{1}, 2, 1, 3, 40};
  std::vector<BlockPlace> others(6, place);
  others[0].store = uuid_from(2);
  others[1].rank = Rank{0};
  others[2].tile = 3;
  others[3].slot = 0;
  others[4].block = 2;
  others[5].written_step = 41;
  for (const BlockPlace& other : others)
    EXPECT_NE(block_crc(other, bytes), block_crc(place, bytes));
  ByteVector bound;
  append_bytes(bound, place.store);
  append_le(bound, std::uint32_t{1});
  append_le(bound, std::uint64_t{2});
  append_le(bound, std::uint32_t{1});
  append_le(bound, std::uint64_t{3});
  append_le(bound, std::uint64_t{40});
  append_bytes(bound, bytes);
  EXPECT_EQ(block_crc(place, bytes), crc32c(0, bound));
}

TEST(StoreFiles, HaveTheNamesAndPlacesOfThePage) {
  const Superblock s = sample_superblock();
  EXPECT_EQ(store_directory(s.store), "store-101112131415161718191a1b1c1d1e1f");
  EXPECT_EQ(store_in_directory_name(store_directory(s.store)), s.store);
  EXPECT_FALSE(store_in_directory_name("store-10"));
  EXPECT_FALSE(store_in_directory_name("store-1011121314151617 8191a1b1c1d1e1f"));
  EXPECT_EQ(rank_directory(Rank{5}, 8), "rank-00005-of-00008");
  EXPECT_EQ(data_file(s.store, Rank{5}), "101112131415161718191a1b1c1d1e1f-00005.data");
  EXPECT_EQ(region_offset(s, 2), 8192u + 2 * 8192);
  EXPECT_EQ(tile_offset(s, 4, 2), 4096u + (2 * 5 + 4) * 65536u);
  EXPECT_EQ(data_file_bytes(s), 4096u + 3 * 5 * 65536u);
  EXPECT_TRUE(check_data_header(encode_data_header(s), s, "x.data"));
  Superblock other = s;
  other.rank = Rank{0};
  EXPECT_FALSE(check_data_header(encode_data_header(other), s, "x.data"));
}

}  // namespace
}  // namespace ebb::formats::native
