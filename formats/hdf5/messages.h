// Pieces of HDF5 object headers as bytes. Source: HDF5 File Format Specification 3.0, "Disk Format:
// Level 2". Internal to formats/hdf5.
#pragma once

#include <concepts>
#include <cstdint>
#include <string_view>
#include <vector>

#include "ebb/formats/core/bytes.h"
#include "ebb/formats/core/dtype.h"
#include "ebb/formats/hdf5/description.h"
#include "ebb/formats/layout/box.h"

namespace ebb::formats::hdf5 {

enum class MessageType : std::uint8_t {
  dataspace = 1,
  link_info = 2,
  datatype = 3,
  fill_value = 5,
  link = 6,
  layout = 8,
  group_info = 10,
  filters = 11,
  attribute = 12,
};

// Appends the fields: numbers in as many bytes as their type has, bytes and text as they are.
template <typename... Fields>
void put(ByteVector& out, const Fields&... fields) {
  const auto one = [&out](const auto& field) {
    if constexpr (std::integral<std::remove_cvref_t<decltype(field)>>)
      append_le(out, field);
    else if constexpr (std::convertible_to<decltype(field), std::string_view>)
      append_text(out, field);
    else
      append_bytes(out, field);
  };
  (one(fields), ...);
}
template <typename... Fields>
ByteVector record(const Fields&... fields) {
  ByteVector out;
  put(out, fields...);
  return out;
}
// Numbers of these widths; what does not fit was refused before.
constexpr std::uint8_t u8(std::uint64_t number) { return static_cast<std::uint8_t>(number); }
constexpr std::uint16_t u16(std::uint64_t number) { return static_cast<std::uint16_t>(number); }
constexpr std::uint32_t u32(std::uint64_t number) { return static_cast<std::uint32_t>(number); }

// Bob Jenkins' lookup3, hashlittle() from 0: the checksum of metadata.
std::uint32_t lookup3(ByteView bytes);

ByteVector dataspace(const Shape& shape);  // scalar without dimensions
// REQUIRES: float_bits_of() knows it, or it is a number of whole bytes.
ByteVector datatype(DType dtype);
ByteVector text_type();  // of variable length, UTF-8

ByteVector link_info(std::uint64_t links);
ByteVector group_info();
ByteVector link(std::uint64_t number, std::string_view name, std::uint64_t header_at);

ByteVector fill_value();  // storage at once, filled with nothing
ByteVector contiguous_layout(std::uint64_t at, std::uint64_t bytes);
// Of chunks that a version 1 B-tree at `tree_at` finds (chunk_tree.h).
ByteVector chunked_layout(std::uint64_t tree_at, const Shape& chunk, std::uint32_t elem_bytes);
ByteVector zstd_filter(int level);  // the registered one, 32015
ByteVector virtual_layout(std::uint64_t heap_at, std::uint32_t index);
// What the heap holds for a virtual dataset.
ByteVector mappings_block(const std::vector<Mapping>& mappings);

ByteVector attribute_message(std::string_view name, ByteView type, ByteView space, ByteView data);

}  // namespace ebb::formats::hdf5
