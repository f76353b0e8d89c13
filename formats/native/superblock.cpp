#include "ebb/formats/native/superblock.h"

#include <algorithm>
#include <tuple>

#include "ebb/formats/core/crc32c.h"
#include "ebb/formats/core/refuse.h"
#include "ebb/formats/native/fields.h"

namespace ebb::formats::native {

namespace {

constexpr std::string_view kSuperblockMagic = "EBBSUPER";
constexpr std::uint32_t kStoreVersion = 1;
constexpr std::size_t kFieldsEnd = 96;
constexpr std::size_t kCrcAt = 4092;

// What follows the magic.
auto fields_of(auto& s) {
  return std::tie(s.version, s.world, s.store, s.parent, s.rank, s.slots, s.tile_bytes,
                  s.block_bytes, s.tiles, s.region_bytes, s.layout_digest);
}

}  // namespace

std::string to_string(const Uuid& uuid) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (const std::byte byte : uuid) {
    text += kDigits[std::to_integer<std::size_t>(byte >> 4)];
    text += kDigits[std::to_integer<std::size_t>(byte & std::byte{15})];
  }
  return text;
}

Result<> check_geometry(const Superblock& s, const std::string& where) {
  const auto impossible = [&](const std::string& what) {
    return Error{Code::corrupt, where + ": " + what};
  };
  if (s.world == 0 || s.world > kMaxWorld)
    return impossible(compose("a world of {} ranks; 1 to 65536 are possible", s.world));
  if (index_of(s.rank) >= s.world)
    return impossible(compose("rank {} in a world of {}", index_of(s.rank), s.world));
  if (s.slots < 2 || s.slots > kMaxSlots)
    return impossible(compose("{} slots for a tile; 2 to 8 are possible", s.slots));
  if (s.block_bytes == 0 || s.block_bytes % kBlock != 0 || s.block_bytes > kMaxTileBytes)
    return impossible(
        compose("checksum blocks of {} bytes are no multiple of 4096 up to 1 GiB", s.block_bytes));
  if (s.tile_bytes == 0 || s.tile_bytes % s.block_bytes != 0 || s.tile_bytes > kMaxTileBytes)
    return impossible(compose("tiles of {} bytes are no multiple of {} up to 1 GiB", s.tile_bytes,
                              s.block_bytes));
  if (s.tiles > kMaxTiles)
    return impossible(compose("{} tiles are more than the limit of 2^32", s.tiles));
  if (s.region_bytes == 0 || s.region_bytes % kBlock != 0 || s.region_bytes > kMaxRegionBytes)
    return impossible(compose("manifest regions of {} bytes are no multiple of 4096 up to 64 GiB",
                              s.region_bytes));
  // 2^3 slots, 2^32 tiles and 2^30 bytes do not fit an off_t together.
  if (s.tiles * s.slots > (std::uint64_t{1} << 62) / s.tile_bytes)
    return impossible(compose("{} tiles of {} bytes do not fit one file", s.tiles, s.tile_bytes));
  return {};
}

ByteVector encode(const Superblock& superblock) {
  ByteVector out;
  out.reserve(kBlock);
  append_text(out, kSuperblockMagic);
  append_fields(out, fields_of(superblock));
  EBB_CHECK(out.size() == kFieldsEnd);
  out.resize(kCrcAt);
  append_le(out, crc32c(0, out));
  return out;
}

Result<Superblock> decode_superblock(ByteView bytes, std::string_view file, std::uint64_t offset) {
  const auto refused = [&](Code code, const std::string& why) {
    return refuse(code, file, offset, why);
  };
  if (bytes.size() < kBlock)
    return refused(Code::corrupt,
                   compose("a superblock has 4096 bytes, here are {}", bytes.size()));
  bytes = bytes.first(kBlock);
  if (text_of(bytes.first(kSuperblockMagic.size())) != kSuperblockMagic)
    return refused(Code::corrupt, "no superblock of an Ebb store begins here");
  if (load_le<std::uint32_t>(bytes.subspan(kCrcAt)) != crc32c(0, bytes.first(kCrcAt)))
    return refused(Code::corrupt, "the superblock does not match its checksum");
  Superblock s;
  ByteReader fields(bytes.subspan(kSuperblockMagic.size()));
  take_fields(fields, fields_of(s));
  const bool reserved_used =
      std::ranges::any_of(bytes.subspan(kFieldsEnd, kCrcAt - kFieldsEnd),
                          [](std::byte byte) { return byte != std::byte{0}; });
  if (s.version != kStoreVersion || reserved_used)
    return refused(Code::unsupported,
                   compose("written by a newer version of Ebb (store version {}{}", s.version,
                           (reserved_used ? ", reserved bytes in use)" : ")")));
  EBB_TRY(check_geometry(s, compose("{}:{}", file, offset)));
  return s;
}

}  // namespace ebb::formats::native
