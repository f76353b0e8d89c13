// CRC32C (Castagnoli), hardware-accelerated by ISA-L, and CRC32 (zip's) for torch archives.
#pragma once

#include <cstdint>

#include "ebb/formats/core/bytes.h"

namespace ebb::formats {

// Continues `crc` over `bytes`; start with 0. crc32c("123456789") == 0xe3069283.
std::uint32_t crc32c(std::uint32_t crc, ByteView bytes);

// CRC32Cs of runs of `bytes` bytes out of those of their parts, which may come in any order: the
// run's is that of zeros, with what each part contributes added by exclusive or.
class Crc32cOfParts {
 public:
  explicit Crc32cOfParts(std::uint64_t bytes);
  std::uint32_t zeros() const { return zeros_; }
  // REQUIRES: the part lies inside the run.
  std::uint32_t contribution(std::uint64_t offset, ByteView part) const;
  // crc32c(seed, run), out of crc32c(0, run).
  std::uint32_t begun_with(std::uint32_t seed, std::uint32_t crc) const;

 private:
  std::uint64_t bytes_;
  std::uint32_t zeros_;
};

// The polynomial zip uses, same convention. crc32("123456789") == 0xcbf43926.
std::uint32_t crc32_zip(std::uint32_t crc, ByteView bytes);

// Of two runs of bytes one behind the other, out of each one's own.
std::uint32_t crc32_zip_of_both(std::uint32_t first, std::uint32_t second,
                                std::uint64_t second_bytes);

}  // namespace ebb::formats
