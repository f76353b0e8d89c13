#include "ebb/formats/hdf5/messages.h"

#include <bit>
#include <string>
#include <utility>

#include "ebb/formats/core/check.h"
#include "ebb/formats/hdf5/elements.h"
#include "ebb/formats/hdf5/filters.h"

namespace ebb::formats::hdf5 {
namespace {

enum class TypeClass : std::uint8_t {
  integer = 0,
  floating = 1,
  compound = 6,
  enumeration = 8,
  variable = 9,
};
constexpr std::uint8_t kUtf8 = 1;

ByteVector type_head(TypeClass kind, std::uint32_t version, std::uint32_t bits,
                     std::uint32_t bytes) {
  return record(bits << 8 | version << 4 | static_cast<std::uint32_t>(kind), bytes);
}

constexpr std::uint16_t kFirstBit = 0;

ByteVector integer_type(std::uint32_t bytes, bool is_signed) {
  return record(type_head(TypeClass::integer, 1, is_signed ? 8 : 0, bytes), kFirstBit,
                u16(std::uint64_t{bytes} * 8));
}

ByteVector float_type(const FloatBits& bits) {
  constexpr std::uint32_t kLeadingOneImplied = 2u << 4;
  const std::uint32_t sign_at = bits.bytes * 8 - 1, exponent_at = bits.mantissa_bits;
  return record(type_head(TypeClass::floating, 1, kLeadingOneImplied | sign_at << 8, bits.bytes),
                kFirstBit, u16(std::uint64_t{bits.bytes} * 8), u8(exponent_at),
                u8(bits.exponent_bits), u8(kFirstBit), u8(bits.mantissa_bits), u32(bits.bias));
}

std::string zero_ended(std::string_view name) { return std::string(name) + '\0'; }

// numpy's: the floats "r" and "i".
ByteVector complex_type(DType part) {
  const FloatBits bits = float_bits_of(part).value();
  ByteVector out = type_head(TypeClass::compound, 3, 2, bits.bytes * 2);
  for (const auto& [name, at] : {std::pair("r", 0u), std::pair("i", bits.bytes)})
    put(out, zero_ended(name), u8(at), float_type(bits));
  return out;
}

// h5py's: an enum over int8.
ByteVector boolean_type() {
  return record(type_head(TypeClass::enumeration, 3, 2, 1), integer_type(1, true),
                zero_ended("FALSE"), zero_ended("TRUE"), u8(0), u8(1));
}

// Numbers of version 2's regular selections take 8 bytes, so any extent fits.
void append_selection(ByteVector& out, const Selection& selection) {
  constexpr std::uint32_t kHyperslab = 2, kAll = 3;
  constexpr std::uint8_t kRegular = 1;
  if (selection.kind == Selection::Kind::everything) return put(out, kAll, u32(1), u32(0), u32(0));
  const std::size_t dims = selection.start.size();
  put(out, kHyperslab, u32(2), kRegular, u32(4 + dims * 32), u32(dims));
  for (std::size_t d = 0; d < dims; ++d)
    put(out, selection.start[d], selection.stride[d], selection.count[d], selection.block[d]);
}

// Names in mappings are formats of printf: a '%' of its own is written twice.
std::string escaped(std::string_view name) {
  std::string out;
  for (const char c : name) out.append(c == '%' ? 2 : 1, c);
  return out;
}

}  // namespace

std::uint32_t lookup3(ByteView bytes) {
  std::uint32_t a = 0xdeadbeef + static_cast<std::uint32_t>(bytes.size());
  std::uint32_t b = a, c = a;
  const auto words = [&](ByteView block) {
    std::uint32_t word[3] = {0, 0, 0};
    for (std::size_t i = 0; i < block.size(); ++i)
      word[i / 4] |= std::to_integer<std::uint32_t>(block[i]) << (i % 4 * 8);
    a += word[0], b += word[1], c += word[2];
  };
  while (bytes.size() > 12) {
    words(bytes.first(12));
    a -= c, a ^= std::rotl(c, 4), c += b;
    b -= a, b ^= std::rotl(a, 6), a += c;
    c -= b, c ^= std::rotl(b, 8), b += a;
    a -= c, a ^= std::rotl(c, 16), c += b;
    b -= a, b ^= std::rotl(a, 19), a += c;
    c -= b, c ^= std::rotl(b, 4), b += a;
    bytes = bytes.subspan(12);
  }
  if (bytes.empty()) return c;
  words(bytes);
  c ^= b, c -= std::rotl(b, 14);
  a ^= c, a -= std::rotl(c, 11);
  b ^= a, b -= std::rotl(a, 25);
  c ^= b, c -= std::rotl(b, 16);
  a ^= c, a -= std::rotl(c, 4);
  b ^= a, b -= std::rotl(a, 14);
  c ^= b, c -= std::rotl(b, 24);
  return c;
}

// The version comes first, and in layouts their class behind it.
ByteVector dataspace(const Shape& shape) {
  constexpr std::uint8_t kNoLargestExtents = 0;
  const bool simple = !shape.empty();  // else a scalar
  ByteVector out = record(u8(2), u8(shape.size()), kNoLargestExtents, u8(simple));
  for (const std::uint64_t extent : shape) put(out, extent);
  return out;
}

ByteVector datatype(DType dtype) {
  if (const auto bits = float_bits_of(dtype)) return float_type(*bits);
  switch (dtype) {
    case DType::boolean:
      return boolean_type();
    case DType::c64:
      return complex_type(DType::f32);
    case DType::c128:
      return complex_type(DType::f64);
    case DType::i8:
    case DType::i16:
    case DType::i32:
    case DType::i64:
      return integer_type(bytes_of(dtype), true);
    default:
      return integer_type(bytes_of(dtype), false);
  }
}

ByteVector text_type() {
  constexpr std::uint32_t kString = 1;
  return record(type_head(TypeClass::variable, 1, kString | std::uint32_t{kUtf8} << 8, 16),
                integer_type(1, false));
}

ByteVector link_info(std::uint64_t links) {
  constexpr std::uint8_t kInOrder = 1;  // links know in which order they were made
  // No heap and no index: they are in the header.
  return record(u8(0), kInOrder, links, kNowhere, kNowhere);
}

ByteVector group_info() { return ByteVector(2); }

ByteVector link(std::uint64_t number, std::string_view name, std::uint64_t header_at) {
  constexpr std::uint8_t kLengthOf4 = 2, kOrder = 4, kCharset = 16;
  return record(u8(1), u8(kLengthOf4 | kOrder | kCharset), number, kUtf8, u32(name.size()), name,
                header_at);
}

ByteVector fill_value() {
  constexpr std::uint8_t kEarly = 1, kNever = 1 << 2;
  return record(u8(3), u8(kEarly | kNever));
}

ByteVector contiguous_layout(std::uint64_t at, std::uint64_t bytes) {
  return record(u8(3), u8(1), at, bytes);
}

ByteVector chunked_layout(std::uint64_t tree_at, const Shape& chunk, std::uint32_t elem_bytes) {
  ByteVector out = record(u8(3), u8(2), u8(chunk.size() + 1), tree_at);
  for (const std::uint64_t extent : chunk) put(out, u32(extent));
  put(out, elem_bytes);
  return out;
}

ByteVector zstd_filter(int level) {
  constexpr std::uint8_t kFilters = 1;
  constexpr std::uint16_t kNoName = 0, kEveryChunk = 0, kSettings = 1;
  return record(u8(2), kFilters, u16(kZstd), kNoName, kEveryChunk, kSettings,
                static_cast<std::uint32_t>(level));
}

ByteVector virtual_layout(std::uint64_t heap_at, std::uint32_t index) {
  return record(u8(4), u8(3), heap_at, index);
}

ByteVector mappings_block(const std::vector<Mapping>& mappings) {
  ByteVector out = record(u8(0), std::uint64_t{mappings.size()});
  for (const Mapping& mapping : mappings) {
    put(out, zero_ended(escaped(mapping.file)), zero_ended(escaped(mapping.dataset)));
    append_selection(out, mapping.source);
    append_selection(out, mapping.target);
  }
  put(out, lookup3(out));
  return out;
}

ByteVector attribute_message(std::string_view name, ByteView type, ByteView space, ByteView data) {
  return record(u8(3), u8(0), u16(name.size() + 1), u16(type.size()), u16(space.size()), kUtf8,
                zero_ended(name), type, space, data);
}

}  // namespace ebb::formats::hdf5
