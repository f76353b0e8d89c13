// Loops the compiler vectorises. Each element goes through the same IEEE operations whatever the
// instruction set, because contraction is off, so clones and cuts give equal bits.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

#include "ebb/formats/core/bf16.h"
#include "ebb/libmuon/kernels/kernels.h"
#include "ebb/libmuon/kernels/rounding.h"

namespace ebb::libmuon {
namespace {

// Momentum as it is stored: fp32, or the bits of bf16.
float widened(float value) { return value; }
float widened(std::uint16_t bits) { return formats::bf16_to_f32(bits); }
void store(float value, float& into) { into = value; }
void store(float value, std::uint16_t& into) { into = formats::f32_to_bf16(value); }

// One step's numbers, each rounded to fp32 once; `lead` is the gradient's share in U.
struct MomentumFactors {
  float scale, beta, blend, lead;
};

// U is made of the momentum that is stored: state says everything. M + (1-b)(G - M), not
// bM + (1-b)G: with the constants rounded to fp32 only the former keeps M = G.
template <Momentum kForm, bool kNesterov, typename Stored>
[[gnu::always_inline]] inline void momentum_loop(MomentumFactors f, std::size_t count,
                                                 const float* __restrict g, Stored* __restrict m,
                                                 float* __restrict u) {
  constexpr bool kEma = kForm == Momentum::ema;
  for (std::size_t i = 0; i < count; ++i) {
    const float gradient = f.scale * g[i];
    const float old = widened(m[i]);
    store(kEma ? old + f.blend * (gradient - old) : f.beta * old + gradient, m[i]);
    const float momentum = widened(m[i]);
    if constexpr (!kNesterov)
      u[i] = momentum;
    else
      u[i] = kEma ? momentum + f.lead * (gradient - momentum) : gradient + f.beta * momentum;
  }
}

template <typename Stored>
[[gnu::always_inline]] inline void momentum(const MuonSpec& spec, MomentumFactors f,
                                            std::size_t count, const float* g, Stored* m,
                                            float* u) {
  const bool ema = spec.momentum == Momentum::ema;
  if (spec.nesterov && ema)
    momentum_loop<Momentum::ema, true>(f, count, g, m, u);
  else if (spec.nesterov)
    momentum_loop<Momentum::sum, true>(f, count, g, m, u);
  else if (ema)
    momentum_loop<Momentum::ema, false>(f, count, g, m, u);
  else
    momentum_loop<Momentum::sum, false>(f, count, g, m, u);
}

EBB_CLONES void momentum_fp32(const MuonSpec& spec, MomentumFactors f, std::size_t count,
                              const float* g, float* m, float* u) {
  momentum(spec, f, count, g, m, u);
}

EBB_CLONES void momentum_bf16(const MuonSpec& spec, MomentumFactors f, std::size_t count,
                              const float* g, std::uint16_t* m, float* u) {
  momentum(spec, f, count, g, m, u);
}

EBB_CLONES void widen_all(std::size_t count, const std::uint16_t* __restrict from,
                          float* __restrict to) {
  for (std::size_t i = 0; i < count; ++i) to[i] = formats::bf16_to_f32(from[i]);
}

EBB_CLONES void narrow_all(std::size_t count, const float* __restrict from,
                           std::uint16_t* __restrict to) {
  for (std::size_t i = 0; i < count; ++i) to[i] = formats::f32_to_bf16(from[i]);
}

EBB_CLONES void add_all(std::size_t count, const float* __restrict g, float* __restrict sum) {
  for (std::size_t i = 0; i < count; ++i) sum[i] += g[i];
}

// One step's numbers, each rounded to fp32 once: rate (scale O), with a product that is rounded.
// Weights with w O below `least` are not decayed. What is taken off is summed first: its error is
// that of a small number.
struct ApplyFactors {
  float decay, scale, rate, least;
};

template <Precision kRounded>
[[gnu::always_inline]] inline void apply_loop(ApplyFactors f, std::size_t count,
                                              const float* __restrict o, float* __restrict w) {
  for (std::size_t i = 0; i < count; ++i) {
    const float decay = w[i] * o[i] >= f.least ? f.decay * w[i] : 0.0f;
    const float moved = kRounded == Precision::fp32 ? o[i] : rounded<kRounded>(f.scale * o[i]);
    w[i] = w[i] - (decay + f.rate * moved);
  }
}

EBB_CLONES void apply_fp32(ApplyFactors f, std::size_t count, const float* o, float* w) {
  apply_loop<Precision::fp32>(f, count, o, w);
}
EBB_CLONES void apply_bf16(ApplyFactors f, std::size_t count, const float* o, float* w) {
  apply_loop<Precision::bf16>(f, count, o, w);
}
EBB_CLONES void apply_fp16(ApplyFactors f, std::size_t count, const float* o, float* w) {
  apply_loop<Precision::fp16>(f, count, o, w);
}

// As a parameter in bf16 would be: rounded behind its decay and behind the step.
template <Precision kRounded>
[[gnu::always_inline]] inline void apply_stored_loop(ApplyFactors f, std::size_t count,
                                                     const float* __restrict o,
                                                     float* __restrict w) {
  for (std::size_t i = 0; i < count; ++i) {
    const float decay = w[i] * o[i] >= f.least ? f.decay * w[i] : 0.0f;
    const float moved = kRounded == Precision::fp32 ? o[i] : rounded<kRounded>(f.scale * o[i]);
    w[i] = rounded<Precision::bf16>(rounded<Precision::bf16>(w[i] - decay) - f.rate * moved);
  }
}

EBB_CLONES void apply_stored_fp32(ApplyFactors f, std::size_t count, const float* o, float* w) {
  apply_stored_loop<Precision::fp32>(f, count, o, w);
}
EBB_CLONES void apply_stored_bf16(ApplyFactors f, std::size_t count, const float* o, float* w) {
  apply_stored_loop<Precision::bf16>(f, count, o, w);
}
EBB_CLONES void apply_stored_fp16(ApplyFactors f, std::size_t count, const float* o, float* w) {
  apply_stored_loop<Precision::fp16>(f, count, o, w);
}

// One AdamW step's numbers, each rounded to fp32 once.
struct AdamFactors {
  float scale, decay, blend1, keep2, blend2, inverse_root2, eps, rate;
};

EBB_CLONES void adamw(AdamFactors f, std::size_t count, const float* __restrict g,
                      float* __restrict w, float* __restrict m, float* __restrict v) {
  for (std::size_t i = 0; i < count; ++i) {
    const float gradient = f.scale * g[i];
    const float first = m[i] + f.blend1 * (gradient - m[i]);
    const float second = f.keep2 * v[i] + f.blend2 * gradient * gradient;
    m[i] = first;
    v[i] = second;
    w[i] = f.decay * w[i] - f.rate * (first / (std::sqrt(second) * f.inverse_root2 + f.eps));
  }
}

float to_float(double value) { return static_cast<float>(value); }

MomentumFactors factors_of(const MuonSpec& spec, float grad_scale) {
  const float beta = to_float(spec.beta), blend = to_float(1 - spec.beta);
  // torch blends with one minus the rounded number: in bf16, whose ties are many, that is seen.
  return {grad_scale, beta, blend, spec.handed == Precision::bf16 ? 1 - beta : blend};
}

// base^exponent by squaring: the same bits with every C library, unlike pow().
double power(double base, std::uint64_t exponent) {
  double result = 1;
  for (; exponent != 0; exponent >>= 1) {
    if (exponent & 1) result *= base;
    base *= base;
  }
  return result;
}

// What is taken off a weight, times the weight.
double taken_off(const MuonSpec& spec, double scale) {
  switch (spec.decay) {
    case Decay::independent:
      return spec.weight_decay;
    case Decay::palm:
      return spec.lr * spec.lr * spec.weight_decay;
    case Decay::cautious_lr2:
      return spec.lr * scale * spec.lr * spec.weight_decay;
    case Decay::decoupled:
    case Decay::cautious:
      break;
  }
  return spec.lr * spec.weight_decay;
}

Precision rounding_of(const MuonSpec& spec) {
  switch (spec.scale_rounding) {
    case ScaleRounding::none:
      break;
    case ScaleRounding::scaled:
      return spec.precision;
    case ScaleRounding::step:
      return spec.handed;
  }
  return Precision::fp32;
}

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
// passes a number of bf16, and its range is that of fp32.
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
  momentum_fp32(spec, factors_of(spec, grad_scale), g.size(), g.data(), m.data(), u.data());
}

void momentum_range(const MuonSpec& spec, float grad_scale, std::span<const float> g,
                    std::span<std::uint16_t> m, std::span<float> u) {
  EBB_CHECK(g.size() == m.size() && g.size() == u.size());
  momentum_bf16(spec, factors_of(spec, grad_scale), g.size(), g.data(), m.data(), u.data());
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

void apply_range(const MuonSpec& spec, double scale, std::span<const float> o, std::span<float> w) {
  EBB_CHECK(o.size() == w.size());
  const bool cautious = spec.decay == Decay::cautious || spec.decay == Decay::cautious_lr2;
  ApplyFactors factors = {.decay = to_float(taken_off(spec, scale)),
                          .scale = 1,
                          .rate = to_float(spec.lr * scale),
                          .least = cautious ? 0 : -std::numeric_limits<float>::infinity()};
  const Precision rounding = rounding_of(spec);
  if (rounding != Precision::fp32 && spec.scale_rounding == ScaleRounding::scaled) {
    factors.scale = to_float(scale);
    factors.rate = to_float(spec.lr);
  } else if (rounding != Precision::fp32) {
    factors.scale = std::exchange(factors.rate, 1.0f);
  }
  const bool stored = spec.weights == Precision::bf16;
  // torch adds bf16 to bf16 with a rate in bf16.
  if (stored && spec.precision == Precision::bf16)
    factors.rate = rounded<Precision::bf16>(factors.rate);
  using Loop = void (*)(ApplyFactors, std::size_t, const float*, float*);
  constexpr Loop kLoops[2][3] = {{apply_fp32, apply_bf16, apply_fp16},
                                 {apply_stored_fp32, apply_stored_bf16, apply_stored_fp16}};
  const Loop loop = kLoops[stored ? 1 : 0][static_cast<std::size_t>(rounding)];
  loop(factors, o.size(), o.data(), w.data());
}

void adamw_range(const AdamSpec& spec, std::uint64_t step, float grad_scale,
                 std::span<const float> g, std::span<float> w, std::span<float> exp_avg,
                 std::span<float> exp_avg_sq) {
  EBB_CHECK(step > 0 && g.size() == w.size() && g.size() == exp_avg.size() &&
            g.size() == exp_avg_sq.size());
  const double correction1 = 1 - power(spec.beta1, step);
  const double correction2 = 1 - power(spec.beta2, step);
  const AdamFactors factors = {.scale = grad_scale,
                               .decay = to_float(1 - spec.lr * spec.weight_decay),
                               .blend1 = to_float(1 - spec.beta1),
                               .keep2 = to_float(spec.beta2),
                               .blend2 = to_float(1 - spec.beta2),
                               .inverse_root2 = to_float(1 / std::sqrt(correction2)),
                               .eps = to_float(spec.eps),
                               .rate = to_float(spec.lr / correction1)};
  adamw(factors, g.size(), g.data(), w.data(), exp_avg.data(), exp_avg_sq.data());
}

}  // namespace ebb::libmuon
