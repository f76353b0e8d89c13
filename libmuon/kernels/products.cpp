#include "ebb/libmuon/kernels/products.h"

#include <algorithm>
#include <atomic>

#include "ebb/formats/core/units.h"

namespace ebb::libmuon {
namespace {

// What serves products on a set, by operands. Shapes make no difference: each of these was the
// fastest that was tried for small squares, for panels of wide matrices, and for large ones
// (docs/performance.md).
struct Row {
  Isa isa;
  const Products* fp32;
  const Products* tf32;
  const Products* bf16;  // null: as fp32, rounded

  const Products* of(Operands operands) const {
    if (operands == Operands::bf16) return bf16;
    return operands == Operands::tf32 ? tf32 : fp32;
  }
};
constexpr Row kTable[] = {
    {Isa::plain, &kPlainProducts, &kPlainTf32Products, nullptr},
#ifdef EBB_X86_PRODUCTS
    {Isa::avx2, &kAvx2Products, &kAvx2Tf32Products, nullptr},
    {Isa::avx512, &kAvx512Products, &kAvx512Tf32Products, nullptr},
    {Isa::avx512_bf16, &kAvx512Products, &kAvx512Tf32Products, &kBf16Products},
#endif
};

std::atomic<Isa> most = Isa::avx512_bf16;

bool here(Isa isa) {
#ifdef EBB_X86_PRODUCTS
  switch (isa) {
    case Isa::plain:
      return true;
    case Isa::avx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    case Isa::avx512:
      return here(Isa::avx2) && __builtin_cpu_supports("avx512f") &&
             __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
             __builtin_cpu_supports("avx512vl");
    case Isa::avx512_bf16:
      return here(Isa::avx512) && __builtin_cpu_supports("avx512bf16");
  }
#endif
  return isa == Isa::plain;
}

}  // namespace

Isa best_isa() {
  Isa best = Isa::plain;
  for (const Row& row : kTable)
    if (row.isa <= most && here(row.isa)) best = row.isa;
  return best;
}

void use_at_most(Isa isa) { most = isa; }

const Products* products(Isa isa, Operands operands) {
  for (const Row& row : kTable)
    if (row.isa == isa && here(isa)) return row.of(operands);
  return nullptr;
}

std::uint64_t packed_elems(std::uint64_t n, std::uint64_t k) {
  constexpr std::uint64_t kWidest = 16;  // a strip is whole vectors
  return formats::align_up(n, kWidest) * k;
}

}  // namespace ebb::libmuon
