// The settings of a model's groups by name, and those of them that may change between steps.
#include <algorithm>
#include <array>
#include <utility>

#include "ebb/formats/core/nearest.h"
#include "ebb/libmuon/spec/number_text.h"
#include "ebb/libmuon/step/settings.h"

namespace ebb::libmuon {

using formats::native::Group;

namespace {

// No memory is planned by them, and no state means anything else.
constexpr std::array<std::string_view, 7> kOfEveryStep = {
    "lr", "weight_decay", "beta", "second_beta", "beta1", "beta2", "eps"};

// What somebody may look for in a group.
struct Elsewhere {
  std::string_view name, where;
};
constexpr std::array kSetElsewhere = {
    Elsewhere{"max_norm", "StepArgs takes it with every step"},
    Elsewhere{"inv_scale", "StepArgs takes it with every step"},
    Elsewhere{"budget_bytes", "EngineConfig takes it when the engine is opened"},
    Elsewhere{"tile_bytes", "EngineConfig takes it when the engine is opened"},
    Elsewhere{"chunk_bytes", "EngineConfig takes it when the engine is opened"},
    Elsewhere{"slots", "EngineConfig takes it when the engine is opened"},
    Elsewhere{"threads", "EngineConfig takes it when the engine is opened"},
};

Group named(const GroupSpec& spec) {
  return std::visit([](const auto& one) { return to_group(one); }, spec);
}

auto setting_of(Group& group, std::string_view name) {
  return std::ranges::find(group.settings, name,
                           [](const auto& setting) -> std::string_view { return setting.first; });
}

std::string where_it_is(const ModelSpec& model, const Group& group, std::string_view name) {
  for (const auto& [other, where] : kSetElsewhere)
    if (other == name) return std::string(where);
  for (std::size_t i = 0; i < model.groups.size(); ++i)
    if (Group other = named(model.groups[i]); setting_of(other, name) != other.settings.end())
      return compose("group {} is {} and has it", i, other.optimizer);
  std::vector<std::string> names;
  for (const auto& [known, value] : group.settings) names.push_back(known);
  const auto meant = formats::nearest(name, names);
  return meant ? compose("did you mean {}?", *meant) : std::string();
}

template <typename Spec, typename Read>
Result<> take(GroupSpec& into, const Group& group, const Read& read) {
  EBB_TRY_ASSIGN(Spec spec, read(group));
  into = std::move(spec);
  return {};
}

}  // namespace

Result<> change(ModelSpec& model, std::uint32_t number, std::string_view name, double value) {
  if (number >= model.groups.size())
    return Error{Code::usage, compose("there is no group {}", number)};
  GroupSpec& spec = model.groups[number];
  Group group = named(spec);
  const auto setting = setting_of(group, name);
  const std::string what = compose("group {} ({})", number, group.optimizer);
  if (setting == group.settings.end())
    return Error{Code::usage, compose("{} has no setting {}", what, name),
                 where_it_is(model, group, name)};
  if (std::ranges::find(kOfEveryStep, name) == kOfEveryStep.end())
    return Error{Code::unsupported, compose("{}: {} does not change between steps", what, name),
                 "EngineConfig::model takes it when the engine is opened"};
  setting->second = number_text(value);
  return std::holds_alternative<MuonSpec>(spec) ? take<MuonSpec>(spec, group, muon_from)
                                                : take<AdamSpec>(spec, group, adam_from);
}

std::vector<Setting> settings_of_every_step(const ModelSpec& model) {
  std::vector<Setting> settings;
  for (std::size_t i = 0; i < model.groups.size(); ++i) {
    const Group group = named(model.groups[i]);
    for (const auto& [name, value] : group.settings)
      if (std::ranges::find(kOfEveryStep, name) != kOfEveryStep.end())
        settings.push_back({compose("{} of group {}", name, i), value});
  }
  return settings;
}

Result<Group> group_of(const ModelSpec& model, std::uint32_t group) {
  if (group >= model.groups.size())
    return Error{Code::usage, compose("there is no group {}", group)};
  return named(model.groups[group]);
}

}  // namespace ebb::libmuon
