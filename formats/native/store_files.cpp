#include "ebb/formats/native/store_files.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <tuple>

#include "ebb/formats/core/crc32c.h"
#include "ebb/formats/core/number_text.h"
#include "ebb/formats/core/refuse.h"
#include "ebb/formats/native/fields.h"

namespace ebb::formats::native {
namespace {

constexpr std::string_view kDataMagic = "EBBDATA1";
constexpr std::string_view kStorePrefix = "store-";
constexpr std::string_view kRemovedPrefix = "removed-";
constexpr std::string_view kJoiningPrefix = "joining-";
constexpr std::string_view kDataSuffix = ".data";

constexpr std::string_view kSuperblockMagic = "EBBSUPER";
constexpr std::uint32_t kStoreVersion = 1;
constexpr std::size_t kFieldsEnd = 96;
constexpr std::size_t kCrcAt = 4092;

// What follows the magic.
auto fields_of(auto& s) {
  return std::tie(s.version, s.world, s.store, s.parent, s.rank, s.slots, s.tile_bytes,
                  s.block_bytes, s.tiles, s.region_bytes, s.layout_digest);
}

std::string five_digits(std::uint32_t number) { return zero_padded(number, 5); }

std::optional<unsigned> hex_digit(char c) {
  if (c >= '0' && c <= '9') return static_cast<unsigned>(c - '0');
  if (c >= 'a' && c <= 'f') return static_cast<unsigned>(c - 'a' + 10);
  return std::nullopt;
}

std::optional<Uuid> uuid_of(std::string_view digits) {
  Uuid uuid{};
  if (digits.size() != 2 * uuid.size()) return std::nullopt;
  for (std::size_t i = 0; i < uuid.size(); ++i) {
    const auto high = hex_digit(digits[2 * i]);
    const auto low = hex_digit(digits[2 * i + 1]);
    if (!high || !low) return std::nullopt;
    uuid[i] = static_cast<std::byte>(*high * 16 + *low);
  }
  return uuid;
}

std::optional<Uuid> uuid_behind(std::string_view prefix, std::string_view name) {
  if (!name.starts_with(prefix)) return std::nullopt;
  return uuid_of(name.substr(prefix.size()));
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

std::string store_directory(const Uuid& store) {
  return std::string(kStorePrefix) + to_string(store);
}

std::optional<Uuid> store_in_directory_name(std::string_view name) {
  return uuid_behind(kStorePrefix, name);
}

std::string removed_directory(const Uuid& store) {
  return std::string(kRemovedPrefix) + to_string(store);
}

std::optional<Uuid> store_in_removed_name(std::string_view name) {
  return uuid_behind(kRemovedPrefix, name);
}

std::string joining_file(const Joining& joining) {
  return compose("{}{}-{}", kJoiningPrefix, to_string(joining.run),
                 five_digits(index_of(joining.rank)));
}

std::optional<Joining> joining_in_name(std::string_view name) {
  const std::size_t dash = name.rfind('-');
  if (dash == std::string_view::npos) return std::nullopt;
  const auto run = uuid_behind(kJoiningPrefix, name.substr(0, dash));
  const auto rank = parse_number<std::uint32_t>(name.substr(dash + 1));
  if (!run || !rank) return std::nullopt;
  return Joining{*run, Rank{*rank}};
}

bool is_data_file(std::string_view name) {
  constexpr std::size_t kUuid = 2 * std::tuple_size_v<Uuid>;
  if (name.size() < kUuid || !uuid_of(name.substr(0, kUuid))) return false;
  name.remove_prefix(kUuid);
  if (!name.starts_with('-') || !name.ends_with(kDataSuffix)) return false;
  const std::string_view digits = name.substr(1, name.size() - 1 - kDataSuffix.size());
  return digits.size() >= 5 && digits.find_first_not_of("0123456789") == std::string_view::npos;
}

std::string rank_directory(Rank rank, std::uint32_t world) {
  return compose("rank-{}-of-{}", five_digits(index_of(rank)), five_digits(world));
}

std::string data_file(const Uuid& store, Rank rank) {
  return compose("{}-{}.data", to_string(store), five_digits(index_of(rank)));
}

std::uint64_t region_offset(const Superblock& superblock, std::uint32_t region) {
  return kRegionsOffset + region * superblock.region_bytes;
}

std::uint64_t tile_offset(const Superblock& superblock, std::uint64_t tile, std::uint32_t slot) {
  return kBlock + (slot * superblock.tiles + tile) * superblock.tile_bytes;
}

std::uint64_t meta_file_bytes(const Superblock& superblock) {
  return region_offset(superblock, superblock.slots + 1);
}

std::uint64_t data_file_bytes(const Superblock& superblock) {
  return tile_offset(superblock, 0, superblock.slots);
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

ByteVector encode_data_header(const Superblock& superblock) {
  ByteVector out;
  out.reserve(kBlock);
  append_text(out, kDataMagic);
  append_fields(out, std::tie(superblock.store, superblock.rank));
  out.resize(kBlock - 4);
  append_le(out, crc32c(0, out));
  return out;
}

Result<> check_data_header(ByteView bytes, const Superblock& superblock, std::string_view file) {
  const ByteVector wanted = encode_data_header(superblock);
  if (std::ranges::equal(bytes, wanted)) return {};
  return Error{
      Code::corrupt,
      compose("{}:0: not the data of rank {} of store {}, or its first 4096 bytes are damaged",
              file, index_of(superblock.rank), to_string(superblock.store))};
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

std::uint32_t block_crc(const BlockPlace& place, ByteView bytes) {
  // No vector: this runs for every block that is paged in or out.
  std::array<std::byte, 48> bound;
  std::size_t end = 0;
  const auto put = [&](const auto& field) {
    std::memcpy(bound.data() + end, &field, sizeof(field));
    end += sizeof(field);
  };
  std::apply(
      [&](const auto&... fields) { (put(fields), ...); },
      std::tie(place.store, place.rank, place.tile, place.slot, place.block, place.written_step));
  EBB_CHECK(end == bound.size());
  return crc32c(crc32c(0, bound), bytes);
}

}  // namespace ebb::formats::native
