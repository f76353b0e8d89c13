// The CRC32 of zip records that are read in parts, in any order and by several readers at once.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "ebb/formats/core/byte_source.h"
#include "ebb/formats/layout/box.h"

namespace ebb::formats {

// A stored record.
struct CheckedRecord {
  std::string name;
  std::uint64_t header_at = 0;  // absolute, for messages
  std::uint64_t at = 0;         // of its first byte, absolute
  std::uint64_t size = 0;
  std::uint32_t crc = 0;
};

// Bytes of records that no reader will ask for, such as padding between tensors. One of those who
// read what lies before them (at a record's start: after them) reads them along, for the checksum's
// sake. Only one: a file may hold thousands of tensors that end where the same large gap begins.
class RecordGaps {
 public:
  // Who reads `holder`, a number of the caller's, will ask for these bytes of the record. None are
  // nobody's neighbours. REQUIRES: not closed.
  void hold(std::uint32_t record, FlatRange bytes, std::uint64_t holder) {
    if (bytes.count > 0) ranges_.push_back({record, bytes, holder});
  }
  // All was told. `sizes`: of the records, by number.
  void close(std::span<const std::uint64_t> sizes);
  // Those next to `part` of `holder` that it reads along, ascending. REQUIRES: closed.
  std::vector<FlatRange> beside(std::uint32_t record, FlatRange part, std::uint64_t holder) const;

 private:
  struct InRecord {
    std::uint32_t record = 0;
    FlatRange bytes;
    std::uint64_t holder = 0;  // of a gap: who reads it along
  };
  std::vector<InRecord> ranges_;  // what is held; once closed, what is not: by record and place
};

// `bytes` were just read from byte `first` of the record. Once all of it was seen
// (SourceTree::seen) its CRC32 decides: Code::corrupt where it is another. `gaps` of the record
// nobody else reads.
Result<> check_part(const SourceTree& tree, const ByteSource& source, const CheckedRecord& record,
                    std::uint64_t first, ByteView bytes, std::span<const FlatRange> gaps);

// Reads all of it.
Result<> check_record(const ByteSource& source, const CheckedRecord& record);

}  // namespace ebb::formats
