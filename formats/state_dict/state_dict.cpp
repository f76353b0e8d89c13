#include "ebb/formats/state_dict/state_dict.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <tuple>

#include "ebb/formats/catalog/composite.h"
#include "ebb/formats/catalog/key_path.h"
#include "ebb/formats/core/float_cast.h"
#include "ebb/formats/core/json_text.h"
#include "ebb/formats/state_dict/groups.h"
#include "ebb/formats/state_dict/names.h"
#include "ebb/formats/state_dict/numbers.h"
#include "ebb/formats/state_dict/plain_numbers.h"
#include "ebb/formats/state_dict/small_tensors.h"

namespace ebb::formats {
namespace {

using Keys = StateDictOptimizer::Keys;
using Path = std::vector<PathItem>;

constexpr std::string_view kFlattened = "flattened", kNested = "nested";
constexpr std::string_view kTensorSettings = "tensor_settings";
constexpr std::string_view kCounters = "counters", kInValues = "values";

Value value_of(const Path& path) {
  std::vector<Value> items;
  for (const PathItem& item : path) {
    const auto* text = std::get_if<std::string>(&item);
    items.push_back(text ? Value::of_string(*text) : Value::of_int(std::get<std::int64_t>(item)));
  }
  return Value::of_list(std::move(items));
}

Value value_of(const StateDictPlace& place) {
  return Value::of_dict(
      {{"path", value_of(place.path)}, {"prefix", Value::of_string(place.prefix)}});
}

Value value_of(const StateDictOptimizer& optimizer) {
  std::vector<Value> params;
  for (const std::string& name : optimizer.params) params.push_back(Value::of_string(name));
  const bool flattened = optimizer.keys == Keys::flattened;
  return Value::of_dict({{"at", value_of(optimizer.at)},
                         {"keys", Value::of_string(std::string(flattened ? kFlattened : kNested))},
                         {"params", Value::of_list(std::move(params))}});
}

std::optional<Path> path_in(const Value* value) {
  if (value == nullptr) return std::nullopt;
  Path path;
  for (const Value& item : value->items) {
    if (item.kind == Value::Kind::string)
      path.emplace_back(item.text);
    else if (item.kind == Value::Kind::integer)
      path.emplace_back(item.integer);
    else
      return std::nullopt;
  }
  return path;
}

std::optional<StateDictPlace> place_in(const Value* value) {
  if (value == nullptr) return std::nullopt;
  auto path = path_in(value->find("path"));
  const Value* prefix = value->find("prefix");
  if (!path || prefix == nullptr || prefix->kind != Value::Kind::string) return std::nullopt;
  return StateDictPlace{std::move(*path), prefix->text};
}

std::optional<StateDictOptimizer> optimizer_in(const Value& value) {
  auto at = place_in(value.find("at"));
  const Value* keys = value.find("keys");
  const Value* params = value.find("params");
  if (!at || keys == nullptr || params == nullptr) return std::nullopt;
  StateDictOptimizer optimizer{std::move(*at), Keys::nested, {}};
  if (keys->text == kFlattened) optimizer.keys = Keys::flattened;
  for (const Value& name : params->items) optimizer.params.push_back(name.text);
  return optimizer;
}

std::optional<StateDictParts> parts_of(const Value& value) {
  StateDictParts parts;
  const Value* models = value.find("models");
  const Value* optimizers = value.find("optimizers");
  auto step = path_in(value.find("step"));
  if (models == nullptr || optimizers == nullptr || !step) return std::nullopt;
  parts.step = std::move(*step);
  if (const Value* settings = value.find(kTensorSettings))
    for (const auto& [name, dtype] : settings->entries)
      if (dtype.kind == Value::Kind::dtype && is_floating(dtype.dtype))
        parts.tensor_settings.emplace(name.text, dtype.dtype);
  for (const Value& one : models->items) {
    auto place = place_in(&one);
    if (!place) return std::nullopt;
    parts.models.push_back(std::move(*place));
  }
  for (const Value& one : optimizers->items) {
    auto optimizer = optimizer_in(one);
    if (!optimizer) return std::nullopt;
    parts.optimizers.push_back(std::move(*optimizer));
  }
  return parts;
}

bool lies_at(const StateDictPlace& place, std::string_view word) {
  return place.prefix.empty() && place.path == Path{std::string(word)};
}

bool is_usual(const StateDictParts& parts) {
  return std::ranges::all_of(parts.models, [](const auto& at) { return lies_at(at, "model"); }) &&
         std::ranges::all_of(parts.optimizers,
                             [](const StateDictOptimizer& one) {
                               return one.keys == Keys::nested && lies_at(one.at, "optimizer");
                             }) &&
         (parts.step.empty() || parts.step == Path{"step"});
}

// Whether a list that leads to a tensor may hold values, too: they travel under their keys, and
// beside them the list would come back with nothing in their positions.
bool shares_list(const Path& path, const std::vector<ValueEntry>& values) {
  const bool list = std::ranges::any_of(
      path, [](const PathItem& item) { return std::holds_alternative<std::int64_t>(item); });
  return list && std::ranges::any_of(values, [&](const ValueEntry& value) {
           return value.path.size() > 1 && value.path.front() == path.front();
         });
}

// A tensor of neither model nor optimizer: its path, or its name where that has to do.
Value other_value(const TensorEntry& tensor, const std::vector<ValueEntry>& values) {
  const Path& path = tensor.path;
  const bool nested = path.size() > 1 && joined(path) == tensor.name && !shares_list(path, values);
  return nested ? value_of(path) : Value::of_string(tensor.name);
}

Path other_path(const Value& value) {
  if (value.kind == Value::Kind::list) return path_in(&value).value_or(Path());
  return {value.text};
}

// The paths of the tensors that a value says are part of nothing, by their keys.
std::map<std::string, Path> others_in(const Value& parts) {
  std::map<std::string, Path> others;
  if (const Value* listed = parts.find("others"))
    for (const Value& item : listed->items) {
      Path path = other_path(item);
      others.emplace(joined(path), std::move(path));
    }
  return others;
}

// Paths below the places of the parts.
class Places {
 public:
  explicit Places(const StateDictParts& parts) : parts_(parts) {
    if (parts_.models.empty()) parts_.models.push_back({{"model"}, {}});
    if (parts_.optimizers.empty()) parts_.optimizers.push_back({{{"optimizer"}, {}}, {}, {}});
    if (parts_.step.empty()) parts_.step = {"step"};
    for (std::size_t o = 0; o < parts_.optimizers.size(); ++o)
      for (const std::string& name : parts_.optimizers[o].params) owner_.emplace(name, o);
  }

  const Path& step() const { return parts_.step; }
  std::size_t owner(const std::string& name) const {
    const auto known = owner_.find(name);
    return known == owner_.end() ? 0 : known->second;
  }
  bool names_are_recorded(std::size_t optimizer) const {
    const std::vector<std::string>& names = parts_.optimizers[optimizer].params;
    return parts_.optimizers[optimizer].named == NamedBy::recorded &&
           std::ranges::none_of(names, [](const std::string& name) { return is_index(name); });
  }
  bool flattens(std::size_t optimizer) const {
    return parts_.optimizers[optimizer].keys == Keys::flattened;
  }

  Path param(const std::string& name) const {
    if (parts_.models.size() > 1)
      for (const StateDictPlace& model : parts_.models)
        if (const std::string at = text_of(model) + "."; name.starts_with(at))
          return below(model, {name.substr(at.size())});
    return below(parts_.models.front(), {name});
  }
  Path state(const std::string& name, const std::string& state) const {
    return of_optimizer(owner(name), {"state", name, state});
  }
  Path of_optimizer(std::size_t number, const std::vector<std::string>& words) const {
    const StateDictOptimizer& optimizer = parts_.optimizers[number];
    if (optimizer.keys == Keys::nested) return below(optimizer.at, {words.begin(), words.end()});
    std::string item;
    for (const std::string& word : words) item += (item.empty() ? "" : ".") + word;
    return below(optimizer.at, {item});
  }
  // Of a group that lists its parameters, whichever way the optimizer spells its own.
  Path setting(std::size_t number, std::size_t group, const std::string& name) const {
    return below(parts_.optimizers[number].at,
                 {"param_groups", static_cast<std::int64_t>(group), name});
  }

 private:
  static Path below(const StateDictPlace& place, Path items) {
    if (auto* first = std::get_if<std::string>(&items.front())) first->insert(0, place.prefix);
    Path path = place.path;
    path.insert(path.end(), items.begin(), items.end());
    return path;
  }

  StateDictParts parts_;
  std::map<std::string, std::size_t> owner_;
};

class Placing {
 public:
  explicit Placing(const Catalog& content)
      : content_(content),
        places_(content.parts),
        numbers_(content, [&](const std::string& name) { return places_.owner(name); }) {}

  StateDict run() {
    for (const ValueEntry& entry : content_.values)
      add(entry.key, entry.path.empty() && !entry.key.empty() ? Path{entry.key} : entry.path,
          entry.value);
    add_step();
    if (!values_say_groups()) add_groups();
    for (const TensorEntry& tensor : content_.tensors)
      if (tensor.state == "param") has_param_.insert(tensor.name);
    for (const TensorEntry& tensor : content_.tensors) placed_.tensors.push_back(place_of(tensor));
    add_counters();
    return std::move(placed_);
  }

 private:
  void add(std::string key, Path path, Value value) {
    placed_.values.push_back({{std::move(key), std::move(path)}, std::move(value)});
  }
  void add(Path path, Value value) {
    std::string key = joined(path);
    add(std::move(key), std::move(path), std::move(value));
  }

  // Those of another format that look alike are none of the groups.
  bool values_say_groups() const {
    std::vector<const ValueEntry*> echoes;
    for (const ValueEntry& entry : content_.values)
      if (entry.echoed) echoes.push_back(&entry);
    return !torch_groups(echoes).empty() || std::ranges::any_of(content_.tensors, is_setting);
  }

  // Content that came from elsewhere has groups and a step but not torch's values for them.
  void add_step() {
    const std::string key = joined(places_.step());
    const bool taken = std::ranges::any_of(
        content_.values, [&](const ValueEntry& entry) { return entry.key == key; });
    const bool is_tensor = std::ranges::any_of(content_.tensors, [&](const TensorEntry& tensor) {
      return tensor.state == "tensor" && tensor.key.value_or(tensor.name) == key;
    });
    if (content_.step && !taken && !is_tensor) add(places_.step(), Value::of_int(*content_.step));
  }

  // Steps that were values beside their parameters' states, where no value says them any more.
  void add_counters() {
    if (content_.param_steps.empty()) return;
    std::set<std::string> taken;
    for (const PlacedValue& value : placed_.values) taken.insert(value.place.key);
    std::set<std::string_view> done;
    for (std::size_t i = 0; i < content_.tensors.size(); ++i) {
      const TensorEntry& tensor = content_.tensors[i];
      const auto steps = content_.param_steps.find(tensor.name);
      auto place = steps == content_.param_steps.end() ? std::nullopt
                                                       : beside(placed_.tensors[i], tensor.state);
      if (place && !taken.contains(place->key) && done.insert(tensor.name).second)
        placed_.values.push_back({std::move(*place), Value::of_int(steps->second)});
    }
  }

  // Where the state "step" is of the parameter that has `state` at `place`; nullopt: it is no state
  // in an optimizer.
  static std::optional<StatePlace> beside(StatePlace place, std::string_view state) {
    auto* last = std::get_if<std::string>(&place.path.back());
    const bool of_optimizer =
        last != nullptr && (*last == state || last->ends_with("." + std::string(state)));
    if (!of_optimizer || state == "step" || state == "param" || state == "tensor")
      return std::nullopt;
    for (std::string* text : {last, &place.key})
      text->replace(text->size() - state.size(), state.size(), "step");
    return place;
  }

  void add_groups() {
    std::map<std::size_t, std::size_t> counts;  // groups of each optimizer so far
    for (const GroupEntry& group : content_.groups) {
      const std::size_t optimizer = group.params.empty() ? 0 : places_.owner(group.params.front());
      std::vector<std::pair<std::string, Value>> settings = group.settings;
      const bool told = optimizer_of(group) == group.optimizer;
      if (!told && setting_of(group, "optimizer") == nullptr && !group.optimizer.empty())
        settings.emplace_back("optimizer", Value::of_string(group.optimizer));
      for (auto& [name, value] : settings)
        if (const auto tensor = content_.parts.tensor_settings.find(name);
            tensor != content_.parts.tensor_settings.end())
          value = with_tensors(std::move(value), tensor->second);
      if (places_.flattens(optimizer) && !group.params.empty())
        add_flattened(optimizer, group, settings);
      else
        add_listed({optimizer, counts[optimizer]++}, group, std::move(settings));
    }
  }

  void add_flattened(std::size_t optimizer, const GroupEntry& group,
                     const std::vector<std::pair<std::string, Value>>& settings) {
    for (const std::string& param : group.params)
      for (const auto& [name, value] : settings)
        add(places_.of_optimizer(optimizer, {"param_groups", param, name}), value);
  }

  static Value names_of(const GroupEntry& group) {
    Value names = Value::of_list({});
    for (const std::string& name : group.params) names.items.push_back(Value::of_string(name));
    return names;
  }

  void add_listed(std::pair<std::size_t, std::size_t> number, const GroupEntry& group,
                  std::vector<std::pair<std::string, Value>> settings) {
    Value params = Value::of_list({});
    for (const std::string& name : group.params)
      params.items.push_back(numbers_.called(number.first, name));
    settings.emplace_back("params", std::move(params));
    if (numbers_.counts(number.first) && places_.names_are_recorded(number.first))
      settings.emplace_back("param_names", names_of(group));
    for (auto& [name, value] : settings)
      add(places_.setting(number.first, number.second, name), std::move(value));
  }

  StatePlace place_of(const TensorEntry& tensor) const {
    if (tensor.key) return {*tensor.key, tensor.path.empty() ? Path{*tensor.key} : tensor.path};
    if (tensor.state == "tensor")
      return {tensor.name, tensor.path.empty() ? Path{tensor.name} : tensor.path};
    const bool in_model = tensor.state == "param" || tensor.state == "buffer" ||
                          (tensor.state == "master" && !has_param_.contains(tensor.name));
    if (in_model) return keyed(places_.param(tensor.name));
    return keyed(places_.state(tensor.name, tensor.state));
  }
  static StatePlace keyed(Path path) {
    std::string key = joined(path);
    return {std::move(key), std::move(path)};
  }

  const Catalog& content_;
  Places places_;
  StateDict placed_;
  std::set<std::string_view> has_param_;
  ParamNumbers numbers_;
};

// What is known of the parts and still has something below it.
PartsSaid parts_in(const StateDictParts& parts, const Catalog& catalog) {
  const auto holds = [&](const std::string& at) {
    return std::ranges::any_of(catalog.tensors, [&](const TensorEntry& tensor) {
      return at.empty() || tensor.key->starts_with(at + ".");
    });
  };
  PartsSaid said;
  for (const StateDictPlace& model : parts.models)
    if (const std::string at = text_of(model); holds(at))
      said.models.push_back(at.empty() ? "." : at);
  for (const StateDictOptimizer& optimizer : parts.optimizers) {
    const std::string at = text_of(optimizer.at);
    if (holds(at.empty() ? "state" : at + ".state"))
      said.optimizers.push_back(at.empty() ? "." : at);
  }
  return said;
}

// As describe() will find it.
Catalog found_again(const Catalog& content, const StateDict& placed) {
  Catalog again;
  for (std::size_t i = 0; i < content.tensors.size(); ++i) {
    TensorEntry tensor{.key = placed.tensors[i].key, .path = placed.tensors[i].path, .name = {}};
    tensor.shape = content.tensors[i].shape;
    again.tensors.push_back(std::move(tensor));
  }
  for (const PlacedValue& value : placed.values)
    again.values.push_back({value.place.key, value.place.path, value.value});
  if (!name_contents(again, parts_in(content.parts, again)))
    static_cast<void>(name_contents(again));
  return again;
}

bool has_keyless(const Catalog& content) {
  return std::ranges::any_of(content.tensors,
                             [](const TensorEntry& tensor) { return !tensor.key.has_value(); });
}

void respell_tensors(Catalog& content) {
  StateDict dict = state_dict_of(content);
  const bool keyless = has_keyless(content);
  Catalog again = keyless ? found_again(content, dict) : Catalog();
  for (std::size_t i = 0; i < content.tensors.size(); ++i) {
    TensorEntry& tensor = content.tensors[i];
    if (!tensor.key)
      std::tie(tensor.name, tensor.state) = std::tie(again.tensors[i].name, again.tensors[i].state);
    tensor.key = std::move(dict.tensors[i].key);
    tensor.path = std::move(dict.tensors[i].path);
  }
}

}  // namespace

StateDict state_dict_of(const Catalog& content) { return Placing(content).run(); }

void respell_as_state_dict(Catalog& content) {
  take_parts(content);
  change_wholes(content, respell_tensors);
}

Result<> check_reads_back(const Catalog& content, const StateDict& placed) {
  if (!has_keyless(content)) return {};
  const Catalog again = found_again(content, placed);
  for (std::size_t i = 0; i < content.tensors.size(); ++i) {
    const TensorEntry& wanted = content.tensors[i];
    const TensorEntry& found = again.tensors[i];
    if (wanted.key || found.name == wanted.name) continue;
    return Error{Code::unsupported,
                 compose("{} would be stored under the key {}, which is read as {} ({})",
                         label_of(wanted), json_string(placed.tensors[i].key),
                         json_string(found.name), printable(found.state)),
                 "give it another name with --rename"};
  }
  return {};
}

void put_parts(Catalog& content, StepCounters counters) {
  const StateDictParts& parts = content.parts;
  std::vector<Value> models, optimizers, others;
  for (const TensorEntry& tensor : content.tensors)
    if (tensor.state == "tensor") others.push_back(other_value(tensor, content.values));
  const bool in_values = counters == StepCounters::values;
  if (is_usual(parts) && others.empty() && !in_values && parts.tensor_settings.empty()) return;
  for (const StateDictPlace& model : parts.models) models.push_back(value_of(model));
  for (StateDictOptimizer one : parts.optimizers) {
    if (parts.optimizers.size() == 1) one.params.clear();  // all are its own
    optimizers.push_back(value_of(one));
  }
  Value said = Value::of_dict({{"models", Value::of_list(std::move(models))},
                               {"optimizers", Value::of_list(std::move(optimizers))},
                               {"step", value_of(parts.step)},
                               {"others", Value::of_list(std::move(others))}});
  if (in_values) said.add(kCounters, Value::of_string(std::string(kInValues)));
  if (!parts.tensor_settings.empty()) {
    Value settings = Value::of_dict();
    for (const auto& [name, dtype] : parts.tensor_settings)
      settings.add(name, Value::of_dtype(dtype));
    said.add(kTensorSettings, std::move(settings));
  }
  content.values.push_back({std::string(kPartsKey), {}, std::move(said)});
}

StepCounters counters_said(const Catalog& content) {
  const auto parts = std::ranges::find(content.values, kPartsKey, &ValueEntry::key);
  const Value* said = parts == content.values.end() ? nullptr : parts->value.find(kCounters);
  return said != nullptr && said->text == kInValues ? StepCounters::values : StepCounters::tensors;
}

std::set<std::string> other_tensors(const Catalog& content) {
  std::set<std::string> keys;
  const auto said = std::ranges::find(content.values, kPartsKey, &ValueEntry::key);
  if (said != content.values.end())
    for (const auto& [key, path] : others_in(said->value)) keys.insert(key);
  return keys;
}

void take_parts(Catalog& content) {
  const auto said = std::ranges::find(content.values, kPartsKey, &ValueEntry::key);
  if (said == content.values.end()) return;
  auto parts = parts_of(said->value);
  if (!parts) return;
  content.parts = std::move(*parts);
  const std::map<std::string, Path> others = others_in(said->value);
  for (TensorEntry& tensor : content.tensors) {
    const auto other = others.find(tensor.name);
    if (other == others.end() || (tensor.state != "param" && tensor.state != "tensor")) continue;
    tensor.state = "tensor";  // a format without a word for it may have called it a parameter
    tensor.path = other->second;
  }
  content.values.erase(said);
}

}  // namespace ebb::formats
