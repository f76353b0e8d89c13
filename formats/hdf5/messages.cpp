#include "ebb/formats/hdf5/messages.h"

#include <bit>

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

void append_type_head(ByteVector& out, TypeClass kind, std::uint8_t version, std::uint32_t bits,
                      std::uint32_t bytes) {
  append_le(out, static_cast<std::uint8_t>(version << 4 | static_cast<std::uint8_t>(kind)));
  for (const unsigned shift : {0u, 8u, 16u})
    append_le(out, static_cast<std::uint8_t>(bits >> shift));
  append_le(out, bytes);
}

ByteVector integer_type(std::uint32_t bytes, bool is_signed) {
  ByteVector out;
  append_type_head(out, TypeClass::integer, 1, is_signed ? 8 : 0, bytes);
  append_le<std::uint16_t>(out, 0);  // first bit
  append_le(out, static_cast<std::uint16_t>(bytes * 8));
  return out;
}

ByteVector float_type(const FloatBits& bits) {
  ByteVector out;
  constexpr std::uint32_t kLeadingOneImplied = 2u << 4;
  const std::uint32_t sign_at = bits.bytes * 8 - 1;
  append_type_head(out, TypeClass::floating, 1, kLeadingOneImplied | sign_at << 8, bits.bytes);
  append_le<std::uint16_t>(out, 0);
  append_le(out, static_cast<std::uint16_t>(bits.bytes * 8));
  append_le(out, static_cast<std::uint8_t>(bits.mantissa_bits));
  append_le(out, static_cast<std::uint8_t>(bits.exponent_bits));
  append_le<std::uint8_t>(out, 0);
  append_le(out, static_cast<std::uint8_t>(bits.mantissa_bits));
  append_le(out, static_cast<std::uint32_t>(bits.bias));
  return out;
}

void append_name(ByteVector& out, std::string_view name) {
  append_text(out, name);
  append_le<std::uint8_t>(out, 0);
}

// numpy's: the floats "r" and "i".
ByteVector complex_type(DType part) {
  const FloatBits bits = float_bits_of(part).value();
  ByteVector out;
  append_type_head(out, TypeClass::compound, 3, 2, bits.bytes * 2);
  for (const auto& [name, at] : {std::pair("r", 0u), std::pair("i", bits.bytes)}) {
    append_name(out, name);
    append_le(out, static_cast<std::uint8_t>(at));
    append_bytes(out, float_type(bits));
  }
  return out;
}

// h5py's: an enum over int8.
ByteVector boolean_type() {
  ByteVector out;
  append_type_head(out, TypeClass::enumeration, 3, 2, 1);
  append_bytes(out, integer_type(1, true));
  append_name(out, "FALSE");
  append_name(out, "TRUE");
  append_le<std::uint8_t>(out, 0);
  append_le<std::uint8_t>(out, 1);
  return out;
}

// Numbers of version 2's regular selections take 8 bytes, so any extent fits.
void append_selection(ByteVector& out, const Selection& selection) {
  constexpr std::uint32_t kHyperslab = 2, kAll = 3;
  if (selection.kind == Selection::Kind::everything) {
    for (const std::uint32_t word : {kAll, 1u, 0u, 0u}) append_le(out, word);
    return;
  }
  const auto dims = static_cast<std::uint32_t>(selection.start.size());
  append_le(out, kHyperslab);
  append_le<std::uint32_t>(out, 2);
  append_le<std::uint8_t>(out, 1);  // regular
  append_le<std::uint32_t>(out, 4 + dims * 32);
  append_le(out, dims);
  for (std::uint32_t d = 0; d < dims; ++d)
    for (const auto* numbers :
         {&selection.start, &selection.stride, &selection.count, &selection.block})
      append_le(out, (*numbers)[d]);
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

ByteVector dataspace(const Shape& shape) {
  ByteVector out;
  append_le<std::uint8_t>(out, 2);  // version
  append_le(out, static_cast<std::uint8_t>(shape.size()));
  append_le<std::uint8_t>(out, 0);                                   // no largest extents
  append_le(out, static_cast<std::uint8_t>(shape.empty() ? 0 : 1));  // scalar or simple
  for (const std::uint64_t extent : shape) append_le(out, extent);
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
  ByteVector out;
  constexpr std::uint32_t kString = 1;
  append_type_head(out, TypeClass::variable, 1, kString | std::uint32_t{kUtf8} << 8, 16);
  append_bytes(out, integer_type(1, false));
  return out;
}

ByteVector link_info(std::uint64_t links) {
  ByteVector out;
  append_le<std::uint8_t>(out, 0);  // version
  append_le<std::uint8_t>(out, 1);  // links know in which order they were made
  append_le(out, links);
  append_le(out, kNowhere);  // no heap: they are in the header
  append_le(out, kNowhere);
  return out;
}

ByteVector group_info() { return ByteVector(2); }

ByteVector link(std::uint64_t number, std::string_view name, std::uint64_t header_at) {
  ByteVector out;
  constexpr std::uint8_t kLengthOf4 = 2, kOrder = 4, kCharset = 16;
  append_le<std::uint8_t>(out, 1);  // version
  append_le<std::uint8_t>(out, kLengthOf4 | kOrder | kCharset);
  append_le(out, number);
  append_le(out, kUtf8);
  append_le(out, static_cast<std::uint32_t>(name.size()));
  append_text(out, name);
  append_le(out, header_at);
  return out;
}

std::uint64_t link_size(std::string_view name) { return 1 + 1 + 8 + 1 + 4 + name.size() + 8; }

ByteVector fill_value() {
  ByteVector out;
  constexpr std::uint8_t kEarly = 1, kNever = 1 << 2;
  append_le<std::uint8_t>(out, 3);  // version
  append_le<std::uint8_t>(out, kEarly | kNever);
  return out;
}

ByteVector contiguous_layout(std::uint64_t at, std::uint64_t bytes) {
  ByteVector out;
  append_le<std::uint8_t>(out, 3);  // version
  append_le<std::uint8_t>(out, 1);
  append_le(out, at);
  append_le(out, bytes);
  return out;
}

ByteVector chunked_layout(std::uint64_t tree_at, const Shape& chunk, std::uint32_t elem_bytes) {
  ByteVector out;
  append_le<std::uint8_t>(out, 3);  // version
  append_le<std::uint8_t>(out, 2);
  append_le(out, static_cast<std::uint8_t>(chunk.size() + 1));
  append_le(out, tree_at);
  for (const std::uint64_t extent : chunk) append_le(out, static_cast<std::uint32_t>(extent));
  append_le(out, elem_bytes);
  return out;
}

ByteVector zstd_filter(int level) {
  ByteVector out;
  append_le<std::uint8_t>(out, 2);  // version
  append_le<std::uint8_t>(out, 1);  // filters
  append_le(out, static_cast<std::uint16_t>(kZstd));
  append_le<std::uint16_t>(out, 0);  // no name
  append_le<std::uint16_t>(out, 0);  // every chunk goes through it
  append_le<std::uint16_t>(out, 1);
  append_le(out, static_cast<std::uint32_t>(level));
  return out;
}

ByteVector virtual_layout(std::uint64_t heap_at, std::uint32_t index) {
  ByteVector out;
  append_le<std::uint8_t>(out, 4);  // version
  append_le<std::uint8_t>(out, 3);
  append_le(out, heap_at);
  append_le(out, index);
  return out;
}

ByteVector mappings_block(const std::vector<Mapping>& mappings) {
  ByteVector out;
  append_le<std::uint8_t>(out, 0);  // version
  append_le<std::uint64_t>(out, mappings.size());
  for (const Mapping& mapping : mappings) {
    append_name(out, escaped(mapping.file));
    append_name(out, escaped(mapping.dataset));
    append_selection(out, mapping.source);
    append_selection(out, mapping.target);
  }
  append_le(out, lookup3(out));
  return out;
}

ByteVector attribute_message(std::string_view name, ByteView type, ByteView space, ByteView data) {
  ByteVector out;
  append_le<std::uint8_t>(out, 3);  // version
  append_le<std::uint8_t>(out, 0);
  append_le(out, static_cast<std::uint16_t>(name.size() + 1));
  append_le(out, static_cast<std::uint16_t>(type.size()));
  append_le(out, static_cast<std::uint16_t>(space.size()));
  append_le(out, kUtf8);
  append_name(out, name);
  append_bytes(out, type);
  append_bytes(out, space);
  append_bytes(out, data);
  return out;
}

}  // namespace ebb::formats::hdf5
