#include <immintrin.h>

#include "ebb/libmuon/kernels/product_loops.h"

namespace ebb::libmuon {
namespace {

struct Avx2 {
  typedef float Vector __attribute__((vector_size(32)));
  typedef std::uint32_t Bits __attribute__((vector_size(32)));
  static constexpr u64 kWidth = 8, kRows = 4, kUnit = 1;
  static Vector spread(float number) { return _mm256_set1_ps(number); }
  static Vector multiply_add(Vector a, Vector b, Vector sum) { return _mm256_fmadd_ps(a, b, sum); }
};

}  // namespace

constinit const Products kAvx2Products = products_with<Avx2, Operands::fp32>("avx2");
constinit const Products kAvx2Tf32Products = products_with<Avx2, Operands::tf32>("avx2");

}  // namespace ebb::libmuon
