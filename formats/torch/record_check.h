// The CRC32 of zip records that are read in parts: on the way where the parts come in order, in a
// second pass where they do not.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
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

// Thread-safe. Remembers how far a few records were read.
class RecordCheck {
 public:
  // `bytes` were just read from byte `first` of the record. The part that ends the record decides:
  // Code::corrupt when the whole does not have the record's CRC32.
  Result<> saw(const ByteSource& source, const CheckedRecord& record, std::uint64_t first,
               ByteView bytes) const;
  // Reads all of it.
  static Result<> read_through(const ByteSource& source, const CheckedRecord& record);

 private:
  struct Progress {
    std::string file;
    std::uint64_t at = 0;  // the record's
    std::uint64_t next = 0;
    std::uint32_t crc = 0;
  };
  mutable std::array<std::atomic<std::shared_ptr<const Progress>>, 8> slots_;
};

}  // namespace formats
