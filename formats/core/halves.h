// fp32 numbers in two halves of 16 bits that lie apart: the nearest number of bf16, ties away from
// zero, and the low half of the bits. Together they are the number again, bit for bit, whatever its
// bits are: only a tie rounded to even could not be taken back (docs/numerics.md).
#pragma once

#include <bit>
#include <cstdint>

namespace ebb::formats {

// Bits of bf16. Half of what is dropped is added to the magnitude, as the sign is a bit of its own.
// A number that bf16 has not the range for becomes an infinity.
constexpr std::uint16_t high_half(float value) {
  return static_cast<std::uint16_t>((std::bit_cast<std::uint32_t>(value) + 0x8000u) >> 16);
}
constexpr std::uint16_t low_half(float value) {
  return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) & 0xffffu);
}
// The low half says whether the high one was rounded up.
constexpr float joined(std::uint16_t high, std::uint16_t low) {
  return std::bit_cast<float>((std::uint32_t{high} - (low >> 15)) << 16 | low);
}

}  // namespace ebb::formats
