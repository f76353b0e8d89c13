#include "ebb/formats/conversion/wrappers.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "ebb/formats/conversion/edits.h"
#include "ebb/formats/core/json_text.h"
#include "ebb/formats/core/number_text.h"

namespace ebb::formats {
namespace {

// No module of a model is called so.
constexpr std::array<std::string_view, 4> kPrivate = {
    "_orig_mod", "_forward_module", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"};
constexpr std::string_view kModule = "module";

bool is_private(std::string_view word) {
  return std::ranges::find(kPrivate, word) != kPrivate.end();
}

// The wrapper's word that the name begins with, its dot included; "" for none.
std::string_view in_front(std::string_view name) {
  const std::size_t dot = name.find('.');
  if (dot == std::string_view::npos || dot + 1 == name.size()) return {};
  const std::string_view word = name.substr(0, dot);
  return word == kModule || is_private(word) ? name.substr(0, dot + 1) : std::string_view();
}

// Behind the first word.
std::string without_middle(std::string_view name) {
  std::string out;
  for (std::size_t at = 0; at < name.size();) {
    const std::size_t end = std::min(name.find('.', at), name.size());
    const std::string_view word = name.substr(at, end - at);
    if (at == 0 || end == name.size() || !is_private(word))
      out.append(out.empty() ? "" : ".").append(word);
    at = end + 1;
  }
  return out;
}

using Names = std::set<std::string>;
using Renamed = std::map<std::string, std::string>;  // old -> new

// Takes a word that all names begin with off them, as often as there is one.
void strip_fronts(Renamed& names) {
  while (!names.empty()) {
    const std::string front(in_front(names.begin()->second));
    const bool common = !front.empty() && std::ranges::all_of(names, [&](const auto& name) {
      return name.second.size() > front.size() && name.second.starts_with(front);
    });
    if (!common) return;
    for (auto& [old, fresh] : names) fresh.erase(0, front.size());
  }
}

Renamed off_all(const Names& params, const Names& of_optimizers) {
  Renamed renamed;
  for (const std::string& name : params) renamed.emplace(name, name);
  strip_fronts(renamed);
  for (auto& [old, fresh] : renamed) {
    fresh = without_middle(fresh);
    const std::string bare = bare_name(fresh);
    if (of_optimizers.contains(bare) && !of_optimizers.contains(old)) fresh = bare;
  }
  return renamed;
}

// Where an optimizer's name and a parameter's are the same but for wrappers, the one with more of
// them gets the other.
Renamed off_apart(const Names& params, const Names& of_optimizers) {
  std::map<std::string, std::vector<std::string>>
      alone;  // parameters without a state, by bare name
  for (const std::string& name : params)
    if (!of_optimizers.contains(name)) alone[bare_name(name)].push_back(name);
  Renamed renamed;
  for (const std::string& name : of_optimizers) {
    if (params.contains(name)) continue;
    const auto its = alone.find(bare_name(name));
    if (its == alone.end() || its->second.size() != 1) continue;
    const std::string& param = its->second.front();
    if (param.size() > name.size())
      renamed.emplace(param, name);
    else
      renamed.emplace(name, param);
  }
  return renamed;
}

using States = std::map<std::string, std::set<std::string>>;  // of every name

// Two tensors of one state may not become one: such names stay as they are, and are taken out.
Names keep_collisions(const States& states, Renamed& renamed) {
  Names kept;
  for (std::size_t before = 1; before != kept.size();) {
    before = kept.size();
    Names twice;
    States taken;
    for (const auto& [name, its] : states) {
      const auto fresh = renamed.find(name);
      const std::string& now = fresh == renamed.end() ? name : fresh->second;
      for (const std::string& state : its)
        if (!taken[now].insert(state).second) twice.insert(now);
    }
    std::erase_if(renamed, [&](const auto& one) {
      return twice.contains(one.second) && kept.insert(one.first).second;
    });
  }
  return kept;
}

std::string line_of(const Renamed& renamed) {
  const auto& [old, fresh] = *renamed.begin();
  return compose("takes wrappers out of {}, as in {}, now {}: --keep-names keeps them",
                 plural(renamed.size(), "name"), printable(old, 120), printable(fresh, 120));
}

}  // namespace

std::string bare_name(std::string_view name) {
  for (std::string_view front = in_front(name); !front.empty(); front = in_front(name))
    name.remove_prefix(front.size());
  return without_middle(name);
}

std::vector<std::string> unwrap_names(Wrappers which, const ParamNames& names, Catalog& content) {
  States states;
  for (const TensorEntry& tensor : content.tensors) states[tensor.name].insert(tensor.state);
  Renamed renamed = which == Wrappers::off ? off_all(names.of_model, names.of_optimizers)
                                           : off_apart(names.of_model, names.of_optimizers);
  std::erase_if(renamed, [&](const auto& one) {
    return one.first == one.second || (which == Wrappers::off && !states.contains(one.first));
  });
  const Names kept = keep_collisions(states, renamed);
  std::vector<std::string> lines;
  if (!renamed.empty()) {
    lines.push_back(line_of(renamed));
    rename_to(renamed, content);
  }
  if (!kept.empty())
    lines.push_back(compose("keeps wrappers in {} that would be another's without: {}",
                            plural(kept.size(), "name"), printable(*kept.begin(), 120)));
  return lines;
}

std::vector<std::string> hint_to_strip(const Catalog& content) {
  constexpr std::string_view kPrefix = "model.";
  const bool all = std::ranges::all_of(
      content.tensors, [&](const TensorEntry& tensor) { return tensor.name.starts_with(kPrefix); });
  if (!all || content.tensors.empty()) return {};
  return {
      compose("all names begin with {}: where that is a trainer's and not the model's own, "
              "--strip {} takes it off",
              kPrefix, kPrefix)};
}

}  // namespace ebb::formats
