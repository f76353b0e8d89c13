// What a manifest can hold, asked before one is written: a store that no one can read again is
// refused while nothing is lost.
#pragma once

#include "ebb/formats/native/manifest.h"

namespace ebb::formats::native {

// What decode_manifest() would refuse, or what no other format could name. Code::limit for what is
// too long or too many, Code::usage for a name that is not UTF-8; both name it.
Result<> check_limits(const Manifest& manifest);
// Of one name: `what` it is of begins the message.
Result<> check_name(std::string_view what, std::string_view name);

// Tiles that a rank has tables of in memory: some 500 bytes each. A store may hold more
// (kMaxTiles).
constexpr std::uint64_t kMostPlannedTiles = std::uint64_t{1} << 24;
Result<> check_tiles(std::uint64_t tiles, std::uint64_t tile_bytes);
// Before anything is counted in tiles of that size.
Result<> check_tile_bytes(std::uint64_t tile_bytes);

}  // namespace ebb::formats::native
