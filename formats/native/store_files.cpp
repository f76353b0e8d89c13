#include "ebb/formats/native/store_files.h"

#include <algorithm>
#include <cstdio>

#include "ebb/formats/core/crc32c.h"

namespace ebb::formats::native {
namespace {

constexpr std::string_view kDataMagic = "EBBDATA1";
constexpr std::string_view kStorePrefix = "store-";
constexpr std::string_view kRemovedPrefix = "removed-";
constexpr std::string_view kDataSuffix = ".data";

std::string five_digits(std::uint32_t number) {
  std::array<char, 16> text{};
  const int length = std::snprintf(text.data(), text.size(), "%05u", number);
  return {text.data(), static_cast<std::size_t>(length)};
}

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
  const auto refuse = [&](const std::string& what) {
    return Error{Code::corrupt, where + ": " + what};
  };
  if (s.world == 0 || s.world > kMaxWorld)
    return refuse(compose("a world of {} ranks; 1 to 65536 are possible", s.world));
  if (index_of(s.rank) >= s.world)
    return refuse(compose("rank {} in a world of {}", index_of(s.rank), s.world));
  if (s.slots < 2 || s.slots > kMaxSlots)
    return refuse(compose("{} slots for a tile; 2 to 8 are possible", s.slots));
  if (s.block_bytes == 0 || s.block_bytes % kBlock != 0 || s.block_bytes > kMaxTileBytes)
    return refuse(
        compose("checksum blocks of {} bytes are no multiple of 4096 up to 1 GiB", s.block_bytes));
  if (s.tile_bytes == 0 || s.tile_bytes % s.block_bytes != 0 || s.tile_bytes > kMaxTileBytes)
    return refuse(compose("tiles of {} bytes are no multiple of {} up to 1 GiB", s.tile_bytes,
                          s.block_bytes));
  if (s.tiles > kMaxTiles)
    return refuse(compose("{} tiles are more than the limit of 2^32", s.tiles));
  if (s.region_bytes == 0 || s.region_bytes % kBlock != 0 || s.region_bytes > kMaxRegionBytes)
    return refuse(compose("manifest regions of {} bytes are no multiple of 4096 up to 64 GiB",
                          s.region_bytes));
  // 2^3 slots, 2^32 tiles and 2^30 bytes do not fit an off_t together.
  if (s.tiles * s.slots > (std::uint64_t{1} << 62) / s.tile_bytes)
    return refuse(compose("{} tiles of {} bytes do not fit one file", s.tiles, s.tile_bytes));
  return {};
}

ByteVector encode_data_header(const Superblock& superblock) {
  ByteVector out;
  out.reserve(kBlock);
  append_text(out, kDataMagic);
  append_bytes(out, superblock.store);
  append_le(out, index_of(superblock.rank));
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

}  // namespace ebb::formats::native
