#include "ebb/formats/state_dict/groups.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <map>
#include <unordered_map>

#include "ebb/formats/catalog/key_path.h"
#include "ebb/formats/core/number_text.h"
#include "ebb/formats/state_dict/plain_numbers.h"

namespace ebb::formats {
namespace {

// Where `word` stands between dots in `key`; npos when it does not.
std::size_t word_at(std::string_view key, std::string_view word) {
  for (std::size_t at = key.find(word); at != std::string_view::npos; at = key.find(word, at + 1)) {
    const std::size_t end = at + word.size();
    if ((at == 0 || key[at - 1] == '.') && (end == key.size() || key[end] == '.')) return at;
  }
  return std::string_view::npos;
}

void add_setting(GroupEntry& group, const std::string& name, const Value& value) {
  if (name != "params") {
    group.settings.emplace_back(name, value);
    return;
  }
  for (const Value& item : value.items)
    group.params.push_back(item.kind == Value::Kind::integer ? std::to_string(item.integer)
                                                             : item.text);
}

// What a value below "param_groups" says. torch spells groups in three ways: all in one list, a
// value for each setting of each group, or, flattened, of each parameter.
struct GroupPlace {
  std::string_view optimizer;  // the key before "param_groups"
  std::optional<std::uint32_t> number;
  std::string_view param;
  std::string_view setting;  // "": the value is the list of all
};

// Whether the nesting itself says that a number follows the word: a setting may then have dots.
bool is_numbered(const std::vector<PathItem>& path) {
  const auto at = std::ranges::find_if(
      path, [](const PathItem& item) { return is_word(item, "param_groups"); });
  return path.end() - at > 2 &&
         (std::holds_alternative<std::int64_t>(at[1]) ||
          parse_number<std::uint32_t>(std::get<std::string>(at[1])).has_value());
}

std::optional<GroupPlace> group_place(const ValueEntry& entry) {
  constexpr std::string_view kGroups = "param_groups";
  const std::string_view key = entry.key;
  const std::size_t at = word_at(key, kGroups);
  if (at == std::string_view::npos) return std::nullopt;
  GroupPlace place{.optimizer = key.substr(0, at)};
  std::string_view rest = key.substr(at + kGroups.size());
  if (rest.empty())
    return entry.value.kind == Value::Kind::list ? std::optional(place) : std::nullopt;
  rest.remove_prefix(1);
  const std::size_t dot = is_numbered(entry.path) ? rest.find('.') : rest.rfind('.');
  if (dot == std::string_view::npos) return std::nullopt;
  place.setting = rest.substr(dot + 1);
  place.param = rest.substr(0, dot);
  place.number = parse_number<std::uint32_t>(place.param);
  return place;
}

// One optimizer's groups, in whichever way they are spelled.
class GroupCollector {
 public:
  void add(const GroupPlace& place, const Value& value) {
    if (place.setting.empty()) {
      for (std::size_t i = 0; i < value.items.size(); ++i)
        for (const auto& [name, setting] : value.items[i].entries)
          add_setting(numbered_[static_cast<std::uint32_t>(i)], name.text, setting);
    } else if (place.number) {
      add_setting(numbered_[*place.number], std::string(place.setting), value);
    } else {
      const auto [found, fresh] = number_of_.try_emplace(place.param, params_.size());
      if (fresh) params_.push_back({{}, {}, {std::string(place.param)}});
      params_[found->second].settings.emplace_back(place.setting, value);
    }
  }

  void give(std::vector<GroupEntry>& list) {
    for (auto& [number, group] : numbered_) list.push_back(std::move(group));
    give_flattened(list);
  }

 private:
  // Parameters of the same settings were one group, as far as anybody can tell.
  void give_flattened(std::vector<GroupEntry>& list) {
    std::map<std::map<std::string_view, std::string>, std::size_t> group_of;
    for (GroupEntry& param : params_) {
      std::map<std::string_view, std::string> settings;
      for (const auto& [name, value] : param.settings) settings[name] = to_json(value);
      const auto [found, fresh] = group_of.try_emplace(std::move(settings), list.size());
      if (fresh)
        list.push_back(std::move(param));
      else
        list[found->second].params.push_back(std::move(param.params.front()));
    }
  }

  std::map<std::uint32_t, GroupEntry> numbered_;
  std::vector<GroupEntry> params_;  // one each, where they are flattened
  std::unordered_map<std::string_view, std::size_t> number_of_;  // of a parameter in params_
};

bool is_step_name(std::string_view word) {
  constexpr std::array<std::string_view, 4> kNames = {"step", "iteration", "global_step",
                                                      "global_steps"};
  return std::ranges::find(kNames, word) != kNames.end();
}

bool counts_steps(const ValueEntry& entry, const std::vector<StateDictPlace>& models) {
  const std::string_view key = entry.key;
  if (entry.value.kind != Value::Kind::integer) return false;
  if (may_count_steps(key)) return true;
  const std::size_t dot = key.rfind('.');
  if (dot == std::string_view::npos || !is_step_name(key.substr(dot + 1))) return false;
  return std::ranges::any_of(models, [&](const StateDictPlace& model) {
    const std::string above = joined(model.path);
    return above.rfind('.') != std::string::npos &&
           above.substr(0, above.rfind('.')) == key.substr(0, dot);
  });
}

}  // namespace

bool lists_params(const ValueEntry& value) {
  const auto place = group_place(value);
  if (!place) return false;
  if (!place->setting.empty()) return place->number && place->setting == "params";
  return std::ranges::any_of(value.value.items,
                             [](const Value& group) { return group.find("params") != nullptr; });
}

std::string optimizer_of(const GroupEntry& group) {
  const Value* decoupled = setting_of(group, "decoupled_weight_decay");
  const std::string adam = decoupled != nullptr && decoupled->integer != 0 ? "adamw" : "adam";
  for (const auto& [name, value] : group.settings)
    if ((name == "optimizer" || name == "optimizer_type") && value.kind == Value::Kind::string)
      return value.text == "adam" ? adam : value.text;
  // torch.optim's own groups do not say; these settings exist in one optimizer only.
  if (setting_of(group, "ns_steps") || setting_of(group, "ns_coefficients")) return "muon";
  if (const Value* use_muon = setting_of(group, "use_muon"))
    if (use_muon->kind == Value::Kind::boolean && use_muon->integer != 0) return "muon";
  return decoupled != nullptr ? adam : std::string();
}

const Value* setting_of(const GroupEntry& group, std::string_view name) {
  for (const auto& [key, value] : group.settings)
    if (key == name) return &value;
  return nullptr;
}

std::optional<std::int64_t> counted(const Value& value) {
  constexpr double kExact = 9007199254740992;  // 2^53
  if (value.kind == Value::Kind::integer && value.integer >= 0) return value.integer;
  const bool whole = value.kind == Value::Kind::real && value.real >= 0 && value.real <= kExact &&
                     value.real == std::floor(value.real);
  return whole ? std::optional(static_cast<std::int64_t>(value.real)) : std::nullopt;
}

bool may_count_steps(std::string_view key) {
  const std::size_t dot = key.find('.');
  if (dot == std::string_view::npos) return is_step_name(key);
  // Of NeMo AutoModel, prime-rl, nanochat and Composer.
  constexpr std::string_view kTrainers[] = {"step_scheduler.step", "app.progress.step", "meta.step",
                                            "state.timestamp.Timestamp.batch"};
  if (std::ranges::find(kTrainers, key) != std::end(kTrainers)) return true;
  return key.starts_with("train") && is_step_name(key.substr(dot + 1));
}

std::vector<GroupEntry> torch_groups(const std::vector<ValueEntry>& values) {
  std::vector<const ValueEntry*> all;
  all.reserve(values.size());
  for (const ValueEntry& entry : values) all.push_back(&entry);
  return torch_groups(all);
}

std::vector<GroupEntry> torch_groups(std::span<const ValueEntry* const> values) {
  std::map<std::string_view, GroupCollector> optimizers;
  for (const ValueEntry* entry : values)
    if (const auto place = group_place(*entry))
      optimizers[place->optimizer].add(*place, with_plain_numbers(entry->value));
  std::vector<GroupEntry> list;
  for (auto& [prefix, groups] : optimizers) groups.give(list);
  for (GroupEntry& group : list) group.optimizer = optimizer_of(group);
  return list;
}

ValueEntry* step_value(std::vector<ValueEntry>& values, const std::vector<StateDictPlace>& models) {
  const auto found = std::ranges::find_if(
      values, [&](const ValueEntry& entry) { return counts_steps(entry, models); });
  return found == values.end() ? nullptr : &*found;
}

}  // namespace ebb::formats
