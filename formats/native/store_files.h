// Where things lie in a store: names of its directories and files, and offsets inside them. The one
// place that knows (docs/formats/native.md); the engine writes by it and the tools read by it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "ebb/formats/native/superblock.h"

namespace ebb::formats::native {

constexpr std::string_view kMetaFile = "meta.ebb";
constexpr std::string_view kLockFile = "lock";
std::string store_directory(const Uuid& store);                      // "store-<32 hex>"
std::optional<Uuid> store_in_directory_name(std::string_view name);  // inverse of store_directory
std::string rank_directory(Rank rank, std::uint32_t world);          // "rank-00005-of-00008"
std::string data_file(const Uuid& store, Rank rank);                 // "<32 hex>-00005.data"
bool is_data_file(std::string_view name);
std::string removed_directory(const Uuid& store);  // "removed-<32 hex>": being deleted
std::optional<Uuid> store_in_removed_name(std::string_view name);
// "joining-<32 hex>-00005": rank 5 of that run is opening the swap directory this lies in.
struct Joining {
  Uuid run{};
  Rank rank{};
};
std::string joining_file(const Joining& joining);
std::optional<Joining> joining_in_name(std::string_view name);

// Readers hold a generation by a shared lock on a byte of rank 0's meta.ebb, far behind its end
// (docs/formats/commit.md, "Readers"). From kHoldOffset on: all generations.
constexpr std::uint64_t kHoldOffset = std::uint64_t{1} << 62;
constexpr std::uint64_t hold_byte(std::uint64_t generation) {
  return kHoldOffset + generation % kHoldOffset;
}

std::uint64_t region_offset(const Superblock& superblock, std::uint32_t region);
std::uint64_t tile_offset(const Superblock& superblock, std::uint64_t tile, std::uint32_t slot);
std::uint64_t meta_file_bytes(const Superblock& superblock);
std::uint64_t data_file_bytes(const Superblock& superblock);
ByteVector encode_data_header(const Superblock& superblock);  // exactly 4096 bytes
Result<> check_data_header(ByteView bytes, const Superblock& superblock, std::string_view file);

}  // namespace ebb::formats::native
