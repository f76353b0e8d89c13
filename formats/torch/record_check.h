// The CRC32 of zip records that are read in parts, in any order and by several readers at once.
#pragma once

#include <cstdint>
#include <string>

#include "formats/core/byte_source.h"

namespace formats {

// A stored record.
struct CheckedRecord {
  std::string name;
  std::uint64_t header_at = 0;  // absolute, for messages
  std::uint64_t at = 0;         // of its first byte, absolute
  std::uint64_t size = 0;
  std::uint32_t crc = 0;
};

// Whether this read is the last one that whoever reads everything asks for.
enum class Closing : std::uint8_t { not_yet, now };

// `bytes` were just read from byte `first` of the record. Once all of it was seen
// (SourceTree::seen) its CRC32 decides: Code::corrupt where it is another. The closing part does
// not wait for that: it reads what nobody has seen.
Result<> check_part(const SourceTree& tree, const ByteSource& source, const CheckedRecord& record,
                    std::uint64_t first, ByteView bytes, Closing closing);

// Reads all of it.
Result<> check_record(const ByteSource& source, const CheckedRecord& record);

}  // namespace formats
