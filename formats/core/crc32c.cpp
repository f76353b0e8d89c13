#include "ebb/formats/core/crc32c.h"

#include <isa-l/crc.h>
#include <zlib.h>

#include <algorithm>

namespace ebb::formats {
namespace {

constexpr std::size_t kMaxPass = 1u << 30;  // ISA-L's length is an int in crc32_iscsi

// x^(8 * bytes) modulo CRC32C's polynomial; bits are reflected, the highest one is x^0.
constexpr std::uint32_t kPolynomial = 0x82f63b78;
constexpr std::uint32_t kOne = 0x80000000;

std::uint32_t product(std::uint32_t a, std::uint32_t b) {
  std::uint32_t sum = 0;
  for (std::uint32_t bit = kOne; bit != 0; bit >>= 1) {
    if ((a & bit) != 0) sum ^= b;
    b = (b & 1) != 0 ? (b >> 1) ^ kPolynomial : b >> 1;
  }
  return sum;
}

std::uint32_t power_of_x8(std::uint64_t bytes) {
  std::uint32_t result = kOne;
  std::uint32_t square = kOne >> 8;
  for (; bytes != 0; bytes >>= 1) {
    if ((bytes & 1) != 0) result = product(result, square);
    square = product(square, square);
  }
  return result;
}

}  // namespace

Crc32cOfParts::Crc32cOfParts(std::uint64_t bytes)
    : bytes_(bytes), zeros_(~product(~0u, power_of_x8(bytes))) {}

std::uint32_t Crc32cOfParts::contribution(std::uint64_t offset, ByteView part) const {
  const std::uint32_t alone = ~crc32c(~0u, part);  // the register, begun at zero
  const std::uint64_t after = bytes_ - offset - part.size();
  return after == 0 ? alone : product(alone, power_of_x8(after));
}

std::uint32_t Crc32cOfParts::begun_with(std::uint32_t seed, std::uint32_t crc) const {
  return crc ^ product(seed, power_of_x8(bytes_));
}

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

}  // namespace ebb::formats
