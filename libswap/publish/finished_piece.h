// What is known of a piece once it is written: enough to never make it again.
#pragma once

#include <cstdint>
#include <vector>

#include "ebb/formats/catalog/range_crcs.h"

namespace ebb::libswap {

// What one piece adds to a sum of fingerprints.
struct Share {
  std::uint32_t number = 0;
  std::uint64_t fingerprint = 0;
};
struct Shares {
  std::vector<Share> stored;   // by content tensor, of fragments that count (stores_of)
  std::vector<Share> derived;  // by EmitPlan::derived: what readers will round
};

// What one piece holds of one of the ranges that its file's seals name.
struct RangePart {
  std::uint32_t range = 0;
  std::uint32_t crc = 0;
  std::uint64_t bytes = 0;
};

// The frames of a piece of compressed items: one behind the other from `offset` on.
struct Frames {
  std::uint64_t offset = 0;  // in the file
  std::vector<std::uint64_t> lengths;
};

struct FinishedPiece {
  std::uint64_t index = 0;  // among all pieces of the shard files (Pieces)
  Shares shares;
  std::vector<RangePart> ranges;
  std::vector<formats::BlockShare> blocks;
  Frames frames;
};

}  // namespace ebb::libswap
