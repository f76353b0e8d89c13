#include "ebb/formats/core/dtype.h"

#include <array>

#include "ebb/formats/core/check.h"
#include "ebb/formats/core/units.h"

namespace ebb::formats {
namespace {

struct Row {
  DType dtype;
  std::uint32_t bits;
  std::string_view name;
};

constexpr std::array kRows = {
    Row{DType::f32, 32, "F32"},
    Row{DType::bf16, 16, "BF16"},
    Row{DType::f16, 16, "F16"},
    Row{DType::f64, 64, "F64"},
    Row{DType::i64, 64, "I64"},
    Row{DType::i32, 32, "I32"},
    Row{DType::i16, 16, "I16"},
    Row{DType::i8, 8, "I8"},
    Row{DType::u64, 64, "U64"},
    Row{DType::u32, 32, "U32"},
    Row{DType::u16, 16, "U16"},
    Row{DType::u8, 8, "U8"},
    Row{DType::boolean, 8, "BOOL"},
    Row{DType::c64, 64, "C64"},
    Row{DType::c128, 128, "C128"},
    Row{DType::f8_e4m3, 8, "F8_E4M3"},
    Row{DType::f8_e5m2, 8, "F8_E5M2"},
    Row{DType::f8_e4m3fnuz, 8, "F8_E4M3FNUZ"},
    Row{DType::f8_e5m2fnuz, 8, "F8_E5M2FNUZ"},
    Row{DType::f8_e8m0, 8, "F8_E8M0"},
    Row{DType::f4, 4, "F4"},
    Row{DType::f6_e2m3, 6, "F6_E2M3"},
    Row{DType::f6_e3m2, 6, "F6_E3M2"},
};

const Row& row_of(DType dtype) {
  for (const Row& row : kRows)
    if (row.dtype == dtype) return row;
  check_failed("a known DType", __FILE__, __LINE__);
}

}  // namespace

std::uint32_t bits_of(DType dtype) { return row_of(dtype).bits; }

std::optional<std::uint64_t> packed_bytes(DType dtype, std::uint64_t elems) {
  const std::uint64_t bits = bits_of(dtype);
  const auto whole_eights = checked_mul(elems / 8, bits);
  if (!whole_eights) return std::nullopt;
  return checked_add(*whole_eights, div_ceil(elems % 8 * bits, 8));
}

std::uint32_t bytes_of(DType dtype) {
  EBB_CHECK(bits_of(dtype) % 8 == 0);
  return bits_of(dtype) / 8;
}

std::string_view name_of(DType dtype) {
  for (const Row& row : kRows)
    if (row.dtype == dtype) return row.name;
  return "no dtype";  // what a caller made of a number, in the words that refuse it
}

std::optional<DType> dtype_named(std::string_view name) {
  for (const Row& row : kRows)
    if (row.name == name) return row.dtype;
  return std::nullopt;
}

std::optional<DType> dtype_numbered(std::uint8_t number) {
  for (const Row& row : kRows)
    if (static_cast<std::uint8_t>(row.dtype) == number) return row.dtype;
  return std::nullopt;
}

}  // namespace ebb::formats
