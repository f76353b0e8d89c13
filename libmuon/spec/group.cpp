// Specs as the manifest's groups and back.
#include <array>
#include <string>
#include <utility>

#include "ebb/formats/core/nearest.h"
#include "ebb/formats/core/number_text.h"
#include "ebb/libmuon/spec/number_text.h"
#include "ebb/libmuon/spec/spec.h"
#include "ebb/libmuon/spec/words.h"

namespace ebb::libmuon {
namespace {

using formats::native::Group;

template <typename T>
struct Word {
  std::string_view word;
  T meaning;
};

// By type: what the text calls its values.
template <typename T>
constexpr std::array<Word<T>, 0> kWords = {};
template <>
constexpr std::array<Word<Momentum>, 2> kWords<Momentum> = {
    {{"ema", Momentum::ema}, {"sum", Momentum::sum}}};
template <>
constexpr std::array<Word<Decay>, 6> kWords<Decay> = {{{"decoupled", Decay::decoupled},
                                                       {"independent", Decay::independent},
                                                       {"palm", Decay::palm},
                                                       {"cautious", Decay::cautious},
                                                       {"cautious_lr2", Decay::cautious_lr2},
                                                       {"l2", Decay::l2}}};
template <>
constexpr std::array<Word<Precision>, 4> kWords<Precision> = {{{"fp32", Precision::fp32},
                                                               {"bf16", Precision::bf16},
                                                               {"fp16", Precision::fp16},
                                                               {"tf32", Precision::tf32}}};
template <>
constexpr std::array<Word<Rounding>, 3> kWords<Rounding> = {
    {{"fused", Rounding::fused},
     {"each", Rounding::each},
     {"each_product_first", Rounding::each_product_first}}};
template <>
constexpr std::array<Word<Form>, 2> kWords<Form> = {
    {{"standard", Form::standard}, {"gram", Form::gram}}};
template <>
constexpr std::array<Word<EpsRule>, 2> kWords<EpsRule> = {
    {{"add", EpsRule::add}, {"clamp", EpsRule::clamp}}};
template <>
constexpr std::array<Word<NormOf>, 3> kWords<NormOf> = {
    {{"update", NormOf::update}, {"rounded", NormOf::rounded}, {"handed", NormOf::handed}}};
template <>
constexpr std::array<Word<ScaleRule>, 5> kWords<ScaleRule> = {
    {{"sqrt_max_1_rows_over_cols", ScaleRule::sqrt_max_1_rows_over_cols},
     {"match_rms_adamw", ScaleRule::match_rms_adamw},
     {"sqrt_max", ScaleRule::sqrt_max},
     {"sqrt_rows_over_cols", ScaleRule::sqrt_rows_over_cols},
     {"one", ScaleRule::one}}};
template <>
constexpr std::array<Word<ScaleOf>, 2> kWords<ScaleOf> = {
    {{"matrix", ScaleOf::matrix}, {"last_two", ScaleOf::last_two}}};
template <>
constexpr std::array<Word<ScaleRounding>, 4> kWords<ScaleRounding> = {
    {{"none", ScaleRounding::none},
     {"scaled", ScaleRounding::scaled},
     {"step", ScaleRounding::step},
     {"handed", ScaleRounding::handed}}};
template <>
constexpr std::array<Word<Orientation>, 2> kWords<Orientation> = {
    {{"rows_out", Orientation::rows_out}, {"cols_out", Orientation::cols_out}}};
template <>
constexpr std::array<Word<SecondMoment>, 3> kWords<SecondMoment> = {
    {{"none", SecondMoment::none}, {"rows", SecondMoment::rows}, {"longer", SecondMoment::longer}}};
template <>
constexpr std::array<Word<Dims>, 3> kWords<Dims> = {
    {{"stack", Dims::stack}, {"flatten", Dims::flatten}, {"flatten_4", Dims::flatten_4}}};
template <>
constexpr std::array<Word<Split::Kind>, 4> kWords<Split::Kind> = {
    {{"none", Split::Kind::none},
     {"heads", Split::Kind::heads},
     {"rows", Split::Kind::rows},
     {"groups", Split::Kind::groups}}};
template <>
constexpr std::array<Word<Out>, 2> kWords<Out> = {
    {{"weights", Out::weights}, {"update", Out::update}}};
template <>
constexpr std::array<Word<bool>, 2> kWords<bool> = {{{"no", false}, {"yes", true}}};

template <typename T>
concept Worded = !kWords<T>.empty();

template <Worded T>
std::string word_of(T value) {
  for (const auto& [word, meaning] : kWords<T>)
    if (meaning == value) return std::string(word);
  return "?";
}

template <typename T>
std::string listed_words() {
  std::string all;
  for (const auto& [word, meaning] : kWords<T>) (all += all.empty() ? "" : " or ") += word;
  return all;
}

// "1,2,3".
template <typename T>
std::string list_text(const std::vector<T>& numbers) {
  std::string text;
  for (const T number : numbers) text += (text.empty() ? "" : ",") + number_text(number);
  return text;
}

template <typename T>
std::optional<std::vector<T>> parse_list(std::string_view text) {
  std::vector<T> numbers;
  while (!text.empty()) {
    const std::size_t comma = std::min(text.find(','), text.size());
    const auto number = formats::parse_number<T>(text.substr(0, comma));
    if (!number || comma + 1 == text.size() || numbers.size() == kMaxParts) return std::nullopt;
    numbers.push_back(*number);
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  return numbers;
}

std::string text_of(double value) { return number_text(value); }
template <Worded T>
std::string text_of(T value) {
  return word_of(value);
}
std::string text_of(const std::vector<std::uint32_t>& list) {
  return list.empty() ? "none" : list_text(list);
}
std::string text_of(const Split& split) {
  const std::string kind = word_of(split.kind);
  return split.sizes.empty() ? kind : kind + " " + list_text(split.sizes);
}
std::string text_of(const Coefficients& step) {
  return list_text(std::vector<float>{step.a, step.b, step.c});
}

// What is wrong with the text; "" if nothing is.
std::string read(std::string_view text, double& into) {
  const auto value = formats::parse_number<double>(text);
  if (value) into = *value;
  return value ? "" : "is not a number";
}
template <Worded T>
std::string read(std::string_view text, T& into) {
  for (const auto& [word, meaning] : kWords<T>)
    if (word == text) {
      into = meaning;
      return {};
    }
  return "is not " + listed_words<T>();
}
std::string read(std::string_view text, std::vector<std::uint32_t>& into) {
  const auto list = parse_list<std::uint32_t>(text == "none" ? "" : text);
  if (list) into = *list;
  return list ? "" : "is not whole numbers such as 2,4, or none";
}
std::string read(std::string_view text, Split& into) {
  const std::size_t space = std::min(text.find(' '), text.size());
  const auto sizes = parse_list<std::uint32_t>(text.substr(std::min(space + 1, text.size())));
  if (!sizes || !read(text.substr(0, space), into.kind).empty())
    return "is not none, heads 8, rows 8,4,4 or groups 8,4,4";
  into.sizes = *sizes;
  return {};
}
std::string read(std::string_view text, Coefficients& into) {
  const auto list = parse_list<float>(text);
  if (!list || list->size() != 3) return "is not three numbers a,b,c";
  into = {(*list)[0], (*list)[1], (*list)[2]};
  return {};
}

std::string step_name(std::size_t index) { return compose("ns.{}", index + 1); }

// All settings of a spec, in the order of a group. `at` takes a name and a value; what came with a
// later version is `at.later`: where it is missing, the spec has what it meant before.
template <typename Spec, typename At>
Result<> each_muon_setting(Spec& spec, At& at) {
  EBB_TRY(at("lr", spec.lr));
  EBB_TRY(at("beta", spec.beta));
  EBB_TRY(at("momentum", spec.momentum));
  EBB_TRY(at("nesterov", spec.nesterov));
  EBB_TRY(at("weight_decay", spec.weight_decay));
  EBB_TRY(at("eps", spec.eps));
  EBB_TRY(at("eps_rule", spec.eps_rule));
  EBB_TRY(at("precision", spec.precision));
  EBB_TRY(at("scale", spec.scale));
  EBB_TRY(at.later("decay", spec.decay));
  EBB_TRY(at.later("norm_factor", spec.norm_factor));
  EBB_TRY(at.later("norm_of", spec.norm_of));
  EBB_TRY(at.later("rounding", spec.rounding));
  EBB_TRY(at.later("handed", spec.handed));
  EBB_TRY(at.later("form", spec.form));
  EBB_TRY(at.later("restarts", spec.restarts));
  EBB_TRY(at.later("scale_factor", spec.scale_factor));
  EBB_TRY(at.later("scale_of", spec.scale_of));
  EBB_TRY(at.later("scale_rounding", spec.scale_rounding));
  EBB_TRY(at.later("weights", spec.weights));
  EBB_TRY(at.later("orientation", spec.orientation));
  EBB_TRY(at.later("dims", spec.dims));
  EBB_TRY(at.later("split", spec.split));
  EBB_TRY(at.later("second_moment", spec.second_moment));
  EBB_TRY(at.later("second_beta", spec.second_beta));
  EBB_TRY(at.later("second_eps", spec.second_eps));
  EBB_TRY(at.later("second_eps_rule", spec.second_eps_rule));
  EBB_TRY(at.later("out", spec.out));
  EBB_TRY(at.count("ns_steps", spec.iterations));
  for (std::size_t i = 0; i < spec.iterations.size(); ++i)
    EBB_TRY(at(step_name(i), spec.iterations[i]));
  return {};
}

template <typename Spec, typename At>
Result<> each_adam_setting(Spec& spec, At& at) {
  EBB_TRY(at("lr", spec.lr));
  EBB_TRY(at("beta1", spec.beta1));
  EBB_TRY(at("beta2", spec.beta2));
  EBB_TRY(at("eps", spec.eps));
  EBB_TRY(at("weight_decay", spec.weight_decay));
  return {};
}

struct Writer {
  Group& group;

  template <typename T>
  Result<> operator()(std::string name, const T& value) {
    group.settings.emplace_back(std::move(name), text_of(value));
    return {};
  }
  template <typename T>
  Result<> later(std::string name, const T& value) {
    return (*this)(std::move(name), value);
  }
  template <typename T>
  Result<> count(std::string name, const std::vector<T>& list) {
    group.settings.emplace_back(std::move(name), number_text(list.size()));
    return {};
  }
};

// That what has words is one of them.
struct WordCheck {
  template <typename T>
  Result<> operator()(std::string_view name, const T& value) const {
    return known(name, value);
  }
  template <typename T>
  Result<> later(std::string_view name, const T& value) const {
    return known(name, value);
  }
  template <typename T>
  Result<> count(std::string_view /*name*/, const std::vector<T>& /*list*/) const {
    return {};
  }

 private:
  template <typename T>
  static Result<> known(std::string_view /*name*/, const T& /*value*/) {
    return {};
  }
  template <Worded T>
  static Result<> known(std::string_view name, const T& value) {
    for (const auto& [word, meaning] : kWords<T>)
      if (meaning == value) return {};
    return Error{
        Code::usage,
        compose("setting {} = {} is none of its values", name, static_cast<unsigned>(value)),
        compose("it may be {}", listed_words<T>())};
  }
  static Result<> known(std::string_view name, const Split& split) {
    return known(name, split.kind);
  }
};

// Takes settings out of a group by name; finish() refuses what nobody asked for.
class Reader {
 public:
  explicit Reader(const Group& group) : group_(group), taken_(group.settings.size()) {}

  template <typename T>
  Result<> operator()(const std::string& name, T& into) {
    EBB_TRY_ASSIGN(const std::string_view text, take(name));
    return understood(name, text, read(text, into));
  }
  template <typename T>
  Result<> later(const std::string& name, T& into) {
    const auto text = find(name);
    return text ? understood(name, *text, read(*text, into)) : Result<>();
  }
  template <typename T>
  Result<> count(const std::string& name, std::vector<T>& list) {
    EBB_TRY_ASSIGN(const std::string_view text, take(name));
    const auto value = formats::parse_number<std::size_t>(text);
    const bool fits = value && *value <= kMaxIterations;
    if (fits) list.resize(*value);
    return understood(name, text,
                      fits ? "" : compose("is not a whole number up to {}", kMaxIterations));
  }

  Result<> finish() const {
    for (std::size_t i = 0; i < taken_.size(); ++i) {
      if (taken_[i]) continue;
      const std::string& name = group_.settings[i].first;
      Error error = refuse("setting " + name + " is unknown or given twice");
      if (const auto meant = formats::nearest(name, missing_))
        error.hint = compose("did you mean {}?", *meant);
      return error;
    }
    return {};
  }

 private:
  std::optional<std::string_view> find(const std::string& name) {
    for (std::size_t i = 0; i < taken_.size(); ++i)
      if (!taken_[i] && group_.settings[i].first == name) {
        taken_[i] = true;
        return std::string_view(group_.settings[i].second);
      }
    missing_.push_back(name);
    return std::nullopt;
  }
  Result<std::string_view> take(const std::string& name) {
    if (const auto text = find(name)) return *text;
    return refuse(compose("setting {} is missing", name));
  }
  Result<> understood(std::string_view name, std::string_view text,
                      const std::string& wrong) const {
    if (wrong.empty()) return {};
    return refuse(compose("setting {} = {} {}", name, text, wrong));
  }
  Error refuse(const std::string& why) const {
    return {Code::unsupported, compose("group of optimizer {}: {}", group_.optimizer, why)};
  }

  const Group& group_;
  std::vector<bool> taken_;
  std::vector<std::string> missing_;
};

Result<> check_optimizer(const Group& group, std::string_view wanted) {
  if (group.optimizer == wanted) return {};
  return Error{Code::unsupported,
               compose("group of optimizer {} where {} is expected", group.optimizer, wanted)};
}

}  // namespace

Result<> check_words(const MuonSpec& spec) {
  const WordCheck check;
  return each_muon_setting(spec, check);
}

Group to_group(const MuonSpec& spec) {
  Group group{.optimizer = "muon", .settings = {}};
  Writer writer{group};
  EBB_CHECK(each_muon_setting(spec, writer).has_value());
  return group;
}

Group to_group(const AdamSpec& spec) {
  Group group{.optimizer = "adamw", .settings = {}};
  Writer writer{group};
  EBB_CHECK(each_adam_setting(spec, writer).has_value());
  return group;
}

Result<MuonSpec> muon_from(const Group& group) {
  EBB_TRY(check_optimizer(group, "muon"));
  Reader reader(group);
  MuonSpec spec;
  EBB_TRY(each_muon_setting(spec, reader));
  EBB_TRY(reader.finish());
  EBB_TRY(validate(spec));
  return spec;
}

Result<AdamSpec> adam_from(const Group& group) {
  EBB_TRY(check_optimizer(group, "adamw"));
  Reader reader(group);
  AdamSpec spec;
  EBB_TRY(each_adam_setting(spec, reader));
  EBB_TRY(reader.finish());
  EBB_TRY(validate(spec));
  return spec;
}

}  // namespace ebb::libmuon
