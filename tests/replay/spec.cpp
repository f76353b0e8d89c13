#include "tests/replay/spec.h"

#include <cmath>
#include <optional>

#include "ebb/formats/core/compose.h"
#include "ebb/libmuon/spec/blocks.h"
#include "ebb/libmuon/spec/number_text.h"
#include "tests/replay/formula.h"

namespace ebb::replay {
namespace {

using libmuon::MuonSpec;
using libmuon::Precision;

template <typename T>
struct Word {
  std::string_view word;
  T meaning;
};

template <typename T, std::size_t N>
Result<T> meaning_of(const Fields& fields, std::string_view name, const Word<T> (&words)[N]) {
  EBB_TRY_ASSIGN(const std::string text, fields.text(name));
  std::string known;
  for (const auto& [word, meaning] : words) {
    if (text == word) return meaning;
    known += compose("{}{}", known.empty() ? "" : ", ", word);
  }
  return fields.wrong(name, compose("is \"{}\"; known are {}", text, known));
}

constexpr Word<Precision> kPrecisions[] = {
    {"F32", Precision::fp32}, {"BF16", Precision::bf16}, {"F16", Precision::fp16}};

// Of the update in fp32, of its cast to the precision, or of the update as it is handed over.
Result<libmuon::NormOf> norm_of(const Fields& ns, const MuonSpec& spec, bool cast_first,
                                Precision norm) {
  using libmuon::NormOf;
  if (cast_first && norm == spec.precision)
    return norm == Precision::fp32 ? NormOf::update : NormOf::rounded;
  if (!cast_first && norm == Precision::fp32) return NormOf::update;
  if (!cast_first && norm == spec.handed) return NormOf::handed;
  return ns.wrong("norm_result_dtype",
                  "is neither fp32, nor that of the update, nor that of its cast");
}

Result<> take_newton_schulz(const Fields& ns, MuonSpec& spec) {
  EBB_TRY_ASSIGN(const auto coefficients, ns.rows("coefficients"));
  EBB_TRY_ASSIGN(const std::uint64_t steps, ns.count("steps"));
  if (steps != coefficients.size()) return ns.wrong("steps", "are not as many as coefficients");
  for (const Numbers& step : coefficients) {
    if (step.size() != 3) return ns.wrong("coefficients", "are not three an iteration");
    spec.iterations.push_back(
        {static_cast<float>(step[0]), static_cast<float>(step[1]), static_cast<float>(step[2])});
  }
  EBB_TRY_ASSIGN(
      spec.form,
      (meaning_of<libmuon::Form>(
          ns, "form", {{"standard", libmuon::Form::standard}, {"gram", libmuon::Form::gram}})));
  EBB_TRY_ASSIGN(const auto restarts, ns.counts("restarts"));
  spec.restarts.assign(restarts.begin(), restarts.end());
  EBB_TRY_ASSIGN(spec.precision, meaning_of(ns, "compute_dtype", kPrecisions));
  EBB_TRY_ASSIGN(const bool cast_first, ns.flag("cast_before_norm"));
  EBB_TRY_ASSIGN(const Precision norm, meaning_of(ns, "norm_result_dtype", kPrecisions));
  EBB_TRY_ASSIGN(spec.norm_of, norm_of(ns, spec, cast_first, norm));
  EBB_TRY_ASSIGN(spec.norm_factor, ns.number("norm_factor"));
  EBB_TRY_ASSIGN(spec.eps, ns.number("eps"));
  EBB_TRY_ASSIGN(
      spec.eps_rule,
      (meaning_of<libmuon::EpsRule>(
          ns, "eps_rule", {{"add", libmuon::EpsRule::add}, {"clamp", libmuon::EpsRule::clamp}})));
  EBB_TRY_ASSIGN(const std::string transpose, ns.text("transpose_if"));
  // X^T X from the right is the transposed of X X^T from the left.
  if (transpose != "rows > cols" && !transpose.starts_with("never"))
    return ns.wrong("transpose_if", compose("is \"{}\"", transpose));
  EBB_TRY_ASSIGN(const std::string rounding, ns.text("rounding"));
  if (rounding.starts_with("fused"))
    spec.rounding = libmuon::Rounding::fused;
  else if (rounding.starts_with("every product"))
    spec.rounding = rounding.find("c*(A@A)") != rounding.npos
                        ? libmuon::Rounding::each_product_first
                        : libmuon::Rounding::each;
  else
    return ns.wrong("rounding", compose("is \"{}\"; known are fused and every product", rounding));
  return {};
}

// What is rounded, in words; behind a second moment O is fp32's.
std::optional<libmuon::ScaleRounding> scale_rounding(std::string_view text, bool second_moment) {
  using libmuon::ScaleRounding;
  const auto says = [&](std::string_view words) { return text.find(words) != text.npos; };
  if (text.starts_with("lr") || text == "O in fp32") return ScaleRounding::none;
  if (says("then cast to the gradient dtype")) return ScaleRounding::handed;
  if (says("rounded to the compute dtype")) return ScaleRounding::scaled;
  if (says("rounded to O's dtype"))
    return second_moment ? ScaleRounding::none : ScaleRounding::step;
  if (says("rounded to U's dtype")) return ScaleRounding::step;
  return std::nullopt;
}

// "sqrt(max(r,c)) of each split block" is the same rule.
std::optional<libmuon::ScaleRule> scale_rule(std::string_view text) {
  using libmuon::ScaleRule;
  constexpr Word<ScaleRule> kRules[] = {{"sqrt(max(1,r/c))", ScaleRule::sqrt_max_1_rows_over_cols},
                                        {"0.2*sqrt(max(r,c))", ScaleRule::match_rms_adamw},
                                        {"sqrt(max(r,c))", ScaleRule::sqrt_max},
                                        {"sqrt(r/c)", ScaleRule::sqrt_rows_over_cols},
                                        {"1", ScaleRule::one}};
  constexpr std::string_view kEach = " of each split block";
  if (text.ends_with(kEach)) text.remove_suffix(kEach.size());
  for (const auto& [word, rule] : kRules)
    if (text == word) return rule;
  return std::nullopt;
}

// The case's own numbers, part by part, must be what the settings give.
Result<> check_scale(const MuonSpec& settings, const Shape& shape, const Fields& spec) {
  EBB_TRY_ASSIGN(const Formula formula, formula_of(spec));
  const auto blocks = libmuon::blocks_of(settings, shape);
  const auto& factors = formula.parts.factors;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const double wanted =
        formula.scale * (factors.empty() ? 1 : factors[i % formula.parts.sizes.size()]);
    const double ours = scales_of(settings, shape, {blocks[i].first, 1}).front().scale;
    if (!(std::abs(ours - wanted) <= 1e-9 * std::abs(wanted)))
      return spec.wrong("scale", compose("is {}, its rule gives {}", libmuon::number_text(wanted),
                                         libmuon::number_text(ours)));
  }
  return {};
}

Result<> take_scale(const Fields& spec, MuonSpec& into) {
  EBB_TRY_ASSIGN(const Fields scale, spec.object("scale"));
  const auto text = scale.text("rule");
  if (!text) return text.error();
  const auto rule = scale_rule(*text);
  if (!rule) return scale.wrong("rule", compose("is \"{}\"", *text));
  into.scale = *rule;
  EBB_TRY_ASSIGN(into.scale_factor, scale.number("extra"));
  const auto applied = scale.text("applied_to");
  if (!applied) return applied.error();
  const auto rounding = scale_rounding(*applied, spec.has("second_moment"));
  if (!rounding) return scale.wrong("applied_to", compose("is \"{}\"", *applied));
  into.scale_rounding = *rounding;
  return {};
}

Result<> take_second_moment(const Fields& spec, MuonSpec& into) {
  if (!spec.has("second_moment")) return {};
  EBB_TRY_ASSIGN(const Formula formula, formula_of(spec));
  const SecondMoment& second = formula.second;
  into.second_moment =
      second.always_rows ? libmuon::SecondMoment::rows : libmuon::SecondMoment::longer;
  into.second_beta = second.beta;
  into.second_eps = second.eps;
  into.second_eps_rule = second.clamp ? libmuon::EpsRule::clamp : libmuon::EpsRule::add;
  return {};
}

Result<libmuon::Split> split_of(const Fields& spec) {
  using SplitKind = libmuon::Split::Kind;
  EBB_TRY_ASSIGN(const Formula formula, formula_of(spec));
  const auto& [kind, sizes, factors] = formula.parts;
  libmuon::Split split;
  split.sizes.assign(sizes.begin(), sizes.end());
  split.kind = kind.empty()      ? SplitKind::none
               : kind == "heads" ? SplitKind::heads
               : kind == "rows"  ? SplitKind::rows
                                 : SplitKind::groups;
  return split;
}

}  // namespace

Result<MuonSpec> muon_spec_of(const Fields& spec, const Case& from) {
  using libmuon::Decay;
  MuonSpec into;
  if (from.shape().size() < 2) return spec.wrong("ns", "is of a parameter that is no matrix");
  EBB_TRY_ASSIGN(into.lr, spec.number("lr"));
  EBB_TRY_ASSIGN(into.beta, spec.number("momentum"));
  EBB_TRY_ASSIGN(into.momentum, (meaning_of<libmuon::Momentum>(spec, "momentum_convention",
                                                               {{"ema", libmuon::Momentum::ema},
                                                                {"sum", libmuon::Momentum::sum}})));
  EBB_TRY_ASSIGN(into.nesterov, spec.flag("nesterov"));
  EBB_TRY_ASSIGN(into.weight_decay, spec.number("weight_decay"));
  EBB_TRY_ASSIGN(into.decay, (meaning_of<Decay>(spec, "weight_decay_kind",
                                                {{"decoupled", Decay::decoupled},
                                                 {"independent", Decay::independent},
                                                 {"palm", Decay::palm},
                                                 {"cautious", Decay::cautious},
                                                 {"cautious_lr2", Decay::cautious_lr2},
                                                 {"l2", Decay::l2}})));
  EBB_TRY_ASSIGN(const bool flatten, spec.flag("flatten"));
  into.dims = flatten ? libmuon::Dims::flatten : libmuon::Dims::stack;
  EBB_TRY_ASSIGN(const Fields ns, spec.object("ns"));
  if (from.dtype() == DType::bf16) into.handed = into.weights = Precision::bf16;
  if (spec.has("u_cast")) {
    EBB_TRY_ASSIGN(into.handed, meaning_of(spec, "u_cast", kPrecisions));
  }
  EBB_TRY(take_newton_schulz(ns, into));
  EBB_TRY_ASSIGN(into.split, split_of(spec));
  EBB_TRY(take_scale(spec, into));
  EBB_TRY(take_second_moment(spec, into));
  EBB_TRY(libmuon::check_split(into, from.shape()));
  if (const auto fits = check_scale(into, from.shape(), spec); !fits) {
    if (from.shape().size() < 3) return fits.error();
    // As some codes have it for what they flatten: of the tensor's last two dimensions.
    into.scale_of = libmuon::ScaleOf::last_two;
    EBB_TRY(check_scale(into, from.shape(), spec));
  }
  return into;
}

Result<libmuon::AdamSpec> adam_spec_of(const Fields& spec) {
  EBB_TRY_ASSIGN(const AdamFormula formula, adam_formula_of(spec));
  return libmuon::AdamSpec{.lr = formula.lr,
                           .beta1 = formula.beta1,
                           .beta2 = formula.beta2,
                           .eps = formula.eps,
                           .weight_decay = formula.decay};
}

MuonSpec newton_schulz_alone(MuonSpec spec) {
  spec.lr = 1;
  spec.beta = 0;
  spec.momentum = libmuon::Momentum::ema;
  spec.nesterov = false;
  spec.weight_decay = 0;
  spec.decay = libmuon::Decay::decoupled;
  spec.scale = libmuon::ScaleRule::one;
  spec.scale_factor = 1;
  spec.scale_rounding = libmuon::ScaleRounding::none;
  spec.weights = Precision::fp32;
  spec.dims = libmuon::Dims::stack;
  spec.split = {};
  spec.second_moment = libmuon::SecondMoment::none;
  return spec;
}

}  // namespace ebb::replay
