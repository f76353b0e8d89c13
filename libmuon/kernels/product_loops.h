// The loops of products.h over vectors of one instruction set. One source file per set includes
// this and is compiled for it: all of it stays inside that file, or a linker could take code of one
// set for another's, and nothing of the standard library is called.
//
// A strip of B lies as [k][columns of the strip], the last one only as wide as whole vectors need;
// of A, 16 or fewer rows at a time, as [k][vector]. What is missing at the edges is zero.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "ebb/libmuon/kernels/products.h"

namespace ebb::libmuon {
namespace {

using u64 = std::uint64_t;

constexpr u64 kDepth = 256;      // units of k that are summed before they are added to C
constexpr u64 kBlockRows = 128;  // of A, packed at a time: 128 KiB
constexpr u64 kVectors = 3;      // of a strip
constexpr u64 kSliceUnits = 64;  // of k: rows of B whose pages are looked up once for all strips

constexpr u64 least(u64 a, u64 b) { return a < b ? a : b; }

// `Isa`: Vector of kWidth numbers, Bits of as many; kUnit, how many k make a unit: 1, or 2 as bf16;
// kRows, of C that are summed at a time, a divisor of kWidth; spread(number) to all places;
// multiply_add(a, b, sum).
template <typename Isa, Operands kOperands>
class Loops {
 public:
  static constexpr u64 kSlice = kSliceUnits * Isa::kUnit;

  static void pack(const MatrixView& b, u64 n, u64 k, u64 number, float* packed) {
    const u64 p = number * kSlice, depth = least(kSlice, k - p);
    for (u64 first = 0; first < n; first += kStrip) {
      const u64 width = width_of(n, first);
      float* const to = packed + first * units_of(k) + p / kUnit * width;
      for (u64 column = 0; column < width; column += kWidth)
        pack_part(b, first + column, least(kWidth, n - first - column), p, depth,
                  {to + column, width});
    }
  }

  static void multiply(u64 rows, u64 n, u64 k, const MatrixView& a, const float* packed,
                       u64 packed_cols, float* c, u64 ldc, bool adds) {
    static_assert(kSumUnit % (kDepth * kUnit) == 0);
    alignas(64) float left[kBlockRows * kDepth];
    const MatrixView lines = {a.data, a.ld,
                              a.transpose == Transpose::yes ? Transpose::no : Transpose::yes};
    for (u64 row = 0; row < rows; row += kBlockRows) {
      const u64 high = least(kBlockRows, rows - row);
      for (u64 p = 0; p < k; p += kDepth * kUnit) {
        const u64 depth = least(kDepth * kUnit, k - p);
        for (u64 i = 0; i < high; i += kWidth)
          pack_part(lines, row + i, least(kWidth, high - i), p, depth, {left + i * kDepth, kWidth});
        for (u64 column = 0; column < n; column += kStrip) {
          const u64 width = width_of(packed_cols, column);
          const float* const right = packed + column * units_of(k) + p / kUnit * width;
          block({high, least(kStrip, n - column), units_of(depth), width}, left, right,
                c + row * ldc + column, ldc, p == 0 && !adds);
        }
      }
    }
  }

 private:
  static constexpr u64 kStrip = kVectors * Isa::kWidth;
  using Vector = typename Isa::Vector;
  using Bits = typename Isa::Bits;
  static constexpr u64 kWidth = Isa::kWidth, kRows = Isa::kRows, kUnit = Isa::kUnit;

  static u64 units_of(u64 k) { return (k + kUnit - 1) / kUnit; }
  // Of the strip that begins at a column.
  static u64 width_of(u64 n, u64 column) {
    return least(kStrip, (n - column + kWidth - 1) / kWidth * kWidth);
  }

  static Vector load(const float* from) {
    Vector vector;
    __builtin_memcpy(&vector, from, sizeof(vector));
    return vector;
  }
  static void store(const Vector& vector, float* to) {
    __builtin_memcpy(to, &vector, sizeof(vector));
  }
  // The first `count` numbers, then zeros.
  static Vector load(const float* from, u64 count) {
    if (count >= kWidth) return load(from);
    Vector vector{};
    if (count != 0) __builtin_memcpy(&vector, from, count * sizeof(float));
    return vector;
  }

  template <std::size_t... kAt>
  static Vector low(const Vector& a, const Vector& b, std::index_sequence<kAt...>) {
    return __builtin_shufflevector(a, b, (kAt / 2 + kAt % 2 * kWidth)...);
  }
  template <std::size_t... kAt>
  static Vector high(const Vector& a, const Vector& b, std::index_sequence<kAt...>) {
    return __builtin_shufflevector(a, b, (kWidth / 2 + kAt / 2 + kAt % 2 * kWidth)...);
  }
  // Of a and b in a row, every second number from `kFirst` on.
  template <u64 kFirst, std::size_t... kAt>
  static Vector second(const Vector& a, const Vector& b, std::index_sequence<kAt...>) {
    return __builtin_shufflevector(a, b, (2 * kAt + kFirst)...);
  }
  static constexpr auto kAll = std::make_index_sequence<kWidth>();

  // Rows become columns: interleaving the first half with the second, as often as halving goes.
  static void turn(Vector (&rows)[kWidth]) {
    for (u64 half = 1; half < kWidth; half *= 2) {
      Vector next[kWidth];
      for (u64 i = 0; i < kWidth / 2; ++i) {
        next[2 * i] = low(rows[i], rows[i + kWidth / 2], kAll);
        next[2 * i + 1] = high(rows[i], rows[i + kWidth / 2], kAll);
      }
      for (u64 i = 0; i < kWidth; ++i) rows[i] = next[i];
    }
  }

  // bf16 is the high half of fp32: of a number, and of the next one beside it.
  static Vector pairs(const Vector& even, const Vector& odd) {
    return reinterpret_cast<Vector>((reinterpret_cast<Bits>(even) >> 16) |
                                    (reinterpret_cast<Bits>(odd) & 0xffff0000u));
  }
  // As numbers enter a product. tf32: to nearest, ties to even (rounding.h); NaN stays as it is.
  static Vector entering(const Vector& numbers) {
    if constexpr (kOperands == Operands::tf32) {
      const auto bits = reinterpret_cast<Bits>(numbers);
      const auto none = reinterpret_cast<Bits>((bits & 0x7fffffffu) > 0x7f800000u);
      const Bits near = (bits + 0xfffu + (bits >> 13 & 1u)) & 0xffffe000u;
      return reinterpret_cast<Vector>((none & bits) | (~none & near));
    } else {
      return numbers;
    }
  }
  // kWidth units of numbers in a row.
  static Vector units(const float* from, u64 count) {
    const Vector a = entering(load(from, count));
    if constexpr (kUnit == 2) {
      const Vector b = count > kWidth ? load(from + kWidth, count - kWidth) : Vector{};
      return pairs(second<0>(a, b, kAll), second<1>(a, b, kAll));
    } else {
      return a;
    }
  }

  struct Place {
    float* at;
    u64 width;  // from one unit of k to the next
  };
  // `count` columns of a matrix, at most kWidth, from row p on, k of them.
  static void pack_part(const MatrixView& b, u64 column, u64 count, u64 p, u64 k, Place to) {
    if (b.transpose == Transpose::yes)
      pack_lines(b.data + column * b.ld + p, b.ld, count, k, to);
    else
      pack_columns(b.data + p * b.ld + column, b.ld, count, k, to);
  }
  // Columns that lie as lines.
  static void pack_lines(const float* from, u64 ld, u64 count, u64 k, Place to) {
    for (u64 p = 0; p < k; p += kWidth * kUnit) {
      Vector rows[kWidth];
      for (u64 i = 0; i < kWidth; ++i)
        rows[i] = i < count ? units(from + i * ld + p, k - p) : Vector{};
      turn(rows);
      const u64 whole = least(kWidth, units_of(k - p));
      for (u64 i = 0; i < whole; ++i) store(rows[i], to.at + (p / kUnit + i) * to.width);
    }
  }
  static void pack_columns(const float* from, u64 ld, u64 count, u64 k, Place to) {
    for (u64 p = 0; p < k; p += kUnit, to.at += to.width) {
      Vector line = entering(load(from + p * ld, count));
      if constexpr (kUnit == 2)
        line = pairs(line, p + 1 < k ? load(from + (p + 1) * ld, count) : Vector{});
      store(line, to.at);
    }
  }

  struct Size {
    u64 rows, cols, depth, width;  // of C; units of k; numbers of a unit of the strip
  };
  // One strip's part of C; `fresh`: its first.
  static void block(const Size& size, const float* left, const float* right, float* c, u64 ldc,
                    bool fresh) {
    for (u64 i = 0; i < size.rows; i += kRows) {
      const float* const rows = left + i / kWidth * kWidth * kDepth + i % kWidth;
      const Size here = {least(kRows, size.rows - i), size.cols, size.depth, size.width};
      if (size.width == kStrip)
        tile<kVectors>(here, rows, right, c + i * ldc, ldc, fresh);
      else if (size.width == 2 * kWidth)
        tile<2>(here, rows, right, c + i * ldc, ldc, fresh);
      else
        tile<1>(here, rows, right, c + i * ldc, ldc, fresh);
    }
  }
  template <u64 kWide>
  static void tile(const Size& size, const float* a, const float* b, float* c, u64 ldc,
                   bool fresh) {
    Vector sums[kRows][kWide] = {};
    for (u64 p = 0; p < size.depth; ++p, a += kWidth, b += kWide * kWidth) {
      Vector right[kWide];
      for (u64 v = 0; v < kWide; ++v) right[v] = load(b + v * kWidth);
      for (u64 i = 0; i < kRows; ++i) {
        const Vector one = Isa::spread(a[i]);
        for (u64 v = 0; v < kWide; ++v) sums[i][v] = Isa::multiply_add(one, right[v], sums[i][v]);
      }
    }
    for (u64 i = 0; i < size.rows; ++i)
      for (u64 v = 0; v < kWide && v * kWidth < size.cols; ++v) {
        float* const to = c + i * ldc + v * kWidth;
        const u64 count = least(kWidth, size.cols - v * kWidth);
        const Vector sum = fresh ? sums[i][v] : load(to, count) + sums[i][v];
        if (count == kWidth)
          store(sum, to);
        else
          __builtin_memcpy(to, &sum, count * sizeof(float));
      }
  }
};

template <typename Isa, Operands kOperands>
constexpr Products products_with(const char* name) {
  using Made = Loops<Isa, kOperands>;
  return {.name = name,
          .operands = kOperands,
          .slice = Made::kSlice,
          .pack = Made::pack,
          .multiply = Made::multiply};
}

}  // namespace
}  // namespace ebb::libmuon
