// Loops the compiler vectorises. Each element goes through the same IEEE operations whatever the
// instruction set, because contraction is off, so clones and cuts give equal bits.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "ebb/formats/core/halves.h"
#include "ebb/formats/core/int8_blocks.h"
#include "ebb/formats/core/units.h"
#include "ebb/libmuon/kernels/factors.h"
#include "ebb/libmuon/kernels/kernels.h"

namespace ebb::libmuon {
namespace {

template <Momentum kForm, bool kNesterov, typename Stored>
[[gnu::always_inline]] inline void momentum_loop(Decay decay, MomentumFactors f, std::size_t count,
                                                 const float* __restrict g, Stored* __restrict m,
                                                 float* __restrict u) {
  if (decay == Decay::l2)
    for (std::size_t i = 0; i < count; ++i)
      u[i] = take_decayed<kForm, kNesterov>(f, g[i], u[i], m[i]);
  else
    for (std::size_t i = 0; i < count; ++i) u[i] = take_momentum<kForm, kNesterov>(f, g[i], m[i]);
}

template <typename Stored>
[[gnu::always_inline]] inline void momentum(const MuonSpec& spec, MomentumFactors f,
                                            std::size_t count, const float* g, Stored* m,
                                            float* u) {
  const bool ema = spec.momentum == Momentum::ema;
  if (spec.nesterov && ema)
    momentum_loop<Momentum::ema, true>(spec.decay, f, count, g, m, u);
  else if (spec.nesterov)
    momentum_loop<Momentum::sum, true>(spec.decay, f, count, g, m, u);
  else if (ema)
    momentum_loop<Momentum::ema, false>(spec.decay, f, count, g, m, u);
  else
    momentum_loop<Momentum::sum, false>(spec.decay, f, count, g, m, u);
}

EBB_CLONES void momentum_fp32(const MuonSpec& spec, MomentumFactors f, std::size_t count,
                              const float* g, float* m, float* u) {
  momentum(spec, f, count, g, m, u);
}

EBB_CLONES void momentum_bf16(const MuonSpec& spec, MomentumFactors f, std::size_t count,
                              const float* g, std::uint16_t* m, float* u) {
  momentum(spec, f, count, g, m, u);
}

EBB_CLONES void multiply_all(std::size_t count, float factor, const float* __restrict from,
                             float* __restrict to) {
  for (std::size_t i = 0; i < count; ++i) to[i] = factor * from[i];
}

// What the momentum takes in lies in U until the scale of the block is known.
template <Momentum kForm, bool kNesterov>
[[gnu::always_inline]] inline void momentum_block(Decay decay, MomentumFactors f, std::size_t count,
                                                  const float* __restrict g,
                                                  std::int8_t* __restrict codes, float& scale,
                                                  float* __restrict u) {
  if (decay == Decay::l2)
    for (std::size_t i = 0; i < count; ++i) u[i] = f.scale * g[i] + u[i];
  else
    for (std::size_t i = 0; i < count; ++i) u[i] = f.scale * g[i];
  const float before = scale;
  std::uint32_t largest = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const float next = next_momentum<kForm>(f, u[i], formats::int8_value(codes[i], before));
    largest = std::max(largest, std::bit_cast<std::uint32_t>(next) & 0x7fffffffu);
  }
  scale = formats::int8_scale(std::bit_cast<float>(largest));
  const float now = scale, inverse = formats::int8_inverse(now);
  for (std::size_t i = 0; i < count; ++i) {
    const float next = next_momentum<kForm>(f, u[i], formats::int8_value(codes[i], before));
    codes[i] = formats::int8_code(next, inverse);
    u[i] = update_of<kForm, kNesterov>(f, u[i], formats::int8_value(codes[i], now));
  }
}

template <Momentum kForm, bool kNesterov>
[[gnu::always_inline]] inline void momentum_blocks(Decay decay, MomentumFactors f,
                                                   std::span<const float> g, const Int8Blocks& m,
                                                   float* u) {
  for (std::size_t first = 0; first < g.size(); first += m.block)
    momentum_block<kForm, kNesterov>(decay, f, std::min<std::size_t>(m.block, g.size() - first),
                                     g.data() + first, m.codes.data() + first,
                                     m.scales[first / m.block], u + first);
}

EBB_CLONES void momentum_int8(const MuonSpec& spec, MomentumFactors f, std::span<const float> g,
                              const Int8Blocks& m, float* u) {
  const bool ema = spec.momentum == Momentum::ema;
  if (spec.nesterov && ema)
    momentum_blocks<Momentum::ema, true>(spec.decay, f, g, m, u);
  else if (spec.nesterov)
    momentum_blocks<Momentum::sum, true>(spec.decay, f, g, m, u);
  else if (ema)
    momentum_blocks<Momentum::ema, false>(spec.decay, f, g, m, u);
  else
    momentum_blocks<Momentum::sum, false>(spec.decay, f, g, m, u);
}

// U once more, of momentum that has taken this step.
template <Momentum kForm, bool kNesterov, typename Stored>
[[gnu::always_inline]] inline void update_loop(MomentumFactors f, std::size_t count,
                                               const float* __restrict g,
                                               const Stored* __restrict m, float* __restrict u) {
  for (std::size_t i = 0; i < count; ++i)
    u[i] = update_of<kForm, kNesterov>(f, f.scale * g[i], widened(m[i]));
}

template <typename Stored>
[[gnu::always_inline]] inline void update(const MuonSpec& spec, MomentumFactors f,
                                          std::size_t count, const float* g, const Stored* m,
                                          float* u) {
  if (!spec.nesterov)
    update_loop<Momentum::ema, false>(f, count, g, m, u);
  else if (spec.momentum == Momentum::ema)
    update_loop<Momentum::ema, true>(f, count, g, m, u);
  else
    update_loop<Momentum::sum, true>(f, count, g, m, u);
}

EBB_CLONES void update_fp32(const MuonSpec& spec, MomentumFactors f, std::size_t count,
                            const float* g, const float* m, float* u) {
  update(spec, f, count, g, m, u);
}

EBB_CLONES void update_bf16(const MuonSpec& spec, MomentumFactors f, std::size_t count,
                            const float* g, const std::uint16_t* m, float* u) {
  update(spec, f, count, g, m, u);
}

EBB_CLONES void widen_codes(std::size_t count, float scale, const std::int8_t* __restrict codes,
                            float* __restrict m) {
  for (std::size_t i = 0; i < count; ++i) m[i] = formats::int8_value(codes[i], scale);
}

EBB_CLONES void widen_all(std::size_t count, const std::uint16_t* __restrict from,
                          float* __restrict to) {
  for (std::size_t i = 0; i < count; ++i) to[i] = formats::bf16_to_f32(from[i]);
}

EBB_CLONES void narrow_all(std::size_t count, const float* __restrict from,
                           std::uint16_t* __restrict to) {
  for (std::size_t i = 0; i < count; ++i) to[i] = formats::f32_to_bf16(from[i]);
}

// A number of fp16 is one of fp32 2^112 times as small but for its exponent's offset; subnormal
// ones too.
EBB_CLONES void widen_all_f16(std::size_t count, const std::uint16_t* __restrict from,
                              float* __restrict to) {
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint32_t size = from[i] & 0x7fffu, sign = from[i] & 0x8000u;
    const auto finite = std::bit_cast<std::uint32_t>(std::bit_cast<float>(size << 13) * 0x1p112f);
    const std::uint32_t other = size << 13 | 0x7f800000u;  // infinity, NaN
    to[i] = std::bit_cast<float>((size < 0x7c00u ? finite : other) | sign << 16);
  }
}

EBB_CLONES void narrow_all_f16(std::size_t count, const float* __restrict from,
                               std::uint16_t* __restrict to) {
  for (std::size_t i = 0; i < count; ++i) {
    const auto bits = std::bit_cast<std::uint32_t>(rounded<Precision::fp16>(from[i]));
    const std::uint32_t size = bits & 0x7fffffffu;
    const auto finite = std::bit_cast<std::uint32_t>(std::bit_cast<float>(size) * 0x1p-112f) >> 13;
    const std::uint32_t other = 0x7c00u | (size > 0x7f800000u ? 0x200u : 0u);
    to[i] = static_cast<std::uint16_t>((size < 0x7f800000u ? finite : other) | bits >> 31 << 15);
  }
}

EBB_CLONES void join_all(std::size_t count, const std::uint16_t* __restrict high,
                         const std::uint16_t* __restrict low, float* __restrict to) {
  for (std::size_t i = 0; i < count; ++i) to[i] = formats::joined(high[i], low[i]);
}

EBB_CLONES void split_all(std::size_t count, const float* __restrict from,
                          std::uint16_t* __restrict high, std::uint16_t* __restrict low) {
  for (std::size_t i = 0; i < count; ++i) {
    high[i] = formats::high_half(from[i]);
    low[i] = formats::low_half(from[i]);
  }
}

EBB_CLONES void add_all(std::size_t count, const float* __restrict g, float* __restrict sum) {
  for (std::size_t i = 0; i < count; ++i) sum[i] += g[i];
}

template <Precision kStep, Precision kWeights>
[[gnu::always_inline]] inline void apply_loop(ApplyFactors f, std::size_t count,
                                              const float* __restrict o, float* __restrict w) {
  for (std::size_t i = 0; i < count; ++i) w[i] = applied<kStep, kWeights>(f, o[i], w[i]);
}

EBB_CLONES void apply_fp32(ApplyFactors f, std::size_t count, const float* o, float* w) {
  apply_loop<Precision::fp32, Precision::fp32>(f, count, o, w);
}
EBB_CLONES void apply_bf16(ApplyFactors f, std::size_t count, const float* o, float* w) {
  apply_loop<Precision::bf16, Precision::fp32>(f, count, o, w);
}
EBB_CLONES void apply_fp16(ApplyFactors f, std::size_t count, const float* o, float* w) {
  apply_loop<Precision::fp16, Precision::fp32>(f, count, o, w);
}

EBB_CLONES void apply_stored_fp32(ApplyFactors f, std::size_t count, const float* o, float* w) {
  apply_loop<Precision::fp32, Precision::bf16>(f, count, o, w);
}
EBB_CLONES void apply_stored_bf16(ApplyFactors f, std::size_t count, const float* o, float* w) {
  apply_loop<Precision::bf16, Precision::bf16>(f, count, o, w);
}
EBB_CLONES void apply_stored_fp16(ApplyFactors f, std::size_t count, const float* o, float* w) {
  apply_loop<Precision::fp16, Precision::bf16>(f, count, o, w);
}

EBB_CLONES void adamw(AdamFactors f, std::size_t count, const float* __restrict g,
                      float* __restrict w, float* __restrict m, float* __restrict v) {
  for (std::size_t i = 0; i < count; ++i) {
    const float gradient = f.scale * g[i];
    m[i] = adam_first(f, gradient, m[i]);
    v[i] = adam_second(f, gradient, v[i]);
    w[i] = adam_weight(f, w[i], m[i], std::sqrt(v[i]));
  }
}

// Of int8 momentum that is widened on the stack.
constexpr std::size_t kMostBlock = 4096;

// Far below the largest fp32, so that what rounding adds step by step never gets there.
constexpr double kSafe = 0x1p120;

EBB_CLONES std::uint32_t largest_bits(const float* values, std::size_t count) {
  std::uint32_t largest = 0;
  for (std::size_t i = 0; i < count; ++i)
    largest = std::max(largest, std::bit_cast<std::uint32_t>(values[i]) & 0x7fffffffu);
  return largest;
}

}  // namespace

// |M| <= max |G| for an EMA; for a sum it is at most max |G| / (1 - b), and U = G + bM no more. In
// bf16 that holds for the next number of bf16, at most 1 + 2^-7 times as large: rounding never
// passes a number of bf16, and its range is that of fp32. In int8 it holds for the next number that
// is 127 scales: the scale of a block whose numbers are no larger is no larger.
double largest_gradient(const MuonSpec& spec) {
  return spec.momentum == Momentum::sum ? kSafe * (1 - spec.beta) : kSafe;
}

// exp_avg_sq is an EMA of squares.
double largest_gradient(const AdamSpec&) { return std::sqrt(kSafe); }

float largest_magnitude(std::span<const float> values) {
  const float largest = std::bit_cast<float>(largest_bits(values.data(), values.size()));
  return std::isfinite(largest) ? largest : std::numeric_limits<float>::infinity();
}

void momentum_range(const MuonSpec& spec, float grad_scale, std::span<const float> g,
                    std::span<float> m, std::span<float> u) {
  EBB_CHECK(g.size() == m.size() && g.size() == u.size());
  momentum_fp32(spec, momentum_factors(spec, grad_scale), g.size(), g.data(), m.data(), u.data());
}

void momentum_range(const MuonSpec& spec, float grad_scale, std::span<const float> g,
                    std::span<std::uint16_t> m, std::span<float> u) {
  EBB_CHECK(g.size() == m.size() && g.size() == u.size());
  momentum_bf16(spec, momentum_factors(spec, grad_scale), g.size(), g.data(), m.data(), u.data());
}

void momentum_range(const MuonSpec& spec, float grad_scale, std::span<const float> g, Int8Blocks m,
                    std::span<float> u) {
  EBB_CHECK(m.block > 0 && g.size() == m.codes.size() && g.size() == u.size() &&
            m.scales.size() == formats::div_ceil(g.size(), m.block));
  momentum_int8(spec, momentum_factors(spec, grad_scale), g, m, u.data());
}

void update_range(const MuonSpec& spec, float grad_scale, std::span<const float> g,
                  std::span<const float> m, std::span<float> u) {
  EBB_CHECK(g.size() == m.size() && g.size() == u.size());
  update_fp32(spec, momentum_factors(spec, grad_scale), g.size(), g.data(), m.data(), u.data());
}

void update_range(const MuonSpec& spec, float grad_scale, std::span<const float> g,
                  std::span<const std::uint16_t> m, std::span<float> u) {
  EBB_CHECK(g.size() == m.size() && g.size() == u.size());
  update_bf16(spec, momentum_factors(spec, grad_scale), g.size(), g.data(), m.data(), u.data());
}

void update_range(const MuonSpec& spec, float grad_scale, std::span<const float> g,
                  const Int8Blocks& m, std::span<float> u) {
  EBB_CHECK(m.block > 0 && m.block <= kMostBlock && g.size() == m.codes.size() &&
            g.size() == u.size() && m.scales.size() == formats::div_ceil(g.size(), m.block));
  const MomentumFactors factors = momentum_factors(spec, grad_scale);
  float wide[kMostBlock];
  for (std::size_t first = 0; first < g.size(); first += m.block) {
    const std::size_t count = std::min<std::size_t>(m.block, g.size() - first);
    widen_codes(count, m.scales[first / m.block], m.codes.data() + first, wide);
    update_fp32(spec, factors, count, g.data() + first, wide, u.data() + first);
  }
}

void decay_range(const MuonSpec& spec, std::span<const float> w, std::span<float> u) {
  EBB_CHECK(w.size() == u.size());
  multiply_all(w.size(), gradient_decay(spec), w.data(), u.data());
}

void add_range(std::span<const float> g, std::span<float> sum) {
  EBB_CHECK(g.size() == sum.size());
  add_all(g.size(), g.data(), sum.data());
}

void widen(std::span<const std::uint16_t> from, std::span<float> to) {
  EBB_CHECK(from.size() == to.size());
  widen_all(from.size(), from.data(), to.data());
}

void narrow(std::span<const float> from, std::span<std::uint16_t> to) {
  EBB_CHECK(from.size() == to.size());
  narrow_all(from.size(), from.data(), to.data());
}

void widen_f16(std::span<const std::uint16_t> from, std::span<float> to) {
  EBB_CHECK(from.size() == to.size());
  widen_all_f16(from.size(), from.data(), to.data());
}

void narrow_f16(std::span<const float> from, std::span<std::uint16_t> to) {
  EBB_CHECK(from.size() == to.size());
  narrow_all_f16(from.size(), from.data(), to.data());
}

void join(std::span<const std::uint16_t> high, std::span<const std::uint16_t> low,
          std::span<float> to) {
  EBB_CHECK(high.size() == to.size() && low.size() == to.size());
  join_all(to.size(), high.data(), low.data(), to.data());
}

void split(std::span<const float> from, std::span<std::uint16_t> high,
           std::span<std::uint16_t> low) {
  EBB_CHECK(high.size() == from.size() && low.size() == from.size());
  split_all(from.size(), from.data(), high.data(), low.data());
}

void apply_range(const MuonSpec& spec, double scale, std::span<const float> o, std::span<float> w) {
  EBB_CHECK(o.size() == w.size());
  using Loop = void (*)(ApplyFactors, std::size_t, const float*, float*);
  constexpr Loop kLoops[2][3] = {{apply_fp32, apply_bf16, apply_fp16},
                                 {apply_stored_fp32, apply_stored_bf16, apply_stored_fp16}};
  const std::size_t stored = spec.weights == Precision::bf16 ? 1 : 0;
  const Loop loop = kLoops[stored][static_cast<std::size_t>(step_rounding(spec))];
  loop(apply_factors(spec, scale), o.size(), o.data(), w.data());
}

void adamw_range(const AdamSpec& spec, std::uint64_t step, float grad_scale,
                 std::span<const float> g, std::span<float> w, std::span<float> exp_avg,
                 std::span<float> exp_avg_sq) {
  EBB_CHECK(step > 0 && g.size() == w.size() && g.size() == exp_avg.size() &&
            g.size() == exp_avg_sq.size());
  adamw(adam_factors(spec, step, grad_scale), g.size(), g.data(), w.data(), exp_avg.data(),
        exp_avg_sq.data());
}

}  // namespace ebb::libmuon
