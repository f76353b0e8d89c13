#include "ebb/formats/native/store_files.h"

#include <algorithm>
#include <tuple>

#include "ebb/formats/core/crc32c.h"
#include "ebb/formats/core/number_text.h"
#include "ebb/formats/native/fields.h"

namespace ebb::formats::native {
namespace {

constexpr std::string_view kDataMagic = "EBBDATA1";
constexpr std::string_view kStorePrefix = "store-";
constexpr std::string_view kRemovedPrefix = "removed-";
constexpr std::string_view kJoiningPrefix = "joining-";
constexpr std::string_view kDataSuffix = ".data";

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

}  // namespace ebb::formats::native
