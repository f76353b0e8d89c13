#include <immintrin.h>

#include "ebb/libmuon/kernels/product_loops.h"

namespace ebb::libmuon {
namespace {

struct Avx512 {
  typedef float Vector __attribute__((vector_size(64)));
  typedef std::uint32_t Bits __attribute__((vector_size(64)));
  static constexpr u64 kWidth = 16, kRows = 8, kUnit = 1;
  static Vector spread(float number) { return _mm512_set1_ps(number); }
  static Vector multiply_add(Vector a, Vector b, Vector sum) { return _mm512_fmadd_ps(a, b, sum); }
};

}  // namespace

constinit const Products kAvx512Products = products_with<Avx512, Operands::fp32>("avx512");
constinit const Products kAvx512Tf32Products = products_with<Avx512, Operands::tf32>("avx512");

}  // namespace ebb::libmuon
