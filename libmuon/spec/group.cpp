// Specs as the manifest's groups and back.
#include <array>
#include <string>
#include <utility>

#include "ebb/formats/core/number_text.h"
#include "ebb/libmuon/spec/number_text.h"
#include "ebb/libmuon/spec/spec.h"

namespace ebb::libmuon {
namespace {

using formats::native::Group;

template <typename T, std::size_t N>
using Words = std::array<std::pair<std::string_view, T>, N>;

constexpr Words<Momentum, 2> kMomentum = {{{"ema", Momentum::ema}, {"sum", Momentum::sum}}};
constexpr Words<Precision, 2> kPrecision = {{{"fp32", Precision::fp32}, {"bf16", Precision::bf16}}};
constexpr Words<ScaleRule, 2> kScale = {
    {{"sqrt_max_1_rows_over_cols", ScaleRule::sqrt_max_1_rows_over_cols},
     {"match_rms_adamw", ScaleRule::match_rms_adamw}}};
constexpr Words<EpsRule, 2> kEpsRule = {{{"add", EpsRule::add}, {"clamp", EpsRule::clamp}}};
constexpr Words<bool, 2> kSwitch = {{{"no", false}, {"yes", true}}};

template <typename T, std::size_t N>
std::string word_of(const Words<T, N>& words, T value) {
  for (const auto& [word, meaning] : words)
    if (meaning == value) return std::string(word);
  return "?";
}

// Takes settings out of a group by name; finish() refuses what nobody asked for.
class Settings {
 public:
  explicit Settings(const Group& group) : group_(group), taken_(group.settings.size()) {}

  Result<> number(std::string_view name, double& into) {
    EBB_TRY_ASSIGN(const std::string_view text, take(name));
    const auto value = formats::parse_number<double>(text);
    if (!value) return unreadable(name, text, "is not a number");
    into = *value;
    return {};
  }

  Result<> count(std::string_view name, std::size_t most, std::size_t& into) {
    EBB_TRY_ASSIGN(const std::string_view text, take(name));
    const auto value = formats::parse_number<std::size_t>(text);
    if (!value || *value > most)
      return unreadable(name, text, compose("is not a whole number up to {}", most));
    into = *value;
    return {};
  }

  template <typename T, std::size_t N>
  Result<> word(std::string_view name, const Words<T, N>& words, T& into) {
    EBB_TRY_ASSIGN(const std::string_view text, take(name));
    std::string known;
    for (const auto& [word, meaning] : words) {
      if (word == text) {
        into = meaning;
        return {};
      }
      known += known.empty() ? "" : " or ";
      known += word;
    }
    return unreadable(name, text, "is not " + known);
  }

  Result<> coefficients(std::string_view name, Coefficients& into) {
    EBB_TRY_ASSIGN(const std::string_view text, take(name));
    const std::size_t first = text.find(',');
    const std::size_t second = first == text.npos ? text.npos : text.find(',', first + 1);
    if (second != text.npos) {
      const auto a = formats::parse_number<float>(text.substr(0, first));
      const auto b = formats::parse_number<float>(text.substr(first + 1, second - first - 1));
      const auto c = formats::parse_number<float>(text.substr(second + 1));
      if (a && b && c) {
        into = {*a, *b, *c};
        return {};
      }
    }
    return unreadable(name, text, "is not three numbers a,b,c");
  }

  Result<> finish() const {
    for (std::size_t i = 0; i < taken_.size(); ++i)
      if (!taken_[i])
        return fail("setting " + group_.settings[i].first + " is unknown or given twice");
    return {};
  }

 private:
  Result<std::string_view> take(std::string_view name) {
    for (std::size_t i = 0; i < taken_.size(); ++i)
      if (!taken_[i] && group_.settings[i].first == name) {
        taken_[i] = true;
        return std::string_view(group_.settings[i].second);
      }
    return fail(compose("setting {} is missing", name));
  }

  Error fail(const std::string& why) const {
    return {Code::unsupported, compose("group of optimizer {}: {}", group_.optimizer, why)};
  }
  Error unreadable(std::string_view name, std::string_view text, const std::string& why) const {
    return fail(compose("setting {} = {} {}", name, text, why));
  }

  const Group& group_;
  std::vector<bool> taken_;
};

Result<> check_optimizer(const Group& group, std::string_view wanted) {
  if (group.optimizer == wanted) return {};
  return Error{Code::unsupported,
               compose("group of optimizer {} where {} is expected", group.optimizer, wanted)};
}

std::string step_name(std::size_t index) { return compose("ns.{}", index + 1); }

}  // namespace

Group to_group(const MuonSpec& spec) {
  Group group{.optimizer = "muon",
              .settings = {{"lr", number_text(spec.lr)},
                           {"beta", number_text(spec.beta)},
                           {"momentum", word_of(kMomentum, spec.momentum)},
                           {"nesterov", word_of(kSwitch, spec.nesterov)},
                           {"weight_decay", number_text(spec.weight_decay)},
                           {"eps", number_text(spec.eps)},
                           {"eps_rule", word_of(kEpsRule, spec.eps_rule)},
                           {"precision", word_of(kPrecision, spec.precision)},
                           {"scale", word_of(kScale, spec.scale)},
                           {"ns_steps", number_text(spec.iterations.size())}}};
  for (std::size_t i = 0; i < spec.iterations.size(); ++i) {
    const Coefficients& step = spec.iterations[i];
    group.settings.emplace_back(step_name(i), compose("{},{},{}", number_text(step.a),
                                                      number_text(step.b), number_text(step.c)));
  }
  return group;
}

Group to_group(const AdamSpec& spec) {
  return {.optimizer = "adamw",
          .settings = {{"lr", number_text(spec.lr)},
                       {"beta1", number_text(spec.beta1)},
                       {"beta2", number_text(spec.beta2)},
                       {"eps", number_text(spec.eps)},
                       {"weight_decay", number_text(spec.weight_decay)}}};
}

Result<MuonSpec> muon_from(const Group& group) {
  EBB_TRY(check_optimizer(group, "muon"));
  Settings settings(group);
  MuonSpec spec;
  EBB_TRY(settings.number("lr", spec.lr));
  EBB_TRY(settings.number("beta", spec.beta));
  EBB_TRY(settings.word("momentum", kMomentum, spec.momentum));
  EBB_TRY(settings.word("nesterov", kSwitch, spec.nesterov));
  EBB_TRY(settings.number("weight_decay", spec.weight_decay));
  EBB_TRY(settings.number("eps", spec.eps));
  EBB_TRY(settings.word("eps_rule", kEpsRule, spec.eps_rule));
  EBB_TRY(settings.word("precision", kPrecision, spec.precision));
  EBB_TRY(settings.word("scale", kScale, spec.scale));
  std::size_t steps = 0;
  EBB_TRY(settings.count("ns_steps", kMaxIterations, steps));
  spec.iterations.resize(steps);
  for (std::size_t i = 0; i < steps; ++i)
    EBB_TRY(settings.coefficients(step_name(i), spec.iterations[i]));
  EBB_TRY(settings.finish());
  EBB_TRY(validate(spec));
  return spec;
}

Result<AdamSpec> adam_from(const Group& group) {
  EBB_TRY(check_optimizer(group, "adamw"));
  Settings settings(group);
  AdamSpec spec;
  EBB_TRY(settings.number("lr", spec.lr));
  EBB_TRY(settings.number("beta1", spec.beta1));
  EBB_TRY(settings.number("beta2", spec.beta2));
  EBB_TRY(settings.number("eps", spec.eps));
  EBB_TRY(settings.number("weight_decay", spec.weight_decay));
  EBB_TRY(settings.finish());
  EBB_TRY(validate(spec));
  return spec;
}

}  // namespace ebb::libmuon
