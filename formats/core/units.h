// Sizes and counts: 64 bits everywhere, overflow is seen, division says what it does with a rest.
#pragma once

#include <compare>
#include <cstdint>
#include <limits>
#include <optional>

#include "ebb/formats/core/check.h"

namespace ebb::formats {

// A rank's number inside a world. Its own type, because a world size and a count stand beside it.
enum class Rank : std::uint32_t {};
constexpr std::uint32_t index_of(Rank rank) { return static_cast<std::uint32_t>(rank); }

constexpr std::optional<std::uint64_t> checked_add(std::uint64_t a, std::uint64_t b) {
  std::uint64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) return std::nullopt;
  return sum;
}

constexpr std::optional<std::uint64_t> checked_mul(std::uint64_t a, std::uint64_t b) {
  std::uint64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) return std::nullopt;
  return product;
}

// REQUIRES: divisor > 0, and the result fits.
constexpr std::uint64_t div_ceil(std::uint64_t value, std::uint64_t divisor) {
  return value / divisor + (value % divisor != 0 ? 1 : 0);
}
constexpr std::uint64_t align_up(std::uint64_t value, std::uint64_t alignment) {
  return div_ceil(value, alignment) * alignment;
}
constexpr std::uint64_t div_exact(std::uint64_t value, std::uint64_t divisor) {
  EBB_CHECK(value % divisor == 0);
  return value / divisor;
}

constexpr std::uint64_t KiB = 1024;
constexpr std::uint64_t MiB = 1024 * KiB;
constexpr std::uint64_t GiB = 1024 * MiB;

}  // namespace ebb::formats

namespace ebb {
using formats::Rank;
}  // namespace ebb
