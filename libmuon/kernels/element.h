// What happens to one element of a step's buffers: one definition, for the loops of the host and
// for the kernels of a device. Each operation is rounded by itself, so code that uses this must be
// compiled without contraction, and with IEEE divisions and roots.
#pragma once

#include <bit>
#include <cstdint>

#include "ebb/formats/core/bf16.h"
#include "ebb/libmuon/kernels/rounding.h"

namespace ebb::libmuon {

// Numbers of one step, each rounded to fp32 once (factors.h). `lead` is the gradient's share in U.
struct MomentumFactors {
  float scale = 1, beta = 0, blend = 1, lead = 1;
};
// rate (scale O), with a product that is rounded, and then once more. Weights with w O below
// `least` are not decayed.
struct ApplyFactors {
  float decay = 0, scale = 1, rate = 0, least = 0;
  Precision then = Precision::fp32;  // or bf16
};
struct AdamFactors {
  float scale = 1, decay = 1, blend1 = 1, keep2 = 0, blend2 = 1, inverse_root2 = 1, eps = 0,
        rate = 0;
};

// Of second moments: eps is added to roots, or what is below it counts as it.
struct MomentFactors {
  float blend = 1;
  double eps = 0;
  EpsRule eps_rule = EpsRule::add;
};

// Numbers as they are stored: fp32, or the bits of bf16.
constexpr float widened(float value) { return value; }
constexpr float widened(std::uint16_t bits) { return formats::bf16_to_f32(bits); }
constexpr void store(float value, float& into) { into = value; }
constexpr void store(float value, std::uint16_t& into) { into = formats::f32_to_bf16(value); }
constexpr bool same_bits(float one, float other) {
  return std::bit_cast<std::uint32_t>(one) == std::bit_cast<std::uint32_t>(other);
}
constexpr bool same_bits(std::uint16_t one, std::uint16_t other) { return one == other; }

// A master whose weight is `given`: as it is where that is what it is handed out as.
template <typename Stored>
constexpr float taken(float master, Stored given) {
  Stored handed_out{};
  store(master, handed_out);
  return same_bits(handed_out, given) ? master : widened(given);
}

// The next momentum. M + (1-b)(G - M), not bM + (1-b)G: with the constants rounded to fp32 only the
// former keeps M = G.
template <Momentum kForm>
constexpr float next_momentum(const MomentumFactors& f, float gradient, float old) {
  return kForm == Momentum::ema ? old + f.blend * (gradient - old) : f.beta * old + gradient;
}

// U, which is made of the momentum that is stored: state says everything.
template <Momentum kForm, bool kNesterov>
constexpr float update_of(const MomentumFactors& f, float gradient, float momentum) {
  if constexpr (!kNesterov)
    return momentum;
  else
    return kForm == Momentum::ema ? momentum + f.lead * (gradient - momentum)
                                  : gradient + f.beta * momentum;
}

// The momentum's step; answers U.
template <Momentum kForm, bool kNesterov, typename Stored>
constexpr float take_scaled(const MomentumFactors& f, float gradient, Stored& m) {
  store(next_momentum<kForm>(f, gradient, widened(m)), m);
  return update_of<kForm, kNesterov>(f, gradient, widened(m));
}
// Of a gradient as it comes; of one to which its weight's decay is added.
template <Momentum kForm, bool kNesterov, typename Stored>
constexpr float take_momentum(const MomentumFactors& f, float g, Stored& m) {
  return take_scaled<kForm, kNesterov>(f, f.scale * g, m);
}
template <Momentum kForm, bool kNesterov, typename Stored>
constexpr float take_decayed(const MomentumFactors& f, float g, float decay, Stored& m) {
  return take_scaled<kForm, kNesterov>(f, f.scale * g + decay, m);
}

// The next weight. What is taken off is summed first: its error is that of a small number. As a
// parameter in bf16 (kWeights) it would be rounded behind its decay and behind the step.
template <Precision kStep, Precision kWeights>
constexpr float applied(const ApplyFactors& f, float o, float w) {
  const float decay = w * o >= f.least ? f.decay * w : 0.0f;
  const float once = kStep == Precision::fp32 ? o : rounded<kStep>(f.scale * o);
  const float moved = f.then == Precision::bf16 ? rounded<Precision::bf16>(once) : once;
  if constexpr (kWeights == Precision::fp32)
    return w - (decay + f.rate * moved);
  else
    return rounded<kWeights>(rounded<kWeights>(w - decay) - f.rate * moved);
}

// The next second moment of `along` elements with such a sum of squares; what those are multiplied
// with (`root`: of under_root()), and by which ratio more, for O to keep its Frobenius norm. The
// roots are of sums of squares, before and behind.
constexpr float next_moment(const MomentFactors& f, double squares, double along, float v) {
  return v + f.blend * (static_cast<float>(squares / along) - v);
}
constexpr double under_root(const MomentFactors& f, double v) {
  return f.eps_rule == EpsRule::clamp && v < f.eps ? f.eps : v;
}
constexpr double moment_step(const MomentFactors& f, double root) {
  return f.eps_rule == EpsRule::add ? 1 / (root + f.eps) : 1 / root;
}
constexpr double kept_norm(const MomentFactors& f, double before, double behind) {
  if (f.eps_rule == EpsRule::add) return before / (behind + f.eps);
  return before / (behind < f.eps ? f.eps : behind);
}

// AdamW's moments and weight; `root` of the new second moment.
constexpr float adam_first(const AdamFactors& f, float gradient, float m) {
  return m + f.blend1 * (gradient - m);
}
constexpr float adam_second(const AdamFactors& f, float gradient, float v) {
  return f.keep2 * v + f.blend2 * gradient * gradient;
}
constexpr float adam_weight(const AdamFactors& f, float w, float first, float root) {
  return f.decay * w - f.rate * (first / (root * f.inverse_root2 + f.eps));
}

}  // namespace ebb::libmuon
