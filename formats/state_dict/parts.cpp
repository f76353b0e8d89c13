#include "ebb/formats/state_dict/parts.h"

#include <algorithm>
#include <map>
#include <set>

#include "ebb/formats/catalog/key_path.h"
#include "ebb/formats/core/json_text.h"
#include "ebb/formats/core/name_table.h"
#include "ebb/formats/state_dict/groups.h"
#include "ebb/formats/state_dict/key_split.h"
#include "ebb/formats/state_dict/slots.h"

namespace ebb::formats {
namespace {

std::string_view without_dot(std::string_view text) {
  return text.ends_with('.') ? text.substr(0, text.size() - 1) : text;
}

std::string_view last_word(std::string_view text) { return text.substr(text.rfind('.') + 1); }

std::string shown(std::string_view at) { return at.empty() ? "the top" : json_string(at); }

// Where an optimizer without param_groups may be one all the same: at the top, or called so.
bool is_called_optimizer(const KeySplit& split, std::string_view key) {
  const std::string_view at = split.at(key);
  if (at.empty()) return split.keys == KeySplit::Keys::nested;
  return at.starts_with("optim") || at.find(".optim") != std::string_view::npos;
}

class Finder {
 public:
  Finder(const Catalog& catalog, const PartsSaid& said, const std::vector<ValueEntry>& in_tensors)
      : catalog_(catalog), said_(said), in_tensors_(in_tensors) {
    keys_.reserve(catalog.tensors.size());
    for (const TensorEntry& tensor : catalog.tensors)
      keys_.emplace_back(tensor.key ? std::string_view(*tensor.key) : std::string_view(),
                         tensor.path);
    found_.tensors.resize(keys_.size());
  }

  Result<FoundParts> run() {
    collect_groups();
    find_slots();
    EBB_TRY(refuse_empty_optimizers());
    name_params();
    EBB_TRY(find_models());
    assign_to_models();
    note_what_is_unclear();
    for (const Model& model : models_) found_.places.models.push_back(model.place);
    return std::move(found_);
  }

 private:
  struct Model {
    std::string text;
    StateDictPlace place;
    // At the top, items of a path that lead to its parameters; "" where they are its own items.
    std::set<std::string_view> tops;
  };
  struct Candidate {
    std::size_t votes = 0;
    std::size_t tensor = 0;  // one of its parameters
    std::size_t name_at = 0;
  };
  using Candidates = std::map<std::string_view, Candidate>;  // by key, with the last dot

  bool is_said(const std::vector<std::string>& list, std::string_view at) const {
    return std::ranges::any_of(list, [&](const std::string& one) { return said_text(one) == at; });
  }
  static std::string_view said_text(std::string_view one) {
    return one == "." ? std::string_view() : without_dot(one);
  }

  std::optional<std::uint32_t> optimizer_at(std::string_view at) const {
    const auto known = number_of_.find(at);
    return known == number_of_.end() ? std::nullopt : std::optional(known->second);
  }
  std::uint32_t add_optimizer(const KeyPath& key, const KeySplit& split) {
    const auto number = static_cast<std::uint32_t>(found_.places.optimizers.size());
    const auto [known, fresh] = number_of_.emplace(split.at(key.key()), number);
    if (!fresh) return known->second;
    found_.places.optimizers.push_back({key.place_before(split.word), split.keys, {}});
    return number;
  }

  // Wherever there are parameter groups, there is an optimizer.
  void collect_groups() {
    std::vector<std::vector<const ValueEntry*>> settings;
    for (const ValueEntry& value : catalog_.values)
      if (collect_setting(value, settings))
        found_.settings.push_back(static_cast<std::size_t>(&value - catalog_.values.data()));
    for (const ValueEntry& value : in_tensors_) collect_setting(value, settings);
    for (const auto& its : settings) found_.groups.push_back(torch_groups(its));
  }

  bool collect_setting(const ValueEntry& value,
                       std::vector<std::vector<const ValueEntry*>>& settings) {
    if (value.key.find("param_groups") == std::string::npos) return false;
    const KeyPath key(value.key, value.path);
    for (const KeySplit& split : splits_at(key, "param_groups")) {
      const bool list = value.value.kind == Value::Kind::list;
      const bool none = split.rest == value.key.size() && !list;
      if (none || !(said_.optimizers.empty() || is_said(said_.optimizers, split.at(value.key))))
        continue;
      settings.resize(std::max<std::size_t>(settings.size(), add_optimizer(key, split) + 1));
      settings[*optimizer_at(split.at(value.key))].push_back(&value);
      return true;
    }
    return false;
  }

  // First of the optimizers that have param_groups or are said, then of those that only look like
  // one: any dict may be called "state".
  void find_slots() {
    for (std::size_t i = 0; i < keys_.size(); ++i)
      if (!belongs_to_an_optimizer(i) && catalog_.tensors[i].key) free_.push_back(i);
    add_called_optimizers();
    std::erase_if(free_, [&](std::size_t tensor) { return belongs_to_an_optimizer(tensor); });
    for (const std::size_t i : free_) count_unclaimed(keys_[i]);
    found_.groups.resize(found_.places.optimizers.size());
  }

  static bool has_word(const KeyPath& key, std::string_view word) {
    return key.key().find(word) != std::string_view::npos;
  }

  bool belongs_to_an_optimizer(std::size_t tensor) {
    const KeyPath& key = keys_[tensor];
    if (!has_word(key, "state") && !has_word(key, "param_groups")) return false;
    return is_setting(key) ||
           std::ranges::any_of(splits_at(key, "state"),
                               [&](const KeySplit& split) { return take_slot(tensor, split); });
  }

  // Of what no optimizer has that is known already.
  void add_called_optimizers() {
    std::map<std::string_view, SlotsOfPlace> places;
    for (const std::size_t i : free_) {
      const KeyPath& key = keys_[i];
      if (!has_word(key, "state")) continue;
      for (const KeySplit& split : splits_at(key, "state")) {
        const std::optional<Slot> slot = slot_at(key, split);
        if (!slot || !may_be_optimizer(key, split)) continue;
        SlotsOfPlace& its = places[split.at(key.key())];
        if (its.tensors == 0) its.first = {i, split};
        its.add(slot->name(key.key()), slot->state(key.key()), catalog_.tensors[i].shape);
      }
    }
    std::vector<const SlotsOfPlace*> accepted;
    for (const auto& [at, its] : places)
      if (!said_.optimizers.empty() || its.is_optimizer(at)) accepted.push_back(&its);
    std::ranges::sort(accepted, {}, [](const SlotsOfPlace* its) { return its->first.first; });
    for (const SlotsOfPlace* its : accepted)
      add_optimizer(keys_[its->first.first], its->first.second);
  }

  bool may_be_optimizer(const KeyPath& key, const KeySplit& split) const {
    if (!said_.optimizers.empty()) return is_said(said_.optimizers, split.at(key.key()));
    return is_called_optimizer(split, key.key()) &&
           !is_model_word(key.key().substr(0, key.key().find('.')));
  }

  // What would be an optimizer's if there were param_groups beside it.
  void count_unclaimed(const KeyPath& key) {
    if (!has_word(key, "state")) return;
    for (const KeySplit& split : splits_at(key, "state"))
      if (split.keys == KeySplit::Keys::nested && slot_at(key, split) &&
          !split.at(key.key()).empty())
        ++unclaimed_[std::string(split.at(key.key()))];
  }

  // A tensor among the settings, such as a learning rate that a compiled step can change.
  bool is_setting(const KeyPath& key) const {
    return std::ranges::any_of(splits_at(key, "param_groups"), [&](const KeySplit& split) {
      return optimizer_at(split.at(key.key())).has_value();
    });
  }

  bool take_slot(std::size_t tensor, const KeySplit& split) {
    const std::optional<Slot> slot = slot_at(keys_[tensor], split);
    const auto optimizer = optimizer_at(split.at(keys_[tensor].key()));
    if (!slot || !optimizer) return false;
    found_.places.optimizers[*optimizer].keys = split.keys;
    found_.tensors[tensor] = {Belonging::To::optimizer, *optimizer, slot->name_at, slot->name_end};
    return true;
  }

  Result<> refuse_empty_optimizers() const {
    for (const std::string& one : said_.optimizers)
      if (!optimizer_at(said_text(one)))
        return Error{Code::usage,
                     compose("--optimizer {}: no \"state\" or \"param_groups\" lies below {}",
                             printable(one), shown(said_text(one))),
                     "ckpt-inspect CKPT --tensors lists the keys"};
    return {};
  }

  // Names that optimizers have for parameters, and whose they are.
  void name_params() {
    const auto add = [&](std::string_view name, std::uint32_t optimizer) {
      if (name.find_first_not_of("0123456789") == std::string_view::npos) return;  // no name
      const auto [number, fresh] = names_.insert(name);
      if (fresh) owners_.emplace_back();
      std::vector<std::uint32_t>& its = owners_[number];
      if (!its.empty() && its.back() == optimizer) return;
      its.push_back(optimizer);
      ++count_[optimizer];
    };
    count_.resize(found_.places.optimizers.size());
    for (std::size_t i = 0; i < keys_.size(); ++i)
      if (const Belonging& slot = found_.tensors[i]; slot.to == Belonging::To::optimizer)
        add(keys_[i].key().substr(slot.name_at, slot.name_end - slot.name_at), slot.part);
    for (std::uint32_t o = 0; o < found_.groups.size(); ++o)
      for (const GroupEntry& group : found_.groups[o])
        for (const std::string* name : names_in(group)) add(*name, o);
  }

  // Settings of numbered parameters may have their names beside them.
  static std::vector<const std::string*> names_in(const GroupEntry& group) {
    std::vector<const std::string*> names;
    if (const Value* listed = setting_of(group, "param_names"))
      for (const Value& name : listed->items) names.push_back(&name.text);
    else
      for (const std::string& name : group.params) names.push_back(&name);
    return names;
  }

  Result<> find_models() {
    found_.model_of.resize(found_.places.optimizers.size());
    if (!said_.models.empty()) return take_said_models();
    const std::vector<Candidates> candidates = votes();
    for (std::uint32_t o = 0; o < candidates.size(); ++o)
      if (const Candidate* best = elected(candidates[o], o)) found_.model_of[o] = add_model(*best);
    share_models(candidates);
    if (models_.empty()) find_model_by_place();
    if (models_.size() == 1)
      for (auto& model : found_.model_of) model = 0;
    return {};
  }

  // Optimizers that elected no model are of the first that has one of their names, or of the only.
  void share_models(const std::vector<Candidates>& candidates) {
    for (std::uint32_t o = 0; o < candidates.size(); ++o)
      for (std::uint32_t m = 0; m < models_.size() && !found_.model_of[o]; ++m)
        if (models_.size() == 1 || candidates[o].contains(prefix_of(models_[m])))
          found_.model_of[o] = m;
  }

  static std::string prefix_of(const Model& model) {
    return model.text.empty() ? "" : model.text + ".";
  }

  // Before which places names of parameters stand, for each optimizer.
  std::vector<Candidates> votes() const {
    std::vector<Candidates> candidates(found_.places.optimizers.size());
    if (names_.size() == 0) return candidates;
    for (const std::size_t i : free_) {
      const std::string_view key = keys_[i].key();
      for (std::size_t at = 0; at != std::string_view::npos && at < key.size();) {
        if (const auto number = names_.find(key.substr(at)))
          for (const std::uint32_t o : owners_[*number]) {
            Candidate& one = candidates[o][key.substr(0, at)];
            if (one.votes++ == 0) one.tensor = i, one.name_at = at;
          }
        const std::size_t dot = key.find('.', at);
        at = dot == std::string_view::npos ? dot : dot + 1;
      }
    }
    return candidates;
  }

  // The place with most of the names; of several, the one whose word says that it is a model.
  const Candidate* elected(const Candidates& candidates, std::uint32_t optimizer) const {
    std::size_t most = 0;
    for (const auto& [prefix, one] : candidates) most = std::max(most, one.votes);
    if (most == 0 || 2 * most < count_[optimizer]) return nullptr;
    std::vector<std::pair<std::string_view, const Candidate*>> best, called;
    for (const auto& [prefix, one] : candidates) {
      if (one.votes != most) continue;
      best.emplace_back(prefix, &one);
      if (is_model_word(last_word(without_dot(prefix)))) called.emplace_back(prefix, &one);
    }
    if (best.size() > 1) best = shallowest(called);
    return best.size() == 1 ? best.front().second : nullptr;
  }

  static std::vector<std::pair<std::string_view, const Candidate*>> shallowest(
      std::vector<std::pair<std::string_view, const Candidate*>> all) {
    const auto depth = [](const auto& one) { return std::ranges::count(one.first, '.'); };
    if (all.empty()) return all;
    const auto least = depth(*std::ranges::min_element(all, {}, depth));
    std::erase_if(all, [&](const auto& one) { return depth(one) != least; });
    return all;
  }

  std::uint32_t add_model(const Candidate& candidate) {
    const KeyPath& key = keys_[candidate.tensor];
    const std::string_view prefix = key.key().substr(0, candidate.name_at);
    for (std::uint32_t m = 0; m < models_.size(); ++m)
      if (prefix_of(models_[m]) == prefix) return m;
    Model model{std::string(without_dot(prefix)), key.place_before(candidate.name_at), {}};
    if (prefix.empty()) model.tops = tops();
    models_.push_back(std::move(model));
    return static_cast<std::uint32_t>(models_.size() - 1);
  }

  // What leads to the parameters of a model that lies at the top itself: to those that optimizers
  // name, or to everything.
  std::set<std::string_view> tops() const {
    std::set<std::string_view> of_names, all;
    for (const std::size_t i : free_) {
      const std::string_view top = keys_[i].items() == 1 ? std::string_view() : keys_[i].item(0);
      all.insert(top);
      if (names_.find(keys_[i].key())) of_names.insert(top);
    }
    return of_names.empty() ? all : of_names;
  }

  Result<> take_said_models() {
    for (const std::string& one : said_.models) {
      const std::string prefix = std::string(said_text(one)) + (said_text(one).empty() ? "" : ".");
      const auto below = std::ranges::find_if(
          free_, [&](std::size_t tensor) { return keys_[tensor].key().starts_with(prefix); });
      if (below == free_.end())
        return Error{Code::usage,
                     compose("--model {}: no tensor lies below {} that is not an optimizer's",
                             printable(one), shown(said_text(one))),
                     "tensors lie below " + places_text() + "; \".\" is the top"};
      add_model({1, *below, prefix.size()});
    }
    share_models(votes());
    return {};
  }

  // Where no name tells: by the word that says so; a file of nothing but tensors; or, beside an
  // optimizer, the only place with tensors.
  void find_model_by_place() {
    Candidates called, places;
    bool bare = true;
    for (const std::size_t i : free_) {
      const KeyPath& key = keys_[i];
      bare = bare && key.items() == 1;
      if (key.items() > 1)
        places.try_emplace(key.key().substr(0, key.start(1)), Candidate{1, i, key.start(1)});
      for (std::size_t item = 0; item + 1 < key.items(); ++item)
        if (is_model_word(key.item(item))) {
          const std::size_t below = key.start(item + 1);
          called.try_emplace(key.key().substr(0, below), Candidate{1, i, below});
          break;
        }
    }
    std::vector<std::pair<std::string_view, const Candidate*>> best;
    for (const auto& [prefix, one] : called) best.emplace_back(prefix, &one);
    best = shallowest(std::move(best));
    if (best.size() == 1) add_model(*best.front().second);
    if (!best.empty()) return;
    const bool optimizer = !found_.places.optimizers.empty();
    if (free_.empty()) return;
    if (bare)
      add_model({1, free_.front(), 0});
    else if (optimizer && places.size() == 1)
      add_model(places.begin()->second);
  }

  void assign_to_models() {
    for (const std::size_t i : free_) {
      Belonging& belonging = found_.tensors[i];
      for (std::uint32_t m = 0; m < models_.size(); ++m)
        if (const std::size_t below = name_below(models_[m], keys_[i]);
            below != std::string_view::npos &&
            (belonging.to == Belonging::To::nothing || below > belonging.name_at))
          belonging = {Belonging::To::model, m, below, keys_[i].key().size()};
    }
  }

  // Where the name begins; npos when the tensor is not one of the model's.
  static std::size_t name_below(const Model& model, const KeyPath& key) {
    constexpr std::size_t kNot = std::string_view::npos;
    if (model.text.empty()) {
      if (model.tops.contains(key.items() == 1 ? std::string_view() : key.item(0))) return 0;
      return kNot;
    }
    const std::size_t below = model.text.size() + 1;
    const bool within = key.key().size() >= below && key.key().starts_with(model.text) &&
                        key.key()[below - 1] == '.';
    return within && key.place_before(below).path.size() == model.place.path.size() ? below : kNot;
  }

  // The first words of keys that lead to tensors of nobody.
  std::string places_text() const {
    constexpr std::size_t kShown = 6;
    std::set<std::string_view> words;
    for (const std::size_t i : free_)
      words.insert(keys_[i].key().substr(0, keys_[i].key().find('.')));
    std::string text;
    std::size_t count = 0;
    for (const std::string_view word : words) {
      if (++count > kShown) break;
      text += (text.empty() ? "" : ", ") + json_string(word);
    }
    return words.size() > kShown ? text + ", ..." : text;
  }

  void note_what_is_unclear() {
    for (const auto& [at, count] : unclaimed_)
      if (!models_hold(at))
        found_.notes.push_back(
            compose("{} tensors below {} look like the state of an optimizer, but there are no "
                    "param_groups beside it: --optimizer {} says that it is one",
                    count, shown(at), (at.empty() ? "." : at)));
    if (models_.empty() && !free_.empty())
      found_.notes.push_back("which part is the model is not clear (tensors lie below " +
                             places_text() + "): --model KEY says it");
  }

  bool models_hold(std::string_view at) const {
    return std::ranges::any_of(models_, [&](const Model& model) {
      return model.text.empty() || at == model.text || at.starts_with(prefix_of(model));
    });
  }

  const Catalog& catalog_;
  const PartsSaid& said_;
  const std::vector<ValueEntry>& in_tensors_;
  FoundParts found_;
  std::vector<KeyPath> keys_;
  std::map<std::string_view, std::uint32_t> number_of_;  // optimizers, by what is before "state"
  std::map<std::string, std::size_t> unclaimed_;         // tensors below a "state" of nobody
  std::vector<std::size_t> free_;                        // tensors that no optimizer has
  NameTable names_;
  std::vector<std::vector<std::uint32_t>> owners_;  // optimizers that have the name
  std::vector<std::size_t> count_;                  // names of each optimizer
  std::vector<Model> models_;
};

}  // namespace

std::string text_of(const StateDictPlace& place) {
  const std::string above = joined(place.path);
  const std::string_view below = without_dot(place.prefix);
  return above + (above.empty() || below.empty() ? "" : ".") + std::string(below);
}

Result<FoundParts> find_parts(const Catalog& catalog, const PartsSaid& said,
                              const std::vector<ValueEntry>& in_tensors) {
  return Finder(catalog, said, in_tensors).run();
}

}  // namespace ebb::formats
