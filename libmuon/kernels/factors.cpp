#include "ebb/libmuon/kernels/factors.h"

#include <cmath>
#include <limits>
#include <utility>

namespace ebb::libmuon {
namespace {

float to_float(double value) { return static_cast<float>(value); }

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
    case Decay::l2:
      return 0;
    case Decay::decoupled:
    case Decay::cautious:
      break;
  }
  return spec.lr * spec.weight_decay;
}

}  // namespace

MomentumFactors momentum_factors(const MuonSpec& spec, float grad_scale) {
  const float beta = to_float(spec.beta), blend = to_float(1 - spec.beta);
  // torch blends with one minus the rounded number: in bf16, whose ties are many, that is seen.
  return {grad_scale, beta, blend, spec.handed == Precision::bf16 ? 1 - beta : blend};
}

float gradient_decay(const MuonSpec& spec) { return to_float(spec.weight_decay); }

MomentFactors moment_factors(const MuonSpec& spec) {
  return {to_float(1 - spec.second_beta), spec.second_eps, spec.second_eps_rule};
}

Precision step_rounding(const MuonSpec& spec) {
  switch (spec.scale_rounding) {
    case ScaleRounding::none:
      break;
    case ScaleRounding::scaled:
      return kept_as(spec.precision);
    case ScaleRounding::step:
      return spec.handed;
    case ScaleRounding::handed:
      return kept_as(spec.precision) == Precision::fp32 ? spec.handed : kept_as(spec.precision);
  }
  return Precision::fp32;
}

ApplyFactors apply_factors(const MuonSpec& spec, double scale) {
  const bool cautious = spec.decay == Decay::cautious || spec.decay == Decay::cautious_lr2;
  ApplyFactors factors = {.decay = to_float(taken_off(spec, scale)),
                          .scale = 1,
                          .rate = to_float(spec.lr * scale),
                          .least = cautious ? 0 : -std::numeric_limits<float>::infinity()};
  const Precision rounding = step_rounding(spec);
  if (spec.scale_rounding == ScaleRounding::handed) factors.then = spec.handed;
  if (rounding != Precision::fp32 && spec.scale_rounding != ScaleRounding::step) {
    factors.scale = to_float(scale);
    factors.rate = to_float(spec.lr);
  } else if (rounding != Precision::fp32) {
    factors.scale = std::exchange(factors.rate, 1.0f);
  }
  const bool stored = spec.weights == Precision::bf16;
  // torch adds bf16 to bf16 with a rate in bf16.
  if (stored && (spec.precision == Precision::bf16 || factors.then == Precision::bf16))
    factors.rate = rounded<Precision::bf16>(factors.rate);
  return factors;
}

AdamFactors adam_factors(const AdamSpec& spec, std::uint64_t step, float grad_scale) {
  const double correction1 = 1 - power(spec.beta1, step);
  const double correction2 = 1 - power(spec.beta2, step);
  return {.scale = grad_scale,
          .decay = to_float(1 - spec.lr * spec.weight_decay),
          .blend1 = to_float(1 - spec.beta1),
          .keep2 = to_float(spec.beta2),
          .blend2 = to_float(1 - spec.beta2),
          .inverse_root2 = to_float(1 / std::sqrt(correction2)),
          .eps = to_float(spec.eps),
          .rate = to_float(spec.lr / correction1)};
}

}  // namespace ebb::libmuon
