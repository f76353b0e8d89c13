#include <algorithm>

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

// What else torch.optim.AdamW has in a group: it loads none that lacks one.
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
    if (!join_betas(group.settings)) continue;
    add_defaults(group.settings);
    if (!content.step) continue;
    for (const std::string& param : group.params) content.param_steps.emplace(param, *content.step);
  }
}

}  // namespace ebb::formats
