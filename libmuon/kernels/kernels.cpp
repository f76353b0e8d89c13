#include "ebb/libmuon/kernels/kernels.h"

namespace ebb::libmuon {

// The whole of B is packed at once.
void gemm(std::uint64_t m, std::uint64_t n, std::uint64_t k, float alpha, MatrixView a,
          MatrixView b, float beta, float* c, std::uint64_t ldc) {
  if (m == 0 || n == 0) return;
  const Products& with = *products(best_isa(), Operands::fp32);
  std::vector<float> packed(packed_elems(n, k)), product(m * n);
  for (std::uint64_t slice = 0; slice < with.slices(k); ++slice)
    with.pack(b, n, k, slice, packed.data());
  with.multiply(m, n, k, a, packed.data(), n, product.data(), n, false);
  for (std::uint64_t i = 0; i < m; ++i)
    for (std::uint64_t j = 0; j < n; ++j) {
      const float made = alpha * product[i * n + j];
      c[i * ldc + j] = beta == 0 ? made : beta * c[i * ldc + j] + made;
    }
}

bool has_real_bf16() { return products(best_isa(), Operands::bf16) != nullptr; }

std::string kernel_fingerprint(std::optional<Bf16> bf16) {
  const std::string_view products = best_isa() == Isa::plain ? "plain" : "fma";
  return compose("products={} bf16={} elementwise=" EBB_ELEMENTWISE, products,
                 bf16 ? name_of(*bf16) : "none");
}

std::optional<Bf16> bf16_in(std::string_view fingerprint) {
  for (const Bf16 bf16 : {Bf16::emulated, Bf16::real})
    if (fingerprint.find(compose(" bf16={} ", name_of(bf16))) != std::string_view::npos)
      return bf16;
  return std::nullopt;
}

}  // namespace ebb::libmuon
