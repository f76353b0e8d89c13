// What a store is, the same for as long as it lives: its superblock, and the limits of its numbers.
// docs/formats/native.md is the byte layout.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "ebb/formats/core/bytes.h"
#include "ebb/formats/core/result.h"
#include "ebb/formats/core/units.h"

namespace ebb::formats::native {

constexpr std::uint64_t kBlock = 4096;                // alignment of everything
constexpr std::uint64_t kRegionsOffset = 2 * kBlock;  // after superblocks A and B
constexpr std::uint32_t kMaxSlots = 8;
constexpr std::uint32_t kMaxWorld = 65536;
constexpr std::uint64_t kMaxTileBytes = GiB;
constexpr std::uint64_t kMaxTiles = std::uint64_t{1} << 32;
constexpr std::uint64_t kMaxRegionBytes = 64 * GiB;
// Of generations and of steps: both travel as int64.
constexpr std::uint64_t kMaxGeneration = std::uint64_t{1} << 62;

using Uuid = std::array<std::byte, 16>;
std::string to_string(const Uuid& uuid);  // 32 hex digits

struct Superblock {
  std::uint32_t version = 1;
  Uuid store{};
  Uuid parent{};  // the store this one was loaded from; zeros: none
  Rank rank{};
  std::uint32_t world = 1;
  std::uint64_t tile_bytes = 0;
  std::uint64_t block_bytes = 0;
  std::uint32_t slots = 3;
  std::uint64_t tiles = 0;
  std::uint64_t region_bytes = 0;   // one manifest region; there are slots + 1
  std::uint64_t layout_digest = 0;  // equal on all ranks
};

ByteVector encode(const Superblock& superblock);  // exactly 4096 bytes
Result<Superblock> decode_superblock(ByteView bytes, std::string_view file, std::uint64_t offset);

// The numbers of a superblock are in range and fit together; `where` begins the message.
Result<> check_geometry(const Superblock& superblock, const std::string& where);

}  // namespace ebb::formats::native
