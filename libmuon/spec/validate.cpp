#include "ebb/libmuon/spec/spec.h"

#include <algorithm>
#include <cmath>

#include "ebb/libmuon/spec/number_text.h"
#include "ebb/libmuon/spec/words.h"

namespace ebb::libmuon {
namespace {

Error outside(std::string_view setting, double value, std::string_view range) {
  return {Code::usage,
          compose("setting {} = {} is outside {}", setting, number_text(value), range)};
}

Error contradicts(std::string_view setting, const std::string& why, std::string hint = {}) {
  return {Code::usage, compose("setting {}: {}", setting, why), std::move(hint)};
}

// Kernels take them in fp32.
bool finite(double value) { return std::isfinite(static_cast<float>(value)); }

Result<> check_not_negative(std::string_view setting, double value) {
  if (!finite(value) || value < 0) return outside(setting, value, "[0, infinity) in fp32");
  return {};
}

Result<> check_positive(std::string_view setting, double value) {
  if (!finite(value) || !(static_cast<float>(value) > 0))
    return outside(setting, value, "(0, infinity) in fp32");
  return {};
}

// What kernels multiply settings to, in fp64, and round to fp32 then.
Result<> check_product(std::string_view what, double value) {
  if (finite(value)) return {};
  return Error{Code::usage,
               compose("settings {} = {} is not finite in fp32", what, number_text(value))};
}

Result<> check_step(const MuonSpec& spec) {
  EBB_TRY(check_product("lr x weight_decay", spec.lr * spec.weight_decay));
  if (spec.decay == Decay::palm || spec.decay == Decay::cautious_lr2)
    EBB_TRY(check_product("lr x lr x weight_decay", spec.lr * spec.lr * spec.weight_decay));
  return check_product("lr x scale_factor", spec.lr * spec.scale_factor);
}

Result<> check_decay_rate(std::string_view setting, double value) {
  if (!(value >= 0 && value < 1)) return outside(setting, value, "[0, 1)");
  return {};
}

// A singular value is at most 1 before rounding and may be a little more behind it. Iterations that
// throw it far beyond 1 from there end in infinity for some matrices.
Result<> check_growth(const MuonSpec& spec) {
  if (spec.precision == Precision::fp32) return {};
  constexpr int kValues = 1024;
  constexpr double kMost = 4;
  const double above = spec.precision == Precision::bf16 ? 0x1p-7 : 0x1p-10;
  for (int i = 1; i <= kValues; ++i) {
    double x = (1 + above) / spec.norm_factor * i / kValues;
    for (const Coefficients& step : spec.iterations) {
      const double square = x * x;
      x *= double{step.a} + square * (double{step.b} + square * double{step.c});
      if (!(std::abs(x) <= kMost))
        return contradicts("precision",
                           "these iterations grow what rounding leaves above 1, to infinity",
                           "use precision = fp32, or a norm_factor above 1");
    }
  }
  return {};
}

Result<> check_form(const MuonSpec& spec) {
  if (spec.form == Form::standard && !spec.restarts.empty())
    return contradicts("restarts", "only form = gram restarts");
  std::uint32_t before = 0;
  for (const std::uint32_t restart : spec.restarts) {
    if (restart <= before || restart >= spec.iterations.size())
      return outside("restarts", restart,
                     compose("the iterations {} to {} in ascending order", before + 1,
                             spec.iterations.size() - 1));
    before = restart;
  }
  return {};
}

Result<> check_roundings(const MuonSpec& spec) {
  for (const auto& [name, kept] : {std::pair("handed", spec.handed), {"weights", spec.weights}})
    if (kept == Precision::tf32)
      return contradicts(name, "tf32 is what products take, and nothing is kept in it",
                         compose("use {} = bf16 or fp32", name));
  if (spec.handed == Precision::fp16)
    return contradicts("handed", "fp16 has no room for updates below 6e-8 or above 65504",
                       "use handed = bf16 or fp32");
  if (spec.weights == Precision::fp16)
    return contradicts("weights", "fp16 loses what a step takes off them",
                       "use weights = bf16 or fp32");
  if (spec.norm_of == NormOf::rounded && spec.precision == Precision::fp16)
    return contradicts("norm_of", "before it is scaled an update does not fit fp16",
                       "use norm_of = update");
  return {};
}

// What is handed out is a function of the gradients alone.
Result<> check_out(const MuonSpec& spec) {
  if (spec.out == Out::weights) return {};
  if (spec.weight_decay != 0)
    return contradicts("out", "an update has no weights to decay",
                       "use weight_decay = 0, and decay the masters before the update is added");
  if (spec.decay == Decay::l2)
    return contradicts("out", "decay = l2 wants weights, and an update has none",
                       "use another decay");
  if (spec.weights != Precision::fp32)
    return contradicts("out", "an update has no weights to round", "use weights = fp32");
  return {};
}

// A smaller eps would let rows of almost nothing grow beyond fp32.
Result<> check_second_moment(const MuonSpec& spec) {
  constexpr double kLeast = 1e-20;
  EBB_TRY(check_decay_rate("second_beta", spec.second_beta));
  if (!std::isfinite(spec.second_eps) || spec.second_eps < kLeast)
    return outside("second_eps", spec.second_eps, "[1e-20, infinity)");
  return {};
}

Result<> check_split(const Split& split) {
  const bool none = split.kind == Split::Kind::none, heads = split.kind == Split::Kind::heads;
  if (none != split.sizes.empty() || (heads && split.sizes.size() != 1) ||
      split.sizes.size() > kMaxParts)
    return contradicts("split", "wanted none, heads 8, rows 8,4,4 or groups 8,4,4");
  if (std::ranges::find(split.sizes, 0u) != split.sizes.end())
    return contradicts("split", "a part of no rows");
  return {};
}

}  // namespace

Result<> validate(const MuonSpec& spec) {
  EBB_TRY(check_words(spec));
  EBB_TRY(check_not_negative("lr", spec.lr));
  EBB_TRY(check_decay_rate("beta", spec.beta));
  EBB_TRY(check_not_negative("weight_decay", spec.weight_decay));
  EBB_TRY(check_not_negative("eps", spec.eps));
  EBB_TRY(check_positive("norm_factor", spec.norm_factor));
  EBB_TRY(check_not_negative("scale_factor", spec.scale_factor));
  EBB_TRY(check_step(spec));
  const std::size_t steps = spec.iterations.size();
  if (steps == 0 || steps > kMaxIterations)
    return outside("ns_steps", static_cast<double>(steps), "[1, 32]");
  for (std::size_t i = 0; i < steps; ++i) {
    const Coefficients& step = spec.iterations[i];
    for (const float value : {step.a, step.b, step.c})
      if (!std::isfinite(value))
        return outside(compose("ns.{}", i + 1), static_cast<double>(value), "the finite numbers");
  }
  EBB_TRY(check_form(spec));
  EBB_TRY(check_roundings(spec));
  EBB_TRY(check_split(spec.split));
  EBB_TRY(check_second_moment(spec));
  EBB_TRY(check_out(spec));
  return check_growth(spec);
}

Result<> validate(const AdamSpec& spec) {
  EBB_TRY(check_not_negative("lr", spec.lr));
  EBB_TRY(check_decay_rate("beta1", spec.beta1));
  EBB_TRY(check_decay_rate("beta2", spec.beta2));
  EBB_TRY(check_not_negative("weight_decay", spec.weight_decay));
  EBB_TRY(check_product("lr x weight_decay", spec.lr * spec.weight_decay));
  EBB_TRY(check_product("lr / (1 - beta1)", spec.lr / (1 - spec.beta1)));  // the first step's
  return check_positive("eps", spec.eps);  // with eps 0 a gradient of zero makes 0/0
}

}  // namespace ebb::libmuon
