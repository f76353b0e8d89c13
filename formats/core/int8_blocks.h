// Numbers in blocks of int8: an element is its code times the scale of its block, which fp32 holds
// exactly. Codes and scale of a block follow from its numbers alone, and of numbers that come out
// of such a block they are the same again: nothing is lost between two steps (docs/numerics.md).
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>

namespace ebb::formats {

// Of a block whose largest magnitude, which is finite, this is: it becomes code 127. Scales have 17
// significant bits, so that products with codes have 24; 0: all of the block is 0. What is below
// half of the least normal number is.
constexpr float int8_scale(float largest) {
  constexpr float kLeast = 0x1p-126f;
  if (largest <= kLeast / 2) return 0;
  constexpr std::uint32_t kDropped = 0x7f;
  const auto bits = std::bit_cast<std::uint32_t>(std::max(largest / 127, kLeast));
  return std::bit_cast<float>((bits + kDropped) & ~kDropped);
}

// The code of a number: the nearest one, ties to even. `inverse`: 1 / scale, rounded; 0 for 0.
constexpr std::int8_t int8_code(float value, float inverse) {
  constexpr float kUnits = 0x1.8p23f;  // fp32 counts in ones here
  return static_cast<std::int8_t>(std::bit_cast<std::uint32_t>(value * inverse + kUnits) & 0xff);
}
constexpr float int8_value(std::int8_t code, float scale) {
  return static_cast<float>(code) * scale;
}
constexpr float int8_inverse(float scale) { return scale == 0 ? 0 : 1 / scale; }

// Whole blocks of `block` elements and the beginning of another; a scale for each. `first` elements
// of the first block lie before. REQUIRES: first < block.
void from_int8_blocks(std::span<const std::int8_t> codes, std::span<const float> scales,
                      std::uint64_t block, std::uint64_t first, std::span<float> into);
// The other way, from the first element of a block on.
void to_int8_blocks(std::span<const float> values, std::uint64_t block,
                    std::span<std::int8_t> codes, std::span<float> scales);

}  // namespace ebb::formats
