#include "formats/core/crc32c.h"

#include <isa-l/crc.h>
#include <zlib.h>

#include <algorithm>

namespace formats {
namespace {

constexpr std::size_t kMaxPass = 1u << 30;  // ISA-L's length is an int in crc32_iscsi

}  // namespace

std::uint32_t crc32c(std::uint32_t crc, ByteView bytes) {
  std::uint32_t state = ~crc;
  while (!bytes.empty()) {
    const std::size_t pass = std::min(bytes.size(), kMaxPass);
    // ISA-L declares the input mutable but only reads it.
    auto* data = reinterpret_cast<unsigned char*>(const_cast<std::byte*>(bytes.data()));
    state = crc32_iscsi(data, static_cast<int>(pass), state);
    bytes = bytes.subspan(pass);
  }
  return ~state;
}

std::uint32_t crc32_zip(std::uint32_t crc, ByteView bytes) {
  const auto* data = reinterpret_cast<const unsigned char*>(bytes.data());
  return bytes.empty() ? crc : crc32_gzip_refl(crc, data, bytes.size());
}

std::uint32_t crc32_zip_of_both(std::uint32_t first, std::uint32_t second,
                                std::uint64_t second_bytes) {
  return static_cast<std::uint32_t>(
      ::crc32_combine(first, second, static_cast<z_off_t>(second_bytes)));
}

}  // namespace formats
