// RangeParts: CRC32s of ranges of a file that is made in pieces, several at a time: each piece says
// what it holds of the ranges, and who needs a whole range's puts them together.
// Thread-safe. Memory: 24 bytes for each range and piece that overlap.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ebb/formats/catalog/emit.h"
#include "ebb/libswap/publish/finished_piece.h"
#include "ebb/libswap/sys/mutex.h"

namespace ebb::libswap {

class RangeParts {
 public:
  // The ranges that the file's Sealed fragments name. REQUIRES: equal or disjoint (check_plan).
  RangeParts(const OutputFile& file, std::uint64_t piece_bytes);

  bool touches(FileRange bytes) const;
  // Of the file's bytes from `offset` on, ascending.
  std::vector<RangePart> parts_of(std::uint64_t offset, ByteView bytes) const;

  // Once for each piece, in any order. A file without ranges needs none and waits for none.
  void publish(std::uint64_t piece, std::vector<RangePart> parts);
  // Of a piece that is published.
  std::vector<RangePart> published(std::uint64_t piece) const;
  // Blocks until all pieces before this one are published; false after stop().
  bool wait_before(std::uint64_t piece);
  void stop();

  // REQUIRES: every range was named; wait_before(piece) was true. `bytes` begin where `piece` does
  // and reach the ends of the ranges that end in it.
  std::vector<std::uint32_t> crcs_of(const std::vector<FileRange>& ranges, std::uint64_t piece,
                                     ByteView bytes) const;

 private:
  std::uint32_t crc_of(std::size_t range, std::uint64_t piece, ByteView bytes) const
      EBB_REQUIRES(mutex_);

  std::uint64_t piece_bytes_;
  std::vector<FileRange> ranges_;  // ascending, disjoint
  mutable Mutex mutex_;
  Condition grown_;
  std::vector<std::vector<RangePart>> parts_ EBB_GUARDED_BY(mutex_);  // by piece
  std::vector<bool> known_ EBB_GUARDED_BY(mutex_);                    // by piece
  std::uint64_t complete_ EBB_GUARDED_BY(mutex_) = 0;  // pieces before this one are published
  bool stopped_ EBB_GUARDED_BY(mutex_) = false;
};

}  // namespace ebb::libswap
