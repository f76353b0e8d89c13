#include "ebb/libmuon/spec/spec.h"

#include <cmath>

#include "ebb/libmuon/spec/number_text.h"

namespace ebb::libmuon {
namespace {

Error outside(std::string_view setting, double value, std::string_view range) {
  return {Code::usage,
          compose("setting {} = {} is outside {}", setting, number_text(value), range)};
}

Result<> check_not_negative(std::string_view setting, double value) {
  if (!std::isfinite(value) || value < 0) return outside(setting, value, "[0, infinity)");
  return {};
}

Result<> check_decay_rate(std::string_view setting, double value) {
  if (!(value >= 0 && value < 1)) return outside(setting, value, "[0, 1)");
  return {};
}

}  // namespace

MuonSpec MuonSpec::keller() {
  MuonSpec spec;
  spec.iterations.assign(5, {.a = 3.4445f, .b = -4.7750f, .c = 2.0315f});
  return spec;
}

AdamSpec AdamSpec::torch() {
  return {.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.01};
}

Result<> validate(const MuonSpec& spec) {
  EBB_TRY(check_not_negative("lr", spec.lr));
  EBB_TRY(check_decay_rate("beta", spec.beta));
  EBB_TRY(check_not_negative("weight_decay", spec.weight_decay));
  EBB_TRY(check_not_negative("eps", spec.eps));
  const std::size_t steps = spec.iterations.size();
  if (steps == 0 || steps > kMaxIterations)
    return outside("ns_steps", static_cast<double>(steps), "[1, 32]");
  for (std::size_t i = 0; i < steps; ++i) {
    const Coefficients& step = spec.iterations[i];
    for (const float value : {step.a, step.b, step.c})
      if (!std::isfinite(value))
        return outside(compose("ns.{}", i + 1), static_cast<double>(value), "the finite numbers");
  }
  if (spec.precision == Precision::bf16)
    return Error{Code::unsupported, "setting precision = bf16: this version computes in fp32 only",
                 "use precision = fp32"};
  return {};
}

Result<> validate(const AdamSpec& spec) {
  EBB_TRY(check_not_negative("lr", spec.lr));
  EBB_TRY(check_decay_rate("beta1", spec.beta1));
  EBB_TRY(check_decay_rate("beta2", spec.beta2));
  EBB_TRY(check_not_negative("weight_decay", spec.weight_decay));
  // In fp32, and above zero: with eps 0 a gradient of zero makes 0/0.
  if (!std::isfinite(spec.eps) || !(static_cast<float>(spec.eps) > 0.0f))
    return outside("eps", spec.eps, "(0, infinity) in fp32");
  return {};
}

}  // namespace ebb::libmuon
