#include "tests/replay/formula.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "ebb/formats/core/compose.h"

namespace ebb::replay {
namespace {

Result<std::string> one_of(const Fields& fields, std::string_view name,
                           const std::vector<std::string_view>& words) {
  EBB_TRY_ASSIGN(std::string text, fields.text(name));
  if (std::ranges::find(words, text) != words.end()) return text;
  std::string known;
  for (const std::string_view word : words)
    known += compose("{}{}", known.empty() ? "" : ", ", word);
  return fields.wrong(name, compose("is {}; known are {}", text, known));
}

Result<NewtonSchulz> newton_schulz_of(const Fields& fields) {
  NewtonSchulz ns;
  EBB_TRY_ASSIGN(ns.coefficients, fields.rows("coefficients"));
  for (const Numbers& step : ns.coefficients)
    if (step.size() != 3) return fields.wrong("coefficients", "are not three an iteration");
  EBB_TRY_ASSIGN(ns.norm_factor, fields.number("norm_factor"));
  EBB_TRY_ASSIGN(ns.eps, fields.number("eps"));
  EBB_TRY_ASSIGN(const std::string rule, one_of(fields, "eps_rule", {"add", "clamp"}));
  ns.clamp = rule == "clamp";
  return ns;
}

Result<Parts> parts_of(const Fields& spec) {
  Parts parts;
  if (!spec.has("split")) return parts;
  EBB_TRY_ASSIGN(const Fields split, spec.object("split"));
  EBB_TRY_ASSIGN(parts.kind, one_of(split, "kind", {"heads", "rows", "qkv"}));
  if (parts.kind == "heads") {
    EBB_TRY_ASSIGN(const std::uint64_t heads, split.count("heads"));
    parts.sizes = {heads};
    return parts;
  }
  EBB_TRY_ASSIGN(parts.sizes, split.counts("sizes"));
  EBB_TRY_ASSIGN(parts.factors, split.numbers("factors"));
  if (parts.factors.size() != parts.sizes.size())
    return split.wrong("factors", "are not as many as sizes");
  return parts;
}

// Which of two words it is: the first?
Result<bool> is_first(const Fields& fields, std::string_view name, std::string_view first,
                      std::string_view second) {
  EBB_TRY_ASSIGN(const std::string text, one_of(fields, name, {first, second}));
  return text == first;
}

Result<SecondMoment> second_moment_of(const Fields& spec) {
  SecondMoment second;
  if (!spec.has("second_moment")) return second;
  second.kept = true;
  EBB_TRY_ASSIGN(const Fields fields, spec.object("second_moment"));
  EBB_TRY_ASSIGN(second.always_rows, is_first(fields, "reduce", "cols", "longer"));
  EBB_TRY_ASSIGN(second.beta, fields.number("beta2"));
  EBB_TRY_ASSIGN(second.eps, fields.number("eps"));
  EBB_TRY_ASSIGN(second.clamp, is_first(fields, "eps_rule", "clamp", "sqrt+eps"));
  return second;
}

// C = A op(B) with A m x k, added to beta C.
void product(std::size_t m, std::size_t k, std::size_t n, const Numbers& a, const Numbers& b,
             double beta, Numbers& c) {
  for (double& value : c) value *= beta;
  for (std::size_t i = 0; i < m; ++i)
    for (std::size_t l = 0; l < k; ++l)
      for (std::size_t j = 0; j < n; ++j) c[i * n + j] += a[i * k + l] * b[l * n + j];
}

Numbers transposed(std::size_t rows, std::size_t cols, const Numbers& from) {
  Numbers to(from.size());
  for (std::size_t r = 0; r < rows; ++r)
    for (std::size_t c = 0; c < cols; ++c) to[c * rows + r] = from[r * cols + c];
  return to;
}

// The rows of each part of a matrix, by part.
std::vector<std::vector<std::uint64_t>> rows_of(const Parts& parts, std::uint64_t rows) {
  std::vector<std::vector<std::uint64_t>> all;
  std::vector<std::uint64_t> sizes = parts.sizes;
  if (parts.kind.empty()) sizes = {rows};
  if (parts.kind == "heads") sizes.assign(parts.sizes[0], rows / parts.sizes[0]);
  all.resize(sizes.size());
  std::uint64_t row = 0;
  do {  // once, or group after group
    for (std::size_t part = 0; part < sizes.size(); ++part)
      for (std::uint64_t i = 0; i < sizes[part] && row < rows; ++i) all[part].push_back(row++);
  } while (parts.kind == "qkv" && row < rows);
  return all;
}

}  // namespace

Result<Formula> formula_of(const Fields& spec) {
  Formula formula;
  EBB_TRY_ASSIGN(formula.lr, spec.number("lr"));
  EBB_TRY_ASSIGN(formula.beta, spec.number("momentum"));
  EBB_TRY_ASSIGN(const std::string momentum, one_of(spec, "momentum_convention", {"ema", "sum"}));
  formula.ema = momentum == "ema";
  EBB_TRY_ASSIGN(formula.nesterov, spec.flag("nesterov"));
  EBB_TRY_ASSIGN(formula.decay, spec.number("weight_decay"));
  EBB_TRY_ASSIGN(formula.decay_kind,
                 one_of(spec, "weight_decay_kind",
                        {"decoupled", "independent", "palm", "cautious", "cautious_lr2", "l2"}));
  EBB_TRY_ASSIGN(formula.flatten, spec.flag("flatten"));
  EBB_TRY_ASSIGN(const Fields ns, spec.object("ns"));
  EBB_TRY_ASSIGN(formula.ns, newton_schulz_of(ns));
  EBB_TRY_ASSIGN(const Fields scale, spec.object("scale"));
  EBB_TRY_ASSIGN(formula.scale, scale.number("value"));
  EBB_TRY_ASSIGN(formula.parts, parts_of(spec));
  EBB_TRY_ASSIGN(formula.second, second_moment_of(spec));
  return formula;
}

Numbers newton_schulz(const NewtonSchulz& ns, std::uint64_t rows, std::uint64_t cols, Numbers x) {
  double squares = 0;
  for (const double value : x) squares += value * value;
  const double norm = ns.norm_factor * std::sqrt(squares);
  const double divisor = ns.clamp ? std::max(norm, ns.eps) : norm + ns.eps;
  for (double& value : x) value = divisor > 0 ? value / divisor : 0;
  const bool tall = rows > cols;
  const std::size_t m = std::min(rows, cols), n = std::max(rows, cols);
  if (tall) x = transposed(rows, cols, x);
  Numbers a(m * m), b(m * m);
  for (const Numbers& step : ns.coefficients) {
    product(m, n, m, x, transposed(m, n, x), 0, a);
    product(m, m, m, a, a, 0, b);
    for (std::size_t i = 0; i < b.size(); ++i) b[i] = step[1] * a[i] + step[2] * b[i];
    const Numbers before = x;
    product(m, m, n, b, before, step[0], x);
  }
  return tall ? transposed(m, n, x) : x;
}

// Each row, or column, divided by the root of the mean of its squares, as it is on average over the
// steps; the Frobenius norm is kept.
Numbers Witness::normalised(std::size_t block, std::size_t rows, std::size_t cols, Numbers o) {
  const SecondMoment& rule = formula_.second;
  if (!rule.kept) return o;
  const bool of_rows = rule.always_rows || rows >= cols;
  Numbers& v = second_[block];
  v.resize(of_rows ? rows : cols);
  const auto of = [&](std::size_t i) { return of_rows ? i / cols : i % cols; };
  Numbers means(v.size());
  double before = 0, behind = 0;
  for (std::size_t i = 0; i < o.size(); ++i) {
    means[of(i)] += o[i] * o[i] / static_cast<double>(of_rows ? cols : rows);
    before += o[i] * o[i];
  }
  for (std::size_t i = 0; i < v.size(); ++i) v[i] += (1 - rule.beta) * (means[i] - v[i]);
  for (std::size_t i = 0; i < o.size(); ++i) {
    const double kept = v[of(i)];
    o[i] /= rule.clamp ? std::sqrt(std::max(kept, rule.eps)) : std::sqrt(kept) + rule.eps;
    behind += o[i] * o[i];
  }
  const double ratio = std::sqrt(before) / std::max(std::sqrt(behind), rule.eps);
  for (double& value : o) value *= ratio;
  return o;
}

Numbers Witness::orthogonal(const Numbers& u) {
  const bool flat = formula_.flatten;
  const std::size_t first = flat ? 0 : shape_.size() - 2;
  const std::uint64_t rows = shape_[first];
  const std::uint64_t cols =
      std::accumulate(shape_.begin() + static_cast<std::ptrdiff_t>(first) + 1, shape_.end(),
                      std::uint64_t{1}, std::multiplies<>());
  const auto parts = rows_of(formula_.parts, rows);
  Numbers o(u.size());
  for (std::size_t matrix = 0; matrix < u.size() / (rows * cols); ++matrix)
    for (std::size_t part = 0; part < parts.size(); ++part) {
      Numbers x;
      const auto place = [&](std::uint64_t row) { return (matrix * rows + row) * cols; };
      for (const std::uint64_t row : parts[part])
        x.insert(x.end(), u.begin() + static_cast<std::ptrdiff_t>(place(row)),
                 u.begin() + static_cast<std::ptrdiff_t>(place(row) + cols));
      x = newton_schulz(formula_.ns, parts[part].size(), cols, std::move(x));
      x = normalised(matrix * parts.size() + part, parts[part].size(), cols, std::move(x));
      const auto& factors = formula_.parts.factors;
      const double scale = formula_.scale * (factors.empty() ? 1 : factors[part]);
      for (std::size_t i = 0; i < x.size(); ++i)
        o[place(parts[part][i / cols]) + i % cols] = scale * x[i];
    }
  return o;
}

void Witness::step(const std::vector<float>& gradient) {
  const auto& [lr, b, decay, scale, ema, nesterov, flatten, kind, ns, parts, second] = formula_;
  const double take = ema ? 1 - b : 1;
  Numbers u(param_.size());
  for (std::size_t i = 0; i < u.size(); ++i) {
    const double g = double{gradient[i]} + (kind == "l2" ? decay * param_[i] : 0);
    momentum_[i] = b * momentum_[i] + take * g;
    u[i] = nesterov ? b * momentum_[i] + take * g : momentum_[i];
  }
  const Numbers o = orthogonal(u);
  for (std::size_t i = 0; i < u.size(); ++i) {
    double& p = param_[i];
    const bool agree = p * o[i] >= 0;
    double off = lr * decay;
    if (kind == "independent") off = decay;
    if (kind == "l2") off = 0;
    if (kind == "palm") off = lr * lr * decay;
    if (kind == "cautious_lr2") off = lr * scale * lr * decay;
    if (kind.starts_with("cautious") && !agree) off = 0;
    p = p * (1 - off) - lr * o[i];
  }
}

Result<AdamFormula> adam_formula_of(const Fields& spec) {
  AdamFormula formula;
  EBB_TRY_ASSIGN(formula.lr, spec.number("lr"));
  EBB_TRY_ASSIGN(formula.beta1, spec.number("beta1"));
  EBB_TRY_ASSIGN(formula.beta2, spec.number("beta2"));
  EBB_TRY_ASSIGN(formula.eps, spec.number("eps"));
  EBB_TRY_ASSIGN(formula.decay, spec.number("weight_decay"));
  EBB_TRY(one_of(spec, "weight_decay_kind", {"decoupled"}));
  EBB_TRY(one_of(spec, "eps_place", {"added to sqrt(v)/sqrt(1-beta2^t)"}));
  if (spec.has("amsgrad")) {
    EBB_TRY_ASSIGN(const bool amsgrad, spec.flag("amsgrad"));
    if (amsgrad) return spec.wrong("amsgrad", "is true: that is not AdamW's formula");
  }
  return formula;
}

void AdamWitness::step(const std::vector<float>& gradient) {
  const auto& [lr, b1, b2, eps, decay] = formula_;
  const auto t = static_cast<double>(++steps_);
  const double bias1 = 1 - std::pow(b1, t), bias2 = std::sqrt(1 - std::pow(b2, t));
  for (std::size_t i = 0; i < param_.size(); ++i) {
    const double g = double{gradient[i]};
    first_[i] = b1 * first_[i] + (1 - b1) * g;
    second_[i] = b2 * second_[i] + (1 - b2) * g * g;
    param_[i] *= 1 - lr * decay;
    param_[i] -= lr / bias1 * first_[i] / (std::sqrt(second_[i]) / bias2 + eps);
  }
}

}  // namespace ebb::replay
