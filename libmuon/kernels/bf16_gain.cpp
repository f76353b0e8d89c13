#include <algorithm>
#include <chrono>
#include <vector>

#include "ebb/libmuon/kernels/kernels.h"

namespace ebb::libmuon {
namespace {

// A panel of a matrix of 512 rows: it stays in the cache, as panels' operands do.
constexpr std::uint64_t kRows = 64, kSide = 512;
constexpr std::chrono::milliseconds kTime{20};
// Below, rounding what is multiplied costs more than multiplying it faster saves.
constexpr double kPays = 1.3;

using Clock = std::chrono::steady_clock;

struct Measured {
  const Products& products;
  std::vector<float> packed = std::vector<float>(packed_elems(kSide, kSide));
  Clock::duration best = Clock::duration::max();
};

}  // namespace

// The best of turns: what another program takes away, it takes from some of them.
Bf16Choice measure_bf16() {
  if (!has_real_bf16()) return {};
  const std::vector<float> ones(kSide * kSide, 1.0f);
  std::vector<float> c(kRows * kSide);
  Measured both[] = {{*products(best_isa(), Operands::fp32)},
                     {*products(best_isa(), Operands::bf16)}};
  for (auto& [kernels, packed, best] : both)
    for (std::uint64_t slice = 0; slice < kernels.slices(kSide); ++slice)
      kernels.pack({ones.data(), kSide}, kSide, kSide, slice, packed.data());
  const auto begin = Clock::now();
  do {
    for (auto& [kernels, packed, best] : both) {
      const auto start = Clock::now();
      kernels.multiply(kRows, kSide, kSide, {ones.data(), kSide}, packed.data(), kSide, c.data(),
                       kSide, false);
      best = std::min(best, Clock::now() - start);
    }
  } while (Clock::now() - begin < kTime);
  const auto nanoseconds = [](Clock::duration time) {
    return std::max(1.0, std::chrono::duration<double, std::nano>(time).count());
  };
  const double gain = nanoseconds(both[0].best) / nanoseconds(both[1].best);
  return {gain >= kPays ? Bf16::real : Bf16::emulated, gain};
}

}  // namespace ebb::libmuon
