// Numbers of fp32 rounded to those of a narrower type, and kept as fp32: to nearest, ties to even.
// Without branches, for loops over many. tf32 has fp32's exponents and 10 bits behind the point.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>
#include <span>

#include "ebb/libmuon/spec/spec.h"

namespace ebb::libmuon {

// To so many bits fewer. A carry into the exponent is right, and so is infinity.
template <int kBits>
constexpr float without_bits(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  constexpr std::uint32_t kHalf = (1u << (kBits - 1)) - 1;
  const std::uint32_t up = bits + kHalf + ((bits >> kBits) & 1u);
  return std::bit_cast<float>(up & ~((1u << kBits) - 1));
}

template <Precision kPrecision>
constexpr float rounded(float value) {
  if constexpr (kPrecision == Precision::fp32) return value;
  if constexpr (kPrecision == Precision::bf16)
    return value != value ? value : without_bits<16>(value);
  if constexpr (kPrecision == Precision::tf32)
    return value != value ? value : without_bits<13>(value);
  if constexpr (kPrecision == Precision::fp16) {
    // Below 2^-14 fp16 counts in units of 2^-24, as fp32 does at this number.
    constexpr float kUnits = 0.75f, kLeast = 0x1p-14f, kMost = 65504.0f;
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    const float size = value < 0 ? -value : value;
    const float small = (size + kUnits) - kUnits;
    const float normal = without_bits<13>(size);
    const float near = size < kLeast ? small : normal > kMost ? kInfinity : normal;
    return value != value
               ? value
               : std::bit_cast<float>(std::bit_cast<std::uint32_t>(near) |
                                      (std::bit_cast<std::uint32_t>(value) & 0x80000000u));
  }
}

// A norm as a tensor that is kept in it has it, but never out of range.
constexpr double rounded_norm(Precision kept, double value) {
  if (kept == Precision::fp32 || value == 0) return value;
  constexpr int kDropped = 45;  // of 52 bits of fp64: bf16 has 7
  const auto bits = std::bit_cast<std::uint64_t>(value);
  constexpr std::uint64_t kHalf = (std::uint64_t{1} << (kDropped - 1)) - 1;
  const std::uint64_t up = bits + kHalf + ((bits >> kDropped) & 1u);
  return std::bit_cast<double>(up & ~((std::uint64_t{1} << kDropped) - 1));
}

// What U, its norm and the quotient of the two are rounded to. `spec`, here and below: MuonSpec, or
// a device's form of it.
template <typename Spec>
constexpr Precision norm_precision(const Spec& spec) {
  switch (spec.norm_of) {
    case NormOf::update:
      break;
    case NormOf::rounded:
      return kept_as(spec.precision);
    case NormOf::handed:
      return spec.handed;
  }
  return Precision::fp32;
}

// What U is multiplied with so that it can be orthogonalized.
template <typename Spec>
constexpr double normalizer(const Spec& spec, double norm) {
  const Precision kept = norm_precision(spec);
  const double grown = rounded_norm(kept, rounded_norm(kept, norm) * spec.norm_factor);
  if (spec.eps_rule == EpsRule::add) return 1 / rounded_norm(kept, grown + spec.eps);
  const double least = rounded_norm(kept, spec.eps);
  return 1 / (grown < least ? least : grown);
}

void round_all(Precision precision, std::span<float> values);

}  // namespace ebb::libmuon
