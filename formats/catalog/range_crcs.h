// CRC32s of ranges of a file that is written from front to back: what Sealed fragments ask for.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "formats/catalog/emit.h"

namespace formats {

class RangeCrcs {
 public:
  // The ranges that the file's Sealed fragments name. REQUIRES: equal or disjoint (check_plan).
  explicit RangeCrcs(const OutputFile& file);

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

}  // namespace formats
