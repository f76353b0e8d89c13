#include "ebb/formats/hdf5/elements.h"

#include <array>

#include "ebb/formats/core/compose.h"

namespace ebb::formats::hdf5 {
namespace {

constexpr std::array kFloats = {
    FloatBits{DType::f32, 4, 8, 23, 127},      FloatBits{DType::f64, 8, 11, 52, 1023},
    FloatBits{DType::f16, 2, 5, 10, 15},       FloatBits{DType::bf16, 2, 8, 7, 127},
    FloatBits{DType::f8_e4m3, 1, 4, 3, 7},     FloatBits{DType::f8_e5m2, 1, 5, 2, 15},
    FloatBits{DType::f8_e4m3fnuz, 1, 4, 3, 8}, FloatBits{DType::f8_e5m2fnuz, 1, 5, 2, 16},
};

std::optional<DType> float_of(const ElementType& type, std::uint32_t bytes) {
  for (const FloatBits& bits : kFloats)
    if (bits.bytes == bytes && bits.exponent_bits == type.exponent_bits &&
        bits.mantissa_bits == type.mantissa_bits && bits.bias == type.bias &&
        type.mantissa_at == 0 && type.exponent_at == bits.mantissa_bits &&
        type.sign_at == bytes * 8 - 1)
      return bits.dtype;
  return std::nullopt;
}

std::optional<DType> integer_of(const ElementType& type) {
  return dtype_named(compose("{}{}", type.is_signed ? "I" : "U", std::uint64_t{type.size} * 8));
}

std::optional<DType> dtype_of(const ElementType& type) {
  switch (type.kind) {
    case ElementType::Kind::integer:
      return integer_of(type);
    case ElementType::Kind::floating:
      return float_of(type, type.size);
    case ElementType::Kind::boolean:
      return type.size == 1 ? std::optional(DType::boolean) : std::nullopt;
    case ElementType::Kind::complex: {
      const std::optional<DType> part = float_of(type, type.size / 2);
      if (part == DType::f32) return DType::c64;
      if (part == DType::f64) return DType::c128;
      return std::nullopt;
    }
    default:
      return std::nullopt;
  }
}

}  // namespace

std::optional<Elements> elements_of(const ElementType& type) {
  const std::optional<DType> dtype = type.padded ? std::nullopt : dtype_of(type);
  if (!dtype) return std::nullopt;
  Elements elements{.dtype = *dtype};
  const bool complex = type.kind == ElementType::Kind::complex;
  if (type.big_endian) elements.swap = complex ? type.size / 2 : type.size;
  return elements;
}

std::optional<FloatBits> float_bits_of(DType dtype) {
  for (const FloatBits& bits : kFloats)
    if (bits.dtype == dtype) return bits;
  return std::nullopt;
}

}  // namespace ebb::formats::hdf5
