#include "formats/dcp/meaning.h"

#include <algorithm>
#include <map>

namespace formats {
namespace {

std::vector<std::string> words_of(std::string_view key, const std::vector<PathItem>& path) {
  std::vector<std::string> words;
  if (path.size() > 1) {
    for (const PathItem& item : path) {
      if (const auto* text = std::get_if<std::string>(&item))
        words.push_back(*text);
      else
        words.push_back(std::to_string(std::get<std::int64_t>(item)));
    }
    return words;
  }
  for (std::size_t first = 0; first <= key.size();) {
    const std::size_t end = std::min(key.find('.', first), key.size());
    words.emplace_back(key.substr(first, end - first));
    first = end + 1;
  }
  return words;
}

std::string joined(const std::vector<std::string>& words, std::size_t first, std::size_t end) {
  std::string text;
  for (std::size_t i = first; i < end; ++i) {
    if (i > first) text += '.';
    text += words[i];
  }
  return text;
}

std::string optimizer_of(const GroupEntry& group) {
  const auto has = [&](std::string_view name) {
    return std::any_of(group.settings.begin(), group.settings.end(),
                       [&](const auto& setting) { return setting.first == name; });
  };
  const bool decoupled = std::ranges::any_of(group.settings, [](const auto& setting) {
    return setting.first == "decoupled_weight_decay" && setting.second.integer != 0;
  });
  for (const auto& [name, value] : group.settings)
    if ((name == "optimizer" || name == "optimizer_type") && value.kind == Value::Kind::string)
      return value.text == "adam" && decoupled ? "adamw" : value.text;
  // torch.optim's own groups do not say; these settings exist in one optimizer only.
  if (has("ns_steps") || has("ns_coefficients")) return "muon";
  if (has("decoupled_weight_decay")) return decoupled ? "adamw" : "adam";
  return {};
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

// Position of "param_groups" in a path; npos when it is not there.
std::size_t groups_at(const std::vector<PathItem>& path) {
  for (std::size_t i = 0; i < path.size(); ++i)
    if (const auto* text = std::get_if<std::string>(&path[i]); text && *text == "param_groups")
      return i;
  return std::string::npos;
}

bool counts_steps(const ValueEntry& entry) {
  constexpr std::string_view kNames[] = {"step", "iteration", "global_step", "global_steps"};
  return entry.value.kind == Value::Kind::integer &&
         std::find(std::begin(kNames), std::end(kNames), entry.key) != std::end(kNames);
}

}  // namespace

std::pair<std::string, std::string> torch_identity(std::string_view key,
                                                   const std::vector<PathItem>& path) {
  const std::vector<std::string> words = words_of(key, path);
  const bool optimizer = words[0].starts_with("optim") || words[0].starts_with("state");
  const auto state = std::find(words.begin(), words.end(), "state");
  const auto at = static_cast<std::size_t>(state - words.begin());
  if (optimizer && at + 2 < words.size())
    return {joined(words, at + 1, words.size() - 1), words.back()};
  if (words[0] == "model" && words.size() > 1) return {joined(words, 1, words.size()), "param"};
  return {std::string(key), "tensor"};
}

std::vector<GroupEntry> torch_groups(const std::vector<ValueEntry>& values) {
  // One optimizer's groups share the path before "param_groups".
  std::map<std::pair<std::string, std::int64_t>, GroupEntry> groups;
  for (const ValueEntry& entry : values) {
    const std::size_t at = groups_at(entry.path);
    if (at == std::string::npos) continue;
    std::string prefix = entry.key.substr(0, entry.key.find("param_groups"));
    if (entry.path.size() == at + 1 && entry.value.kind == Value::Kind::list) {
      for (std::size_t i = 0; i < entry.value.items.size(); ++i)
        for (const auto& [name, value] : entry.value.items[i].entries)
          add_setting(groups[{prefix, static_cast<std::int64_t>(i)}], name.text, value);
    } else if (entry.path.size() == at + 3) {
      const auto* number = std::get_if<std::int64_t>(&entry.path[at + 1]);
      const auto* name = std::get_if<std::string>(&entry.path[at + 2]);
      if (number && name) add_setting(groups[{std::move(prefix), *number}], *name, entry.value);
    }
  }
  std::vector<GroupEntry> list;
  for (auto& [place, group] : groups) {
    group.optimizer = optimizer_of(group);
    list.push_back(std::move(group));
  }
  return list;
}

std::optional<std::int64_t> torch_step(const std::vector<ValueEntry>& values) {
  const auto found = std::find_if(values.begin(), values.end(), counts_steps);
  if (found == values.end()) return std::nullopt;
  return found->value.integer;
}

void mark_echoes(std::vector<ValueEntry>& values) {
  const auto step = std::find_if(values.begin(), values.end(), counts_steps);
  if (step != values.end()) step->echoed = true;
  for (ValueEntry& entry : values)
    if (groups_at(entry.path) != std::string::npos) entry.echoed = true;
}

}  // namespace formats
