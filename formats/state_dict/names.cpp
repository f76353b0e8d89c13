#include "ebb/formats/state_dict/names.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <tuple>

#include "ebb/formats/catalog/renaming.h"
#include "ebb/formats/catalog/with_catalog.h"
#include "ebb/formats/core/float_cast.h"
#include "ebb/formats/core/json_text.h"
#include "ebb/formats/core/name_table.h"
#include "ebb/formats/core/number_text.h"
#include "ebb/formats/state_dict/groups.h"
#include "ebb/formats/state_dict/infer.h"
#include "ebb/formats/state_dict/key_split.h"
#include "ebb/formats/state_dict/numbers.h"
#include "ebb/formats/state_dict/slots.h"

namespace ebb::formats {
namespace {

// Whole numbers have no gradient. Those of a quantised tensor stand for others.
bool can_be_trained(const TensorEntry& tensor) {
  return is_floating(tensor.dtype) || tensor.dtype == DType::c64 || tensor.dtype == DType::c128 ||
         tensor.part_of;
}

class Naming {
 public:
  Naming(Catalog& catalog, FoundParts found)
      : catalog_(catalog),
        found_(std::move(found)),
        models_(found_.places.models.size()),
        optimizers_(found_.places.optimizers.size()) {}

  Result<> run(const std::optional<std::vector<std::string>>& said) {
    list_params();
    list_states();
    take_recorded();
    if (said) EBB_TRY(take_said(*said));
    infer();
    catalog_.groups.clear();
    catalog_.grouped = order_in_groups();
    for (std::uint32_t o = 0; o < optimizers_.size(); ++o)
      for (GroupEntry& group : found_.groups[o]) add_group(o, std::move(group));
    for (std::size_t i = 0; i < catalog_.tensors.size(); ++i) name(i);
    count_steps();
    take_back_repeats();
    note_strangers();
    catalog_.parts = std::move(found_.places);
    catalog_.parts.unclear = std::move(found_.notes);
    return {};
  }

 private:
  struct Model {
    std::vector<ModelParam> params;  // as they are listed; those that are tied once
    NameTable names;
  };
  struct OfParam {
    StateShapes states;
    std::optional<std::string> name;  // where the key does not say it
  };
  struct Optimizer {
    std::map<std::string, OfParam, std::less<>> params;
    std::set<std::string> names;
  };

  std::string_view key_of(std::size_t tensor) const {
    const TensorEntry& entry = catalog_.tensors[tensor];
    return entry.key ? std::string_view(*entry.key) : std::string_view(entry.name);
  }
  std::string_view name_in_key(std::size_t tensor) const {
    const Belonging& its = found_.tensors[tensor];
    return key_of(tensor).substr(its.name_at, its.name_end - its.name_at);
  }

  void list_params() {
    std::set<std::tuple<std::uint32_t, std::uint64_t, std::uint64_t>> places;
    std::set<std::string_view> all;
    for (std::size_t i = 0; i < catalog_.tensors.size(); ++i) {
      const Belonging& its = found_.tensors[i];
      if (its.to != Belonging::To::model) continue;
      const std::string_view name = name_in_key(i);
      if (models_.size() > 1) qualified_ = qualified_ || !all.insert(name).second;
      models_[its.part].names.insert(name);
      if (is_extra_state(name) || !can_be_trained(catalog_.tensors[i])) continue;
      // Tied parameters are one parameter to the optimizer.
      const TensorEntry& tensor = catalog_.tensors[i];
      const bool is_new = std::all_of(tensor.chunks.begin(), tensor.chunks.end(), [&](auto& chunk) {
        const std::size_t before = places.size();
        places.emplace_hint(places.end(), chunk.file, chunk.offset, chunk.length);
        return places.size() != before;
      });
      if (is_new) models_[its.part].params.push_back({name, &tensor.shape});
    }
  }

  void list_states() {
    for (std::size_t i = 0; i < catalog_.tensors.size(); ++i)
      if (const Belonging& its = found_.tensors[i]; its.to == Belonging::To::optimizer)
        param(its.part, name_in_key(i)).states.emplace(state_of(i), &catalog_.tensors[i].shape);
    for (std::uint32_t o = 0; o < optimizers_.size(); ++o)
      for (const GroupEntry& group : found_.groups[o])
        for (const std::string& name : group.params) param(o, name);
  }

  OfParam& param(std::uint32_t optimizer, std::string_view name) {
    auto& params = optimizers_[optimizer].params;
    const auto known = params.find(name);
    return known != params.end() ? known->second : params[std::string(name)];
  }

  std::string_view state_of(std::size_t tensor) const {
    return key_of(tensor).substr(found_.tensors[tensor].name_end + 1);
  }

  const Model* model_of(std::uint32_t optimizer) const {
    const auto& model = found_.model_of[optimizer];
    return model ? &models_[*model] : nullptr;
  }

  // A number, as torch.optim counts parameters, and not a module that is called so.
  bool is_number(std::uint32_t optimizer, std::string_view param) const {
    const Model* model = model_of(optimizer);
    return is_index(param) && (model == nullptr || !model->names.find(param));
  }
  bool lacks_name(std::uint32_t optimizer, std::string_view param) {
    return is_number(optimizer, param) && !this->param(optimizer, param).name;
  }

  // torch 2.6 and newer can list names beside the numbers.
  void take_recorded() {
    for (std::uint32_t o = 0; o < optimizers_.size(); ++o)
      for (GroupEntry& group : found_.groups[o]) {
        const auto listed =
            std::ranges::find(group.settings, "param_names", &std::pair<std::string, Value>::first);
        if (listed == group.settings.end()) continue;
        const std::vector<Value> told = std::move(listed->second.items);
        group.settings.erase(listed);
        if (told.size() != group.params.size()) continue;
        for (std::size_t i = 0; i < told.size(); ++i)
          if (!told[i].text.empty()) param(o, group.params[i]).name = told[i].text;
      }
  }

  Result<> take_said(const std::vector<std::string>& names) {
    SaidNames said(names);
    std::vector<std::pair<std::uint32_t, std::size_t>> firsts;  // optimizer, its first name
    for (std::uint32_t o = 0; o < optimizers_.size(); ++o) {
      std::size_t count = 0;
      for (const auto& [name, its] : optimizers_[o].params)
        if (lacks_name(o, name))
          count = std::max(count, *parse_number<std::size_t>(name) + std::size_t{1});
      if (count > 0) firsts.emplace_back(o, said.add_optimizer(count));
    }
    EBB_TRY(said.check_count());
    for (const auto& [o, first] : firsts) {
      const Model* model = model_of(o);
      for (auto& [name, its] : optimizers_[o].params) {
        if (!lacks_name(o, name)) continue;
        const std::size_t place = first + *parse_number<std::size_t>(name);
        EBB_TRY(said.check(place, its.states,
                           model == nullptr ? std::vector<ModelParam>() : model->params));
        its.name = said.at(place);
      }
    }
    return {};
  }

  void infer() {
    for (std::uint32_t m = 0; m < models_.size(); ++m) {
      std::vector<std::pair<std::uint32_t, const GroupEntry*>> groups;
      std::vector<std::vector<const Shape*>> shapes;
      for (std::uint32_t o = 0; o < optimizers_.size(); ++o)
        for (const GroupEntry& group : found_.groups[o]) {
          const bool numbers = std::ranges::all_of(
              group.params, [&](const std::string& name) { return lacks_name(o, name); });
          if (found_.model_of[o] != m || !numbers) continue;
          std::vector<const StateShapes*> states;
          for (const std::string& name : group.params) states.push_back(&param(o, name).states);
          groups.emplace_back(o, &group);
          shapes.push_back(shapes_of_params(states, models_[m].params));
        }
      const auto inferred = infer_names(models_[m].params, shapes, order());
      for (std::size_t g = 0; g < groups.size(); ++g) take_inferred(groups[g], inferred[g]);
    }
  }

  void take_inferred(const std::pair<std::uint32_t, const GroupEntry*>& group,
                     const InferredNames& inferred) {
    const auto& [optimizer, entry] = group;
    for (std::size_t i = 0; i < inferred.names.size(); ++i)
      if (!inferred.names[i].empty()) param(optimizer, entry->params[i]).name = inferred.names[i];
    NamedBy& named = found_.places.optimizers[optimizer].named;
    if (!inferred.names.empty()) named = std::max(named, inferred.by);
  }

  ModelOrder order() const {
    const bool as_saved = catalog_.listed == ListOrder::of_the_model && !counts_in_words();
    return as_saved ? ModelOrder::of_the_model : ModelOrder::unknown;
  }
  // Numbers that are words have been keys of a DCP, which lists tensors in an order of its own.
  bool counts_in_words() const {
    for (std::size_t i = 0; i < catalog_.tensors.size(); ++i) {
      const Belonging& its = found_.tensors[i];
      if (its.to != Belonging::To::optimizer || !is_number(its.part, name_in_key(i))) continue;
      const std::size_t number = found_.places.optimizers[its.part].at.path.size() + 1;
      const std::vector<PathItem>& path = catalog_.tensors[i].path;
      if (number < path.size() && std::holds_alternative<std::string>(path[number])) return true;
    }
    return false;
  }

  void add_group(std::uint32_t optimizer, GroupEntry group) {
    for (std::string& param : group.params) {
      param = name_for(optimizer, param);
      optimizers_[optimizer].names.insert(param);
    }
    catalog_.groups.push_back(std::move(group));
  }

  GroupOrder order_in_groups() const {
    const bool listed = std::ranges::any_of(
        found_.settings, [&](std::size_t value) { return lists_params(catalog_.values[value]); });
    return listed && optimizers_.size() == 1 ? GroupOrder::of_the_optimizer : GroupOrder::unknown;
  }

  // Of several models with parameters of one name, each parameter says of which it is.
  std::string of_model(std::optional<std::uint32_t> model, std::string_view name) const {
    if (!qualified_ || !model) return std::string(name);
    const std::string at = text_of(found_.places.models[*model]);
    return at.empty() ? std::string(name) : compose("{}.{}", at, name);
  }
  std::string spelled(std::uint32_t optimizer, std::string_view name) const {
    return of_model(found_.model_of[optimizer], name);
  }

  std::string name_for(std::uint32_t optimizer, std::string_view param) const {
    const auto known = optimizers_[optimizer].params.find(param);
    if (known != optimizers_[optimizer].params.end() && known->second.name)
      return spelled(optimizer, *known->second.name);
    if (!is_number(optimizer, param)) return spelled(optimizer, param);
    const std::string at = text_of(found_.places.optimizers[optimizer].at);
    return at + (at.empty() ? "" : ".") + std::string(param);
  }

  void name(std::size_t number) {
    const Belonging& its = found_.tensors[number];
    TensorEntry& tensor = catalog_.tensors[number];
    if (its.to == Belonging::To::nothing) {
      if (tensor.key) tensor.name = *tensor.key, tensor.state = "tensor";
    } else if (its.to == Belonging::To::model) {
      tensor.name = of_model(its.part, name_in_key(number));
      tensor.state = is_extra_state(tensor.name) ? "buffer" : "param";
    } else {
      tensor.state = state_of(number);
      tensor.name = name_for(its.part, name_in_key(number));
      optimizers_[its.part].names.insert(tensor.name);
    }
  }

  // Steps of parameters that are no tensors: whole numbers, where a state "step" would be.
  void count_steps() {
    catalog_.param_steps.clear();
    std::map<std::string, std::uint32_t> number_of;  // optimizers, by where they lie
    for (std::uint32_t o = 0; o < optimizers_.size(); ++o)
      number_of.emplace(text_of(found_.places.optimizers[o].at), o);
    for (ValueEntry& value : catalog_.values) {
      const std::optional<std::int64_t> steps = counted(value.value);
      if (!steps || !value.key.ends_with(".step")) continue;
      const KeyPath key(value.key, value.path);
      for (const KeySplit& split : splits_at(key, "state")) {
        const auto optimizer = number_of.find(std::string(split.at(value.key)));
        const std::optional<Slot> slot = slot_at(key, split);
        if (optimizer == number_of.end() || !slot || slot->state(value.key) != "step") continue;
        const std::string name = name_for(optimizer->second, slot->name(value.key));
        value.echoed = catalog_.param_steps.emplace(name, *steps).second;
        optimizers_[optimizer->second].names.insert(name);
        break;
      }
    }
  }

  // What two tensors would be called they are not called.
  void take_back_repeats() {
    std::string all;  // a text for each pair of name and state
    std::vector<std::size_t> ends;
    for (const TensorEntry& tensor : catalog_.tensors) {
      all.append(tensor.name).append(1, '\0').append(tensor.state);
      ends.push_back(all.size());
    }
    NameTable table;
    table.reserve(ends.size());
    std::vector<std::uint32_t> numbers, uses;
    std::size_t start = 0;
    for (const std::size_t end : ends) {
      const auto [number, fresh] = table.insert(std::string_view(all).substr(start, end - start));
      start = end;
      if (fresh) uses.push_back(0);
      ++uses[number];
      numbers.push_back(number);
    }
    for (std::size_t i = 0; i < numbers.size(); ++i)
      if (TensorEntry& tensor = catalog_.tensors[i]; uses[numbers[i]] > 1 && tensor.key)
        tensor.name = *tensor.key, tensor.state = "tensor";
  }

  // One line for all of them.
  void note_strangers() {
    std::size_t numbers = 0;
    std::string first, alike;
    for (std::uint32_t o = 0; o < optimizers_.size(); ++o) {
      Optimizer& optimizer = optimizers_[o];
      found_.places.optimizers[o].params.assign(optimizer.names.begin(), optimizer.names.end());
      for (const auto& [param, known] : optimizer.params) {
        if (known.name || known.states.empty() || !is_number(o, param)) continue;
        if (numbers++ == 0) first = name_for(o, param);
        if (alike.empty()) alike = alike_text(model_of(o), known.states);
      }
    }
    if (numbers == 0) return;
    const bool one = numbers == 1;
    found_.notes.push_back(compose(
        "{} of an optimizer {} ({}), nothing records {}: ckpt-convert --names FILE says {}{}",
        one ? "1 parameter" : compose("{} parameters", numbers),
        one ? "is a number" : "are numbers", printable(first) + (one ? "" : ", ..."),
        one ? "its name" : "their names", one ? "it" : "them", alike));
  }

  // Parameters of the model that a number with these states may be; "" unless several.
  static std::string alike_text(const Model* model, const StateShapes& states) {
    constexpr std::size_t kShown = 3;
    if (model == nullptr) return {};
    for (const auto& [state, shape] : states) {
      std::size_t count = 0;
      std::string names;
      for (const ModelParam& param : model->params)
        if (*param.shape == *shape && count++ < kShown)
          names += (count == 1 ? "" : ", ") + printable(param.name);
      if (count > 1 && volume(*shape) > 1)
        return compose("; {} are alike, {} ({}{})", count, to_string(*shape), names,
                       count > kShown ? ", ..." : "");
    }
    return {};
  }

  Catalog& catalog_;
  FoundParts found_;
  std::vector<Model> models_;
  std::vector<Optimizer> optimizers_;
  bool qualified_ = false;
};

}  // namespace

Result<> name_contents(Catalog& catalog, const PartsSaid& said,
                       std::vector<ValueEntry> in_tensors) {
  EBB_TRY_ASSIGN(FoundParts found, find_parts(catalog, said, in_tensors));
  std::erase_if(catalog.notes, [&](const std::string& note) {
    return std::ranges::find(catalog.parts.unclear, note) != catalog.parts.unclear.end() ||
           note.starts_with(kInferredNames);
  });
  for (ValueEntry& value : catalog.values) value.echoed = false;
  for (const std::size_t setting : found.settings) catalog.values[setting].echoed = true;
  EBB_TRY(Naming(catalog, std::move(found)).run(said.names));
  catalog.step.reset();
  if (ValueEntry* step = step_value(catalog.values, catalog.parts.models)) {
    catalog.step = step->value.integer;
    catalog.parts.step = step->path;
    step->echoed = true;
  } else if (const ValueEntry* tensor = step_value(in_tensors, catalog.parts.models)) {
    catalog.step = tensor->value.integer;
    catalog.parts.step = tensor->path;
  }
  std::ranges::move(inferred_names(catalog), std::back_inserter(catalog.notes));
  catalog.notes.insert(catalog.notes.end(), catalog.parts.unclear.begin(),
                       catalog.parts.unclear.end());
  return {};
}

bool is_extra_state(std::string_view name) {
  return name.substr(name.rfind('.') + 1) == kExtraState;
}

std::set<std::string_view> mere_numbers(const Catalog& source) {
  std::set<std::string_view> names;
  for (const StateDictOptimizer& optimizer : source.parts.optimizers) {
    const std::string at = text_of(optimizer.at);
    for (const std::string_view name : optimizer.params) {
      const bool below = name.starts_with(at) && name.size() > at.size();
      if (below && is_index(name.substr(at.empty() ? 0 : at.size() + 1))) names.insert(name);
    }
  }
  if (names.empty()) return names;
  for (const TensorEntry& tensor : source.tensors)
    if (tensor.state == "param") names.erase(tensor.name);
  return names;
}

Result<> check_understood(const Catalog& source, const Catalog& content) {
  if (!source.parts.models.empty()) return {};
  for (const TensorEntry& tensor : content.tensors)
    if (tensor.state == "tensor")
      return Error{Code::unsupported,
                   "tensor '" + printable(tensor.name) +
                       "': nothing tells whether it is a parameter, because which part of this "
                       "state dict is the model is not clear",
                   "--model KEY and --optimizer KEY say which part is what; --to dcp, torch, "
                   "safetensors and hdf5 keep every tensor under its key"};
  return {};
}

Result<> check_named(const Catalog& source, const Catalog& content) {
  const std::set<std::string_view> numbers = mere_numbers(source);
  for (const TensorEntry& tensor : content.tensors)
    if (tensor.state != "tensor" && numbers.contains(tensor.name))
      return Error{Code::unsupported,
                   compose("'{}' ({}): nothing records which parameter of the model this number of "
                           "the optimizer is, and shapes do not tell",
                           printable(tensor.name), printable(tensor.state)),
                   names_hint() + "; --states param converts the weights alone"};
  return {};
}

bool has_numbers(const Catalog& source) {
  return !mere_numbers(source).empty() ||
         std::ranges::any_of(source.parts.optimizers, [](const StateDictOptimizer& optimizer) {
           return optimizer.named != NamedBy::recorded;
         });
}

std::unique_ptr<Checkpoint> named_like(std::unique_ptr<Checkpoint> stored, const Catalog& model) {
  std::map<std::string_view, const TensorEntry*> by_key;
  for (const TensorEntry& tensor : model.tensors)
    if (tensor.key) by_key.emplace(*tensor.key, &tensor);
  Catalog catalog = stored->catalog();
  std::map<std::string, std::string> fresh;  // names of states
  for (TensorEntry& tensor : catalog.tensors) {
    const auto known = by_key.find(*tensor.key);
    if (known == by_key.end()) continue;
    if (tensor.state != "param" && tensor.state != "tensor")
      fresh.emplace(tensor.name, known->second->name);
    tensor.name = known->second->name;
    tensor.state = known->second->state;
  }
  rename_beside_tensors(catalog, [&](std::string& name) {
    if (const auto found = fresh.find(name); found != fresh.end()) name = found->second;
  });
  return with_catalog(std::move(stored), std::move(catalog));
}

}  // namespace ebb::formats
