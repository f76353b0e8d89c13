// The arithmetic of a step over spans. Bits depend on values and shapes only: never on where a
// range is cut, on threads or on addresses (docs/numerics.md).
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ebb/libmuon/kernels/bf16.h"
#include "ebb/libmuon/kernels/products.h"
#include "ebb/libmuon/spec/blocks.h"
#include "ebb/libswap/pool.h"

namespace ebb::libmuon {

// C (m x n) = alpha * op(A) * op(B) + beta * C, row-major, single-threaded inside, bits a function
// of the arguments' values and k only.
void gemm(std::uint64_t m, std::uint64_t n, std::uint64_t k, float alpha, MatrixView a,
          MatrixView b, float beta, float* c, std::uint64_t ldc);

// Whether this processor has real products of bf16.
bool has_real_bf16();
// What is faster here, measured in some 20 ms: real ones only where that pays.
struct Bf16Choice {
  Bf16 bf16 = Bf16::emulated;
  double gain = 0;  // of real products over those of fp32: times their rate; 0: there are none
};
Bf16Choice measure_bf16();

// "products=fma bf16=emulated elementwise=clones": recorded in the manifest. nullopt: nothing is
// multiplied as bf16.
std::string kernel_fingerprint(std::optional<Bf16> bf16);
std::optional<Bf16> bf16_in(std::string_view fingerprint);

// Where a matrix is said to hold what is not finite: its number is written there.
struct NonFinite {
  std::uint32_t* into = nullptr;  // null: nobody asks
  std::uint32_t number = 1;
  void tell() const {
    if (into != nullptr) std::atomic_ref(*into).store(number, std::memory_order_relaxed);
  }
};

// Newton-Schulz of a matrix of fp32 numbers that lies in `u`, row-major. In: U; out: O, in the same
// place. Panels fixed by shape (ADR). `scratch` is used by one call at a time and outlives it.
libswap::Chain newton_schulz(const MuonSpec& spec, Bf16 bf16, const Block& block,
                             std::span<float> u, std::span<std::byte> scratch,
                             NonFinite non_finite = {});
// The same with scratch of its own, and waits.
void orthogonalize(const MuonSpec& spec, Bf16 bf16, const Block& block, std::span<float> u,
                   libswap::Pool& pool);
std::uint64_t newton_schulz_scratch_bytes(const MuonSpec& spec, std::uint64_t rows,
                                          std::uint64_t cols);
// FLOPs of one call: the planner's cost.
double newton_schulz_flops(const MuonSpec& spec, std::uint64_t rows, std::uint64_t cols);

// O of a matrix, as newton_schulz() leaves it, normalised by its second moments (docs/numerics.md),
// which are updated first. `v`: one a row, from the block's first row to its last, or one a column.
void normalise(const MuonSpec& spec, const Block& block, std::span<float> o, std::span<float> v,
               libswap::Pool& pool, NonFinite non_finite = {});

// Momentum over a range: m <- ..., u <- (Nesterov blend or m). g is scaled by `grad_scale` first
// (unscale x clip, one rounding). Elementwise. The second keeps momentum as bits of bf16: widened,
// rounded to nearest even, and u is made of what was rounded. The third keeps it as int8 in blocks
// (formats/core/int8_blocks.h), of which the range begins with one, and is elementwise but for the
// scale of a block.
struct Int8Blocks {
  std::span<std::int8_t> codes;
  std::span<float> scales;
  std::uint64_t block = 1;
};
void momentum_range(const MuonSpec& spec, float grad_scale, std::span<const float> g,
                    std::span<float> m, std::span<float> u);
void momentum_range(const MuonSpec& spec, float grad_scale, std::span<const float> g,
                    std::span<std::uint16_t> m, std::span<float> u);
void momentum_range(const MuonSpec& spec, float grad_scale, std::span<const float> g, Int8Blocks m,
                    std::span<float> u);
// u <- what momentum_range() made there, of momentum that has taken the step and of the gradient.
// REQUIRES: no decay was added to it.
void update_range(const MuonSpec& spec, float grad_scale, std::span<const float> g,
                  std::span<const float> m, std::span<float> u);
void update_range(const MuonSpec& spec, float grad_scale, std::span<const float> g,
                  std::span<const std::uint16_t> m, std::span<float> u);
void update_range(const MuonSpec& spec, float grad_scale, std::span<const float> g,
                  const Int8Blocks& m, std::span<float> u);
// u <- wd w: what momentum_range() then adds to the scaled gradient, where decay is l2.
// Elementwise.
void decay_range(const MuonSpec& spec, std::span<const float> w, std::span<float> u);
// sum <- sum + g. Elementwise.
void add_range(std::span<const float> g, std::span<float> sum);
// From bits of bf16, and to them: rounded to nearest, ties to even. Elementwise.
void widen(std::span<const std::uint16_t> from, std::span<float> to);
void narrow(std::span<const float> from, std::span<std::uint16_t> to);
// The same with bits of fp16; what is too large for them becomes infinity.
void widen_f16(std::span<const std::uint16_t> from, std::span<float> to);
void narrow_f16(std::span<const float> from, std::span<std::uint16_t> to);
// From halves (halves.h), and to them. Elementwise.
void join(std::span<const std::uint16_t> high, std::span<const std::uint16_t> low,
          std::span<float> to);
void split(std::span<const float> from, std::span<std::uint16_t> high,
           std::span<std::uint16_t> low);
// w <- w decayed, minus lr scale o; rounded on the way as the spec says. Elementwise.
void apply_range(const MuonSpec& spec, double scale, std::span<const float> o, std::span<float> w);
// The largest magnitude a scaled gradient may have so that no number of these kernels' state can
// ever overflow fp32, however many such gradients came before.
double largest_gradient(const MuonSpec& spec);
double largest_gradient(const AdamSpec& spec);
// The largest magnitude; infinity when a value is infinite or NaN.
float largest_magnitude(std::span<const float> values);
// AdamW at 1-based step `step`. Elementwise.
void adamw_range(const AdamSpec& spec, std::uint64_t step, float grad_scale,
                 std::span<const float> g, std::span<float> w, std::span<float> exp_avg,
                 std::span<float> exp_avg_sq);

// The exact sum of squares: 20 limbs of 32 bits in int64, unit 2^-298 (docs/numerics.md). add(),
// merge() and carry() leave every limb but the last in [0, 2^32), so any partition of the elements,
// merged in any order, gives the same limbs. A sum over ranks adds limbs; then carry().
struct ExactSum {
  std::array<std::int64_t, 20> limbs{};
  bool finite = true;  // no infinity or NaN was seen; those add nothing to the limbs
  float add(std::span<const float> values);  // answers largest_magnitude(values)
  void merge(const ExactSum& other);
  void carry();
  double value() const;  // the correctly rounded sum of squares; NaN unless finite
};

}  // namespace ebb::libmuon
