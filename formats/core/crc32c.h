// CRC32C (Castagnoli), hardware-accelerated by ISA-L, and CRC32 (zip's) for torch archives.
#pragma once

#include <cstdint>

#include "formats/core/bytes.h"

namespace formats {

// Continues `crc` over `bytes`; start with 0. crc32c("123456789") == 0xe3069283.
std::uint32_t crc32c(std::uint32_t crc, ByteView bytes);

// The polynomial zip uses, same convention. crc32("123456789") == 0xcbf43926.
std::uint32_t crc32_zip(std::uint32_t crc, ByteView bytes);

// Of two runs of bytes one behind the other, out of each one's own.
std::uint32_t crc32_zip_of_both(std::uint32_t first, std::uint32_t second,
                                std::uint64_t second_bytes);

}  // namespace formats
