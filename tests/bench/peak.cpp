#include "tests/bench/peak.h"

#include <chrono>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace ebb::bench {
namespace {

using libmuon::Isa;
using libmuon::Operands;

constexpr int kChains = 16;       // that do not wait for one another
constexpr int kRounds = 1 << 18;  // of all of them

#if defined(__x86_64__)
// The compiler must not see that nothing changes.
#define EBB_KEEP(value) asm volatile("" : "+v"(value))

[[gnu::target("avx2,fma")]] double avx2_flops() {
  __m256 sums[kChains] = {}, one = _mm256_set1_ps(1);
  for (int round = 0; round < kRounds; ++round)
#pragma GCC unroll 16
    for (int i = 0; i < kChains; ++i) {
      sums[i] = _mm256_fmadd_ps(one, one, sums[i]);
      EBB_KEEP(sums[i]);
    }
  return 2.0 * 8;
}
[[gnu::target("avx512f")]] double avx512_flops() {
  __m512 sums[kChains] = {}, one = _mm512_set1_ps(1);
  for (int round = 0; round < kRounds; ++round)
#pragma GCC unroll 16
    for (int i = 0; i < kChains; ++i) {
      sums[i] = _mm512_fmadd_ps(one, one, sums[i]);
      EBB_KEEP(sums[i]);
    }
  return 2.0 * 16;
}
[[gnu::target("avx512f,avx512bf16")]] double bf16_flops() {
  __m512 sums[kChains] = {};
  const auto one = reinterpret_cast<__m512bh>(_mm512_set1_ps(1));
  for (int round = 0; round < kRounds; ++round)
#pragma GCC unroll 16
    for (int i = 0; i < kChains; ++i) {
      sums[i] = _mm512_dpbf16_ps(sums[i], one, one);
      EBB_KEEP(sums[i]);
    }
  return 2.0 * 32;
}

using Loop = double (*)();
Loop loop_of(Operands operands) {
  const Isa isa = libmuon::best_isa();
  if (operands == Operands::bf16) return isa == Isa::avx512_bf16 ? bf16_flops : nullptr;
  if (isa >= Isa::avx512) return avx512_flops;
  return isa == Isa::avx2 ? avx2_flops : nullptr;
}
#else
using Loop = double (*)();
Loop loop_of(Operands) { return nullptr; }
#endif

}  // namespace

double peak_rate(Operands operands, std::uint32_t cores) {
  const Loop loop = loop_of(operands);
  if (loop == nullptr) return 0;
  const auto begin = std::chrono::steady_clock::now();
  std::vector<std::jthread> others;
  for (std::uint32_t core = 1; core < cores; ++core)
    others.emplace_back([loop] { static_cast<void>(loop()); });
  const double flops = loop() * kChains * kRounds * cores;
  others.clear();
  return flops / std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace ebb::bench
