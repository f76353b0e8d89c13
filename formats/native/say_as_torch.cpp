// Sources: torch 2.13's optim/adamw.py and optim/_muon.py. Their optimizers take the settings of a
// group from a checkpoint, and fail in the load, or in a step, where one is missing.
#include <algorithm>
#include <optional>
#include <ranges>
#include <vector>

#include "ebb/formats/conversion/momentum.h"
#include "ebb/formats/core/number_text.h"
#include "ebb/formats/native/ebb.h"

namespace ebb::formats {
namespace {

using Settings = std::vector<std::pair<std::string, Value>>;

Settings::iterator setting_in(Settings& settings, std::string_view name) {
  return std::ranges::find(settings, name, &Settings::value_type::first);
}

// AdamW's, as the engine calls them. Whether they were there.
bool join_betas(Settings& settings) {
  const auto first = setting_in(settings, "beta1"), second = setting_in(settings, "beta2");
  if (first == settings.end() || second == settings.end()) return false;
  *first = {"betas", Value::of_tuple({first->second, second->second})};
  settings.erase(second);
  return true;
}

// "3.4445,-4.775,2.0315".
Value coefficients_in(std::string_view text) {
  std::vector<Value> numbers;
  for (const auto part : text | std::views::split(','))
    if (const auto number = parse_number<double>(std::string_view(part.begin(), part.end())))
      numbers.push_back(Value::of_real(*number));
  return Value::of_tuple(std::move(numbers));
}

// Of Newton-Schulz, where all iterations have the same.
std::optional<Value> join_coefficients(Settings& settings) {
  const auto is_one = [](const auto& setting) { return setting.first.starts_with("ns."); };
  const auto first = std::ranges::find_if(settings, is_one);
  if (first == settings.end()) return std::nullopt;
  const std::string text = first->second.text;
  const bool same = std::ranges::all_of(settings, [&](const auto& setting) {
    return !is_one(setting) || setting.second.text == text;
  });
  if (!same) return std::nullopt;
  std::erase_if(settings, is_one);
  return coefficients_in(text);
}

// What the engine calls Muon's, under torch's names. What torch has no word for stays as it is.
void say_muon(Settings& settings) {
  const auto beta = setting_in(settings, "beta");
  if (beta == settings.end()) return;
  const auto form = setting_in(settings, "momentum");
  if (form != settings.end()) form->first = kMomentumConvention;
  beta->first = "momentum";
  const auto nesterov = setting_in(settings, "nesterov");
  if (nesterov != settings.end()) nesterov->second = Value::of_bool(nesterov->second.text == "yes");
  if (auto coefficients = join_coefficients(settings))
    settings.emplace_back("ns_coefficients", std::move(*coefficients));
  const auto scale = setting_in(settings, "scale");
  if (scale == settings.end()) return;
  if (scale->second.text == "match_rms_adamw")
    settings.emplace_back("adjust_lr_fn", scale->second);
  else if (scale->second.text == "sqrt_max_1_rows_over_cols")
    settings.emplace_back("adjust_lr_fn", Value::of_string("original"));
}

// What else torch.optim.AdamW has in a group.
void add_defaults(Settings& settings) {
  const Value no = Value::of_bool(false);
  const Settings defaults = {{"amsgrad", no},
                             {"maximize", no},
                             {"foreach", {}},
                             {"capturable", no},
                             {"differentiable", no},
                             {"fused", {}},
                             {"decoupled_weight_decay", Value::of_bool(true)}};
  for (const auto& setting : defaults)
    if (setting_in(settings, setting.first) == settings.end()) settings.push_back(setting);
}

}  // namespace

void say_as_torch(Catalog& content) {
  for (GroupEntry& group : content.groups) {
    if (group.optimizer == "muon") say_muon(group.settings);
    if (!join_betas(group.settings)) continue;
    add_defaults(group.settings);
    if (!content.step) continue;
    for (const std::string& param : group.params) content.param_steps.emplace(param, *content.step);
  }
}

}  // namespace ebb::formats
