// DType: element types with frozen on-disk numbers. Names are the ones safetensors uses.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace ebb::formats {

enum class DType : std::uint8_t {  // numbers are stored in our own formats: never renumber
  f32 = 1,
  bf16 = 2,
  f16 = 3,
  f64 = 4,
  i64 = 5,
  i32 = 6,
  i16 = 7,
  i8 = 8,
  u64 = 9,
  u32 = 10,
  u16 = 11,
  u8 = 12,
  boolean = 13,
  c64 = 14,
  c128 = 15,
  f8_e4m3 = 16,
  f8_e5m2 = 17,
  f8_e4m3fnuz = 18,
  f8_e5m2fnuz = 19,
  f8_e8m0 = 20,
  f4 = 21,
  f6_e2m3 = 22,
  f6_e3m2 = 23,
};

// 4 and 6 for the sub-byte types, a multiple of 8 otherwise.
std::uint32_t bits_of(DType dtype);

// Bytes of `elems` packed elements, the last byte perhaps part used; nullopt when more than 2^64.
std::optional<std::uint64_t> packed_bytes(DType dtype, std::uint64_t elems);

// REQUIRES: not a sub-byte type.
std::uint32_t bytes_of(DType dtype);

std::string_view name_of(DType dtype);                     // "F32", "BF16", "BOOL", ...
std::optional<DType> dtype_named(std::string_view name);   // inverse of name_of
std::optional<DType> dtype_numbered(std::uint8_t number);  // from a file

}  // namespace ebb::formats

namespace ebb {
using formats::DType;
}  // namespace ebb
