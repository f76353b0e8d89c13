// Checksums of what is written, for Sealed fragments: CRC32s of ranges of one file that is written
// from front to back; CRC32Cs of blocks of several files, written in any order.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "ebb/formats/catalog/emit.h"
#include "ebb/formats/core/crc32c.h"

namespace ebb::formats {

class RangeCrcs {
 public:
  // The ranges that the file's Sealed fragments name. REQUIRES: equal or disjoint (check_plan).
  explicit RangeCrcs(const OutputFile& file) : RangeCrcs(file.fragments, 0) {}
  // Of a part of the file that begins at `position` and holds whole what its seals are over.
  RangeCrcs(std::span<const Fragment> fragments, std::uint64_t position);

  // The next bytes of the file.
  void feed(ByteView bytes);
  void feed_zeros(std::uint64_t count);
  // REQUIRES: the range was named and lies behind.
  std::vector<std::uint32_t> of(const std::vector<FileRange>& ranges) const;

 private:
  std::map<FileRange, std::uint32_t> crcs_;
  std::map<FileRange, std::uint32_t>::iterator next_;  // the first range that is not complete
  std::uint64_t position_ = 0;
};

// Of every file that has OutputFile::blocks. What is not fed counts as zeros, so gaps need no call.
struct BlockShare {  // what some bytes contribute to a block's CRC32C
  std::uint64_t block = 0;
  std::uint32_t crc = 0;
};
class BlockCrcs {
 public:
  explicit BlockCrcs(const EmitPlan& plan);  // borrowed

  // Of bytes of one of the plan's files; safe from any thread, also beside add().
  std::vector<BlockShare> shares(const OutputFile& file, std::uint64_t offset,
                                 ByteView bytes) const;
  // Each byte's at most once, in any order. Not thread-safe.
  void add(const OutputFile& file, std::span<const BlockShare> shares);
  // One CRC32C a block. REQUIRES: the shard file has blocks and is written.
  std::span<const std::uint32_t> of(std::uint32_t file) const;

 private:
  struct OfFile {
    CheckedBlocks blocks;
    Crc32cOfParts parts;
    std::vector<std::uint32_t> crcs;
  };
  std::map<const OutputFile*, OfFile> files_;
  const EmitPlan& plan_;
};

}  // namespace ebb::formats
