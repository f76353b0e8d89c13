#include "ebb/formats/core/element_values.h"

#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "ebb/formats/core/check.h"
#include "ebb/formats/core/float_cast.h"

namespace ebb::formats {
namespace {

template <typename Number>
void copy_numbers(ByteView elements, std::span<double> into) {
  for (std::size_t i = 0; i < into.size(); ++i) {
    Number number;
    std::memcpy(&number, &elements[i * sizeof(Number)], sizeof(Number));
    into[i] = static_cast<double>(number);
  }
}

// What the largest exponent and the sign bit alone stand for.
enum class Special : std::uint8_t {
  ieee,        // infinities and NaN at the largest exponent
  finite,      // numbers at the largest exponent; all bits set: NaN ("fn")
  finite_nuz,  // no infinities, no negative zero: that is NaN ("fnuz")
};
struct Small {
  int exponent_bits, mantissa_bits, bias;
  Special special;
};

double decode(std::uint32_t bits, const Small& type) {
  const std::uint32_t magnitude = bits & ((1u << (type.exponent_bits + type.mantissa_bits)) - 1);
  const bool negative = magnitude != bits;
  const auto exponent = static_cast<int>(magnitude >> type.mantissa_bits);
  const std::uint32_t fraction = magnitude & ((1u << type.mantissa_bits) - 1);
  const int largest = (1 << type.exponent_bits) - 1;
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  if (type.special == Special::finite_nuz && negative && magnitude == 0) return kNaN;
  if (type.special == Special::ieee && exponent == largest)
    return fraction != 0 ? kNaN
           : negative    ? -std::numeric_limits<double>::infinity()
                         : std::numeric_limits<double>::infinity();
  if (type.special == Special::finite && exponent == largest &&
      fraction == (1u << type.mantissa_bits) - 1)
    return kNaN;
  const double value = exponent == 0 ? std::ldexp(fraction, 1 - type.bias - type.mantissa_bits)
                                     : std::ldexp(fraction + (1u << type.mantissa_bits),
                                                  exponent - type.bias - type.mantissa_bits);
  return negative ? -value : value;
}

// All 256 values of an 8-bit type, then a look-up for each element.
template <typename Decode>
void copy_small(ByteView elements, std::span<double> into, const Decode& decode_one) {
  std::array<double, 256> table{};
  for (std::uint32_t bits = 0; bits < table.size(); ++bits) table[bits] = decode_one(bits);
  for (std::size_t i = 0; i < into.size(); ++i)
    into[i] = table[std::to_integer<std::uint8_t>(elements[i])];
}

void copy_float8(DType dtype, ByteView elements, std::span<double> into) {
  Small type{4, 3, 7, Special::finite};
  if (dtype == DType::f8_e5m2) type = {5, 2, 15, Special::ieee};
  if (dtype == DType::f8_e4m3fnuz) type = {4, 3, 8, Special::finite_nuz};
  if (dtype == DType::f8_e5m2fnuz) type = {5, 2, 16, Special::finite_nuz};
  copy_small(elements, into, [&](std::uint32_t bits) { return decode(bits, type); });
}

}  // namespace

std::size_t values_per_element(DType dtype) {
  if (bits_of(dtype) % 8 != 0) return 0;
  return dtype == DType::c64 || dtype == DType::c128 ? 2 : 1;
}

void element_values(DType dtype, ByteView elements, std::span<double> into) {
  EBB_CHECK(values_per_element(dtype) != 0);
  EBB_CHECK(elements.size() / bytes_of(dtype) * values_per_element(dtype) == into.size());
  switch (dtype) {
    case DType::f32:
    case DType::bf16:
    case DType::f16:
    case DType::f64:
      return cast_floats(dtype, elements, DType::f64, std::as_writable_bytes(into));
    case DType::c64:
      return copy_numbers<float>(elements, into);
    case DType::c128:
      return copy_numbers<double>(elements, into);
    case DType::i64:
      return copy_numbers<std::int64_t>(elements, into);
    case DType::i32:
      return copy_numbers<std::int32_t>(elements, into);
    case DType::i16:
      return copy_numbers<std::int16_t>(elements, into);
    case DType::i8:
      return copy_numbers<std::int8_t>(elements, into);
    case DType::u64:
      return copy_numbers<std::uint64_t>(elements, into);
    case DType::u32:
      return copy_numbers<std::uint32_t>(elements, into);
    case DType::u16:
      return copy_numbers<std::uint16_t>(elements, into);
    case DType::u8:
      return copy_numbers<std::uint8_t>(elements, into);
    case DType::boolean:
      return copy_small(elements, into, [](std::uint32_t bits) { return bits != 0 ? 1.0 : 0.0; });
    case DType::f8_e8m0:
      return copy_small(elements, into, [](std::uint32_t bits) {
        return bits == 255 ? std::numeric_limits<double>::quiet_NaN()
                           : std::ldexp(1.0, static_cast<int>(bits) - 127);
      });
    default:
      return copy_float8(dtype, elements, into);
  }
}

}  // namespace ebb::formats
