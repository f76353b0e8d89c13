// What is known of a segment of an output file once it is written: enough to never make it again.
#pragma once

#include <cstdint>
#include <vector>

#include "ebb/formats/catalog/range_crcs.h"

namespace ebb::libswap {

// What one segment adds to a sum of fingerprints.
struct Share {
  std::uint32_t number = 0;
  std::uint64_t fingerprint = 0;
};
struct Shares {
  std::vector<Share> stored;   // by content tensor, of fragments that count (CheckedPlan)
  std::vector<Share> derived;  // by EmitPlan::derived: what readers will round
};

// The CRC32 of what one segment holds of one of the ranges that its file's seals name.
struct RangeCrc {
  std::uint32_t range = 0;
  std::uint32_t crc = 0;
  std::uint64_t bytes = 0;
};

// The frames of a segment of compressed items: one behind the other from `offset` on.
struct SegmentFrames {
  std::uint64_t offset = 0;  // in the file
  std::vector<std::uint64_t> lengths;
};

struct WrittenSegment {
  std::uint64_t index = 0;  // among all segments of the shard files (Segments)
  Shares shares;
  std::vector<RangeCrc> range_crcs;
  std::vector<formats::BlockShare> block_crcs;
  SegmentFrames frames;
};

}  // namespace ebb::libswap
