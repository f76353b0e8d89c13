#include <immintrin.h>

#include "ebb/libmuon/kernels/product_loops.h"

namespace ebb::libmuon {
namespace {

// vdpbf16ps: both products of a pair, exact, into sums of fp32, rounded to nearest; denormals are
// zero.
struct Avx512Bf16 {
  typedef float Vector __attribute__((vector_size(64)));
  typedef std::uint32_t Bits __attribute__((vector_size(64)));
  static constexpr u64 kWidth = 16, kRows = 8, kUnit = 2;
  static Vector spread(float pair) { return _mm512_set1_ps(pair); }
  static Vector multiply_add(Vector a, Vector b, Vector sum) {
    return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
  }
};

}  // namespace

constinit const Products kBf16Products = products_with<Avx512Bf16, Operands::bf16>("avx512_bf16");

}  // namespace ebb::libmuon
