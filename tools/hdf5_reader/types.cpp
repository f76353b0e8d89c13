#include "tools/hdf5_reader/types.h"

#include <array>
#include <string>

#include "tools/hdf5_reader/handle.h"

namespace ebb::hdf5_reader {
namespace {

using formats::hdf5::ElementType;
using Kind = ElementType::Kind;

ElementType integer(hid_t type) {
  ElementType out{.kind = Kind::integer};
  out.size = static_cast<std::uint32_t>(H5Tget_size(type));
  out.big_endian = H5Tget_order(type) == H5T_ORDER_BE;
  out.is_signed = H5Tget_sign(type) != H5T_SGN_NONE;
  out.padded = H5Tget_precision(type) != std::size_t{out.size} * 8 || H5Tget_offset(type) != 0;
  out.words = compose("{}{} bytes{}", out.is_signed ? "int of " : "unsigned int of ", out.size,
                      (out.padded ? ", some of their bits unused" : ""));
  return out;
}

ElementType floating(hid_t type) {
  ElementType out{.kind = Kind::floating};
  out.size = static_cast<std::uint32_t>(H5Tget_size(type));
  const H5T_order_t order = H5Tget_order(type);
  out.big_endian = order == H5T_ORDER_BE;
  std::array<std::size_t, 5> fields{};
  H5Tget_fields(type, &fields[0], &fields[1], &fields[2], &fields[3], &fields[4]);
  out.sign_at = static_cast<std::uint32_t>(fields[0]);
  out.exponent_at = static_cast<std::uint32_t>(fields[1]);
  out.exponent_bits = static_cast<std::uint32_t>(fields[2]);
  out.mantissa_at = static_cast<std::uint32_t>(fields[3]);
  out.mantissa_bits = static_cast<std::uint32_t>(fields[4]);
  out.bias = H5Tget_ebias(type);
  out.padded = H5Tget_precision(type) != std::size_t{out.size} * 8 ||
               (order != H5T_ORDER_LE && order != H5T_ORDER_BE);
  out.words = compose("float of {} bytes with {} exponent and {} mantissa bits", out.size,
                      out.exponent_bits, out.mantissa_bits);
  return out;
}

std::string member_name(hid_t type, unsigned number) {
  char* const name = H5Tget_member_name(type, number);
  std::string out = name == nullptr ? "" : name;
  H5free_memory(name);
  return out;
}

// h5py's bool is an enum of FALSE = 0 and TRUE = 1 over int8.
ElementType enumeration(hid_t type) {
  const Handle base(H5Tget_super(type), H5Tclose);
  ElementType out = integer(base.get());
  const int members = H5Tget_nmembers(type);
  bool is_boolean = members == 2 && out.size == 1;
  for (unsigned i = 0; is_boolean && i < 2; ++i) {
    unsigned char value = 0;
    is_boolean = H5Tget_member_value(type, i, &value) >= 0 && value < 2 &&
                 member_name(type, i) == (value == 0 ? "FALSE" : "TRUE");
  }
  if (is_boolean) out.kind = Kind::boolean;
  out.words = compose("enum of {} names over {}", members, out.words);
  return out;
}

// numpy's complex numbers: a compound of the floats "r" and "i".
ElementType compound(hid_t type) {
  const int members = H5Tget_nmembers(type);
  ElementType out{.words = compose("compound of {} members", members)};
  out.size = static_cast<std::uint32_t>(H5Tget_size(type));
  if (members != 2 || member_name(type, 0) != "r" || member_name(type, 1) != "i") return out;
  const Handle first(H5Tget_member_type(type, 0), H5Tclose);
  const Handle second(H5Tget_member_type(type, 1), H5Tclose);
  if (H5Tget_class(first.get()) != H5T_FLOAT || H5Tequal(first.get(), second.get()) <= 0 ||
      H5Tget_member_offset(type, 0) != 0 || H5Tget_member_offset(type, 1) != out.size / 2)
    return out;
  ElementType complex = floating(first.get());
  complex.kind = Kind::complex;
  complex.size = out.size;
  complex.words = compose("complex number of {} bytes", out.size);
  return complex;
}

}  // namespace

ElementType element_type_of(hid_t type) {
  switch (H5Tget_class(type)) {
    case H5T_INTEGER:
      return integer(type);
    case H5T_FLOAT:
      return floating(type);
    case H5T_ENUM:
      return enumeration(type);
    case H5T_COMPOUND:
      return compound(type);
    case H5T_STRING:
      return {.kind = Kind::text,
              .size = static_cast<std::uint32_t>(H5Tget_size(type)),
              .words = H5Tis_variable_str(type) > 0 ? "variable-length string"
                                                    : "string of fixed length"};
    case H5T_VLEN:
      return {.words = "variable-length sequence"};
    case H5T_REFERENCE:
      return {.words = "reference"};
    case H5T_OPAQUE:
      return {.words = "opaque"};
    case H5T_BITFIELD:
      return {.words = "bit field"};
    case H5T_ARRAY:
      return {.words = "array"};
    case H5T_TIME:
      return {.words = "time"};
    default:
      return {.words = "type of an unknown class"};
  }
}

}  // namespace ebb::hdf5_reader
