#include "ebb/formats/conversion/momentum.h"

#include <array>
#include <charconv>
#include <cmath>
#include <map>

#include "ebb/formats/catalog/value_alike.h"
#include "ebb/formats/core/float_cast.h"
#include "ebb/formats/core/json_text.h"
#include "ebb/formats/core/number_text.h"

namespace ebb::formats {

namespace {

const Value* setting(const GroupEntry& group, std::string_view name) {
  for (const auto& [key, value] : group.settings)
    if (key == name) return &value;
  return nullptr;
}

std::optional<double> number_in(const Value* value) {
  if (value == nullptr) return std::nullopt;
  if (value->kind != Value::Kind::string) return number_in(*value);
  return parse_number<double>(value->text);
}

std::optional<MomentumForm> form_in(const Value* value) {
  if (value == nullptr || value->kind != Value::Kind::string) return std::nullopt;
  if (value->text == "ema") return MomentumForm::ema;
  if (value->text == "sum") return MomentumForm::sum;
  return std::nullopt;
}

std::optional<double> beta_of(const GroupEntry& group) {
  for (const std::string_view name : {"momentum", "mu", "beta", "momentum_beta", "muon_momentum"})
    if (const auto beta = number_in(setting(group, name)); beta && *beta >= 0 && *beta < 1)
      return beta;
  return std::nullopt;
}

bool is_momentum(const TensorEntry& tensor) {
  return (tensor.state == "momentum_buffer" || tensor.state == "momentum") &&
         is_floating(tensor.dtype);
}

}  // namespace

std::optional<MomentumForm> momentum_form(const GroupEntry& group, const TensorEntry& tensor) {
  for (const std::string_view name : {kMomentumConvention, std::string_view("momentum")})
    if (const auto said = form_in(setting(group, name))) return said;
  if (const auto dampening = number_in(setting(group, "dampening"))) {
    if (*dampening == 0) return MomentumForm::sum;
    return dampening == beta_of(group) ? std::optional(MomentumForm::ema) : std::nullopt;
  }
  if (tensor.state == "momentum") return MomentumForm::sum;
  if (group.optimizer != "muon") return std::nullopt;
  // Of the optimizers with a momentum_buffer only Moonlight's has Adam's settings under its own.
  return setting(group, "adamw_betas") != nullptr ? MomentumForm::sum : MomentumForm::ema;
}

namespace {

void note_form(GroupEntry& group, MomentumForm form) {
  for (auto& [name, value] : group.settings)
    if (name == kMomentumConvention || (name == "momentum" && form_in(&value))) {
      value = Value::of_string(std::string(name_of(form)));
      return;
    }
  group.settings.emplace_back(std::string(kMomentumConvention),
                              Value::of_string(std::string(name_of(form))));
}

Error refusal(const TensorEntry& tensor, const std::string& why, std::string hint) {
  return {
      Code::unsupported,
      compose("--momentum: '{}' ({}): {}", printable(tensor.name), printable(tensor.state), why),
      std::move(hint)};
}

Result<double> scale_for(const GroupEntry& group, const TensorEntry& tensor,
                         const MomentumRule& rule) {
  const auto known = momentum_form(group, tensor);
  const auto form = known ? known : rule.from;
  if (rule.from && *form != *rule.from)
    return refusal(tensor,
                   compose("it is {}, not {}", *form == MomentumForm::ema ? "an EMA" : "a sum",
                           name_of(*rule.from)),
                   compose("--momentum {} makes it one", name_of(rule.to)));
  if (!form)
    return refusal(tensor, "nothing tells whether its momentum is an EMA or a sum",
                   "--momentum FROM:TO says what it is, as in --momentum sum:ema");
  if (*form == rule.to) return 1.0;
  const auto beta = beta_of(group);
  if (!beta)
    return refusal(tensor, "its group holds no beta (momentum) between 0 and 1",
                   "ckpt-inspect CKPT --groups lists the settings");
  if (rule.to == MomentumForm::sum && tensor.dtype == DType::f16)
    return refusal(tensor, "a sum may be too large for F16",
                   "--dtype '" + tensor.state + "=f32' makes room for it");
  return rule.to == MomentumForm::sum ? 1 / (1 - *beta) : 1 - *beta;
}

std::string text_of(double number) {
  std::array<char, 32> digits{};
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), number);
  return {digits.data(), end.ptr};
}

}  // namespace

std::string_view name_of(MomentumForm form) { return form == MomentumForm::ema ? "ema" : "sum"; }

Result<std::vector<std::string>> change_momentum(const MomentumRule& rule, Catalog& content,
                                                 std::vector<MadeOf>& made_of) {
  std::map<std::string_view, std::size_t> group_of;
  for (std::size_t i = 0; i < content.groups.size(); ++i)
    for (const std::string& name : content.groups[i].params) group_of.emplace(name, i);
  std::map<std::size_t, double> scales;     // of each group with a momentum
  std::map<double, std::uint64_t> changed;  // tensors by scale
  for (std::uint32_t i = 0; i < content.tensors.size(); ++i) {
    const TensorEntry& tensor = content.tensors[i];
    if (!is_momentum(tensor)) continue;
    const auto group = group_of.find(tensor.name);
    if (group == group_of.end())
      return refusal(tensor, "it is in no parameter group, and so its beta is not known",
                     "ckpt-inspect CKPT --groups lists the groups");
    EBB_TRY_ASSIGN(const double scale, scale_for(content.groups[group->second], tensor, rule));
    scales.emplace(group->second, scale);
    made_of[i].scale *= scale;
    if (scale != 1) ++changed[scale];
  }
  if (scales.empty())
    return Error{Code::usage, "--momentum: no tensor of this checkpoint is a momentum"};
  for (const auto& [group, scale] : scales) note_form(content.groups[group], rule.to);
  std::vector<std::string> lines;
  for (const auto& [scale, count] : changed) {
    int exponent = 0;
    const bool exact = std::frexp(scale, &exponent) == 0.5;
    lines.push_back(compose("momentum of {} tensors becomes {}: times {}{}", count,
                            name_of(rule.to), text_of(std::round(1e6 * scale) / 1e6),
                            (exact ? ", exact" : ", rounded once")));
  }
  if (lines.empty())
    lines.push_back(compose("momentum is {} already: its groups say so now", name_of(rule.to)));
  return lines;
}

}  // namespace ebb::formats
