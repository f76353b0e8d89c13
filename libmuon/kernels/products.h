// Products of matrices, C = A B, row-major. B is packed first, slice by slice; then rows of C are
// made, as many at a time as one likes. An element of C is a sum over k in one fixed order (blocks
// of a fixed depth, ascending, each a chain that begins at zero), so its bits depend on values and
// k alone: not on threads, addresses, leading dimensions or where C is cut.
//
// Which functions serve a processor is a table (products.cpp). All with fused multiply-add give the
// same bits for fp32. Single-threaded inside; any number of threads, on parts of their own.
#pragma once

#include <cstdint>

namespace ebb::libmuon {

enum class Transpose : std::uint8_t { no, yes };
// Borrowed. `ld`: elements from a stored row to the next.
struct MatrixView {
  const float* data = nullptr;
  std::uint64_t ld = 0;
  Transpose transpose = Transpose::no;
};

// What operands are multiplied as: as they are; as bf16, where each must be one of its numbers; or
// as tf32, to which each is rounded as it is packed. Products of the latter two are exact, sums
// fp32's.
enum class Operands : std::uint8_t { fp32, bf16, tf32 };

// Where a sum over k may be cut with the bits of the whole: at multiples of so many.
inline constexpr std::uint64_t kSumUnit = 512;

struct Products {
  const char* name;  // of the instruction set
  Operands operands;
  std::uint32_t slice;  // rows of B that are packed at a time

  // Slice `number` of B (k x n) into its place in `packed`.
  void (*pack)(const MatrixView& b, std::uint64_t n, std::uint64_t k, std::uint64_t number,
               float* packed);
  // C's first n columns of so many rows of A; `packed` holds a B of `packed_cols` columns. `adds`:
  // to what C holds, which is the sum over earlier k; their number is a multiple of kSumUnit.
  void (*multiply)(std::uint64_t rows, std::uint64_t n, std::uint64_t k, const MatrixView& a,
                   const float* packed, std::uint64_t packed_cols, float* c, std::uint64_t ldc,
                   bool adds);

  std::uint64_t slices(std::uint64_t k) const { return (k + slice - 1) / slice; }
};

// Instruction sets, each including those before it.
enum class Isa : std::uint8_t { plain, avx2, avx512, avx512_bf16 };

// The best of this processor, and what serves a set; null where it has not what that takes.
Isa best_isa();
// From now on no better one is used: this processor as a lesser one. Any thread, before all others
// ask.
void use_at_most(Isa isa);
const Products* products(Isa isa, Operands operands);

// Numbers of 32 bits that a packed B takes at most, of whatever set.
std::uint64_t packed_elems(std::uint64_t n, std::uint64_t k);

// Of the sets; products.cpp has them in one table.
extern const Products kPlainProducts, kAvx2Products, kAvx512Products, kBf16Products;
extern const Products kPlainTf32Products, kAvx2Tf32Products, kAvx512Tf32Products;

}  // namespace ebb::libmuon
