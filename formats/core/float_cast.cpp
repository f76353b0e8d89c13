#include "ebb/formats/core/float_cast.h"

#include <bit>
#include <cmath>
#include <cstring>

#include "ebb/formats/core/bf16.h"
#include "ebb/formats/core/check.h"

namespace ebb::formats {
namespace {

float f16_to_f32(std::uint16_t value) {
  const std::uint32_t sign = static_cast<std::uint32_t>(value & 0x8000u) << 16;
  const std::uint32_t exponent = (value >> 10) & 0x1fu;
  const std::uint32_t fraction = value & 0x3ffu;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000u | (fraction << 13));
  if (exponent != 0)
    return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (fraction << 13));
  const float magnitude = std::ldexp(static_cast<float>(fraction), -24);
  return sign != 0 ? -magnitude : magnitude;
}

std::uint16_t f32_to_f16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000u);
  const std::uint32_t rest = bits & 0x7fffffffu;
  if (rest > 0x7f800000u)
    return static_cast<std::uint16_t>(sign | 0x7e00u | ((rest >> 13) & 0x3ffu));
  if (rest >= 0x47800000u) return static_cast<std::uint16_t>(sign | 0x7c00u);  // 2^16 and more
  if (rest < 0x38800000u) {  // below 2^-14: a multiple of 2^-24, the addition rounds
    const float shifted = std::bit_cast<float>(rest) + 0.5f;
    return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3f000000u));
  }
  const std::uint32_t rounded = rest - 0x38000000u + 0xfffu + ((rest >> 13) & 1u);
  return static_cast<std::uint16_t>(sign | (rounded >> 13));
}

// The fp32 whose rounding to fewer bits is the rounding of `value`: odd where it is not exact.
float to_odd_f32(double value) {
  auto nearest = static_cast<float>(value);
  if (std::isnan(value) || static_cast<double>(nearest) == value) return nearest;
  if (std::fabs(static_cast<double>(nearest)) > std::fabs(value))
    nearest = std::nextafter(nearest, 0.0f);
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(nearest) | 1u);
}

template <typename Bits>
Bits load(const std::byte* at) {
  Bits bits;
  std::memcpy(&bits, at, sizeof bits);
  return bits;
}

double load_float(DType dtype, const std::byte* at) {
  if (dtype == DType::f64) return load<double>(at);
  if (dtype == DType::f32) return static_cast<double>(load<float>(at));
  const auto half = load<std::uint16_t>(at);
  return static_cast<double>(dtype == DType::bf16 ? bf16_to_f32(half) : f16_to_f32(half));
}

void store_float(DType dtype, double value, std::byte* at) {
  if (dtype == DType::f64) {
    std::memcpy(at, &value, 8);
  } else if (dtype == DType::f32) {
    const auto narrow = static_cast<float>(value);
    std::memcpy(at, &narrow, 4);
  } else {
    const float odd = to_odd_f32(value);
    const std::uint16_t half = dtype == DType::bf16 ? f32_to_bf16(odd) : f32_to_f16(odd);
    std::memcpy(at, &half, 2);
  }
}

void widen_bf16(ByteView elements, std::span<std::byte> into) {
  for (std::size_t i = 0; i < elements.size() / 2; ++i) {
    const float value = bf16_to_f32(load<std::uint16_t>(&elements[2 * i]));
    std::memcpy(&into[4 * i], &value, 4);
  }
}

void narrow_to_bf16(ByteView elements, std::span<std::byte> into) {
  for (std::size_t i = 0; i < elements.size() / 4; ++i) {
    const std::uint16_t half = f32_to_bf16(load<float>(&elements[4 * i]));
    std::memcpy(&into[2 * i], &half, 2);
  }
}

}  // namespace

bool is_floating(DType dtype) {
  return dtype == DType::f64 || dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16;
}

bool is_widening(DType from, DType to) {
  if (!is_floating(from) || !is_floating(to)) return from == to;
  return from == to || (bytes_of(from) < bytes_of(to));
}

void cast_floats(DType from, ByteView elements, DType to, std::span<std::byte> into, double scale) {
  EBB_CHECK(is_floating(from) && is_floating(to));
  const std::size_t in = bytes_of(from);
  const std::size_t out = bytes_of(to);
  EBB_CHECK(elements.size() / in * out == into.size() && elements.size() % in == 0);
  if (from == DType::bf16 && to == DType::f32 && scale == 1) return widen_bf16(elements, into);
  if (from == DType::f32 && to == DType::bf16 && scale == 1) return narrow_to_bf16(elements, into);
  for (std::size_t i = 0; i < elements.size() / in; ++i) {
    const double value = load_float(from, &elements[i * in]);
    store_float(to, scale == 1 ? value : value * scale, &into[i * out]);
  }
}

}  // namespace ebb::formats
