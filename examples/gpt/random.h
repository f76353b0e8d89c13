// A counter-based generator: number i of a stream is a function of the seed and i, so any rank can
// compute any part of it. The mixing function is SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
#pragma once

#include <cstdint>

namespace ebb::gpt {

constexpr std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

constexpr std::uint64_t random_bits(std::uint64_t seed, std::uint64_t counter) {
  return mix(mix(seed) ^ counter);
}

// Uniform in [-1, 1), a multiple of 2^-23: exact in fp32.
constexpr float random_float(std::uint64_t seed, std::uint64_t counter) {
  const auto top = static_cast<std::int64_t>(random_bits(seed, counter) >> 40);  // 24 bits
  return static_cast<float>(top - (1 << 23)) / static_cast<float>(1 << 23);
}

}  // namespace ebb::gpt
