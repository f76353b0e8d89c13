#include <algorithm>

#include "ebb/formats/core/crc32c.h"
#include "ebb/formats/core/refuse.h"
#include "ebb/formats/native/store_files.h"

namespace ebb::formats::native {
namespace {

constexpr std::string_view kMagic = "EBBSUPER";
constexpr std::uint32_t kVersion = 1;
constexpr std::size_t kFieldsEnd = 96;
constexpr std::size_t kCrcAt = 4092;

}  // namespace

ByteVector encode(const Superblock& superblock) {
  ByteVector out;
  out.reserve(kBlock);
  append_text(out, kMagic);
  append_le(out, superblock.version);
  append_le(out, superblock.world);
  append_bytes(out, superblock.store);
  append_bytes(out, superblock.parent);
  append_le(out, index_of(superblock.rank));
  append_le(out, superblock.slots);
  append_le(out, superblock.tile_bytes);
  append_le(out, superblock.block_bytes);
  append_le(out, superblock.tiles);
  append_le(out, superblock.region_bytes);
  append_le(out, superblock.layout_digest);
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
  if (text_of(bytes.first(kMagic.size())) != kMagic)
    return refused(Code::corrupt, "no superblock of an Ebb store begins here");
  if (load_le<std::uint32_t>(bytes.subspan(kCrcAt)) != crc32c(0, bytes.first(kCrcAt)))
    return refused(Code::corrupt, "the superblock does not match its checksum");
  Superblock s;
  s.version = load_le<std::uint32_t>(bytes.subspan(8));
  const bool reserved_used =
      std::ranges::any_of(bytes.subspan(kFieldsEnd, kCrcAt - kFieldsEnd),
                          [](std::byte byte) { return byte != std::byte{0}; });
  if (s.version != kVersion || reserved_used)
    return refused(Code::unsupported,
                   compose("written by a newer version of Ebb (store version {}{}", s.version,
                           (reserved_used ? ", reserved bytes in use)" : ")")));
  s.world = load_le<std::uint32_t>(bytes.subspan(12));
  std::ranges::copy(bytes.subspan(16, 16), s.store.begin());
  std::ranges::copy(bytes.subspan(32, 16), s.parent.begin());
  s.rank = Rank{load_le<std::uint32_t>(bytes.subspan(48))};
  s.slots = load_le<std::uint32_t>(bytes.subspan(52));
  s.tile_bytes = load_le<std::uint64_t>(bytes.subspan(56));
  s.block_bytes = load_le<std::uint64_t>(bytes.subspan(64));
  s.tiles = load_le<std::uint64_t>(bytes.subspan(72));
  s.region_bytes = load_le<std::uint64_t>(bytes.subspan(80));
  s.layout_digest = load_le<std::uint64_t>(bytes.subspan(88));
  EBB_TRY(check_geometry(s, compose("{}:{}", file, offset)));
  return s;
}

std::uint32_t block_crc(const BlockPlace& place, ByteView bytes) {
  ByteVector bound;
  bound.reserve(48);
  append_bytes(bound, place.store);
  append_le(bound, index_of(place.rank));
  append_le(bound, place.tile);
  append_le(bound, place.slot);
  append_le(bound, place.block);
  append_le(bound, place.written_step);
  return crc32c(crc32c(0, bound), bytes);
}

}  // namespace ebb::formats::native
