// Numbers of Newton-Schulz as they lie in memory, read and written by the host.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "ebb/formats/core/bf16.h"
#include "ebb/libmuon/kernels/rounding.h"

namespace ebb::stub {

inline float from_half(std::uint16_t bits) {
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  const double size = exponent == 31  ? (fraction == 0 ? HUGE_VAL : NAN)
                      : exponent == 0 ? std::ldexp(fraction, -24)
                                      : std::ldexp(1024 + fraction, exponent - 25);
  return static_cast<float>(bits >> 15 != 0 ? -size : size);
}
// REQUIRES: a number that fp16 has.
inline std::uint16_t to_half(float value) {
  const auto sign = static_cast<std::uint16_t>(std::signbit(value) ? 0x8000 : 0);
  const double size = std::abs(static_cast<double>(value));
  if (!std::isfinite(size))
    return static_cast<std::uint16_t>(sign | (std::isnan(size) ? 0x7e00 : 0x7c00));
  if (size < std::ldexp(1, -14))
    return static_cast<std::uint16_t>(sign | static_cast<int>(std::ldexp(size, 24)));
  int exponent = 0;
  const double fraction = std::frexp(size, &exponent);  // in [1/2, 1)
  return static_cast<std::uint16_t>(sign | (exponent + 14) << 10 |
                                    (static_cast<int>(std::ldexp(fraction, 11)) - 1024));
}

inline float round_to(libmuon::Precision precision, float value) {
  using libmuon::Precision;
  if (precision == Precision::bf16) return libmuon::rounded<Precision::bf16>(value);
  if (precision == Precision::fp16) return libmuon::rounded<Precision::fp16>(value);
  return value;
}

struct Numbers {
  std::byte* data;
  libmuon::Precision precision;

  float get(std::uint64_t i) const {
    if (precision == libmuon::Precision::fp32) return reinterpret_cast<float*>(data)[i];
    const std::uint16_t bits = reinterpret_cast<std::uint16_t*>(data)[i];
    return precision == libmuon::Precision::bf16 ? formats::bf16_to_f32(bits) : from_half(bits);
  }
  // Rounds.
  void put(std::uint64_t i, float value) const {
    if (precision == libmuon::Precision::fp32) {
      reinterpret_cast<float*>(data)[i] = value;
      return;
    }
    const float near = round_to(precision, value);
    reinterpret_cast<std::uint16_t*>(data)[i] =
        precision == libmuon::Precision::bf16 ? formats::f32_to_bf16(near) : to_half(near);
  }
};

}  // namespace ebb::stub
