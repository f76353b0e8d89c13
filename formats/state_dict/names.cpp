#include "ebb/formats/state_dict/names.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <tuple>

#include "ebb/formats/catalog/with_catalog.h"
#include "ebb/formats/core/json_text.h"
#include "ebb/formats/core/name_table.h"
#include "ebb/formats/state_dict/groups.h"

namespace ebb::formats {
namespace {

struct Param {
  std::string_view name;
  const Shape* shape = nullptr;
};

// Which of `params` the shapes are, in order; nullopt when there is not exactly one way.
std::optional<std::vector<std::string_view>> matched(const std::vector<Param>& params,
                                                     const std::vector<const Shape*>& shapes) {
  std::vector<std::size_t> first, last;
  std::size_t next = 0;
  for (std::size_t p = 0; p < params.size() && next < shapes.size(); ++p)
    if (*params[p].shape == *shapes[next]) first.push_back(p), ++next;
  next = shapes.size();
  for (std::size_t p = params.size(); p-- > 0 && next > 0;)
    if (*params[p].shape == *shapes[next - 1]) last.push_back(p), --next;
  std::reverse(last.begin(), last.end());
  if (first.size() != shapes.size() || first != last) return std::nullopt;
  std::vector<std::string_view> names;
  for (const std::size_t p : first) names.push_back(params[p].name);
  return names;
}

bool is_digits(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

class Naming {
 public:
  Naming(Catalog& catalog, FoundParts found)
      : catalog_(catalog),
        found_(std::move(found)),
        models_(found_.places.models.size()),
        optimizers_(found_.places.optimizers.size()) {}

  void run() {
    list_params();
    find_shapes();
    catalog_.groups.clear();
    for (std::uint32_t o = 0; o < optimizers_.size(); ++o)
      for (GroupEntry& group : found_.groups[o]) add_group(o, std::move(group));
    for (std::size_t i = 0; i < catalog_.tensors.size(); ++i) name(i);
    take_back_repeats();
    note_strangers();
    catalog_.parts = std::move(found_.places);
    catalog_.parts.unclear = std::move(found_.notes);
  }

 private:
  struct Model {
    std::vector<Param> params;  // in their order; those that are tied once
    NameTable names;
  };
  struct OfParam {
    const Shape* shape = nullptr;     // of its largest state; nullptr: it has none
    std::optional<std::string> name;  // told by its group, or by the shapes
  };
  struct Optimizer {
    std::map<std::string_view, OfParam> params;
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

  // The shape of a parameter is that of its largest state.
  void find_shapes() {
    for (std::size_t i = 0; i < catalog_.tensors.size(); ++i) {
      const Belonging& its = found_.tensors[i];
      if (its.to != Belonging::To::optimizer) continue;
      const Shape*& known = optimizers_[its.part].params[name_in_key(i)].shape;
      const Shape& shape = catalog_.tensors[i].shape;
      if (state_of(i) == "step") continue;
      if (known == nullptr || volume(shape) > volume(*known)) known = &shape;
    }
  }

  std::string_view state_of(std::size_t tensor) const {
    return key_of(tensor).substr(found_.tensors[tensor].name_end + 1);
  }

  const Model* model_of(std::uint32_t optimizer) const {
    const auto& model = found_.model_of[optimizer];
    return model ? &models_[*model] : nullptr;
  }

  // A number, as torch.optim counts parameters, and not a module that is called so.
  bool is_index(std::uint32_t optimizer, std::string_view param) const {
    const Model* model = model_of(optimizer);
    return is_digits(param) && (model == nullptr || !model->names.find(param));
  }

  void add_group(std::uint32_t optimizer, GroupEntry group) {
    std::vector<std::string> told;
    const auto listed = std::find_if(group.settings.begin(), group.settings.end(),
                                     [](const auto& pair) { return pair.first == "param_names"; });
    if (listed != group.settings.end()) {
      for (const Value& name : listed->second.items) told.push_back(name.text);
      group.settings.erase(listed);
    } else {
      told = names_by_shape(optimizer, group);
    }
    for (std::size_t i = 0; i < group.params.size(); ++i) {
      std::string& param = group.params[i];
      const auto known = optimizers_[optimizer].params.find(param);
      if (told.size() == group.params.size() && !told[i].empty()) {
        if (known != optimizers_[optimizer].params.end() && !known->second.name)
          known->second.name = told[i];
        param = spelled(optimizer, told[i]);
      } else {
        param = name_for(optimizer, param);
      }
      optimizers_[optimizer].names.insert(param);
    }
    catalog_.groups.push_back(std::move(group));
  }

  std::vector<std::string> names_by_shape(std::uint32_t optimizer, const GroupEntry& group) const {
    const Model* model = model_of(optimizer);
    if (model == nullptr) return {};
    std::vector<const Shape*> shapes;
    for (const std::string& param : group.params) {
      const auto known = optimizers_[optimizer].params.find(param);
      const bool has_shape = known != optimizers_[optimizer].params.end() &&
                             known->second.shape != nullptr && is_index(optimizer, param);
      if (!has_shape) return {};
      shapes.push_back(known->second.shape);
    }
    const auto names = matched(model->params, shapes);
    return names ? std::vector<std::string>(names->begin(), names->end())
                 : std::vector<std::string>();
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
    if (!is_index(optimizer, param)) return spelled(optimizer, param);
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
      tensor.state = "param";
    } else {
      tensor.state = state_of(number);
      tensor.name = name_for(its.part, name_in_key(number));
      optimizers_[its.part].names.insert(tensor.name);
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

  void note_strangers() {
    for (std::uint32_t o = 0; o < optimizers_.size(); ++o) {
      Optimizer& optimizer = optimizers_[o];
      found_.places.optimizers[o].params.assign(optimizer.names.begin(), optimizer.names.end());
      std::size_t numbers = 0;
      std::string first;
      for (const auto& [param, known] : optimizer.params)
        if (!known.name && is_index(o, param) && numbers++ == 0) first = name_for(o, param);
      if (numbers == 0) continue;
      found_.notes.push_back(compose(
          "{}{} of an optimizer are numbers ({}{}), and neither param_names nor shapes tell which "
          "parameters of the model they are: ckpt-convert --rename '{}=NAME' says it",
          numbers, numbers == 1 ? " parameter" : " parameters", printable(first),
          (numbers == 1 ? "" : ", ..."), printable(first)));
    }
  }

  Catalog& catalog_;
  FoundParts found_;
  std::vector<Model> models_;
  std::vector<Optimizer> optimizers_;
  bool qualified_ = false;
};

// What optimizers call parameters by numbers that became no names.
std::set<std::string_view> mere_numbers(const Catalog& source) {
  std::set<std::string_view> names;
  for (const StateDictOptimizer& optimizer : source.parts.optimizers) {
    const std::string at = text_of(optimizer.at);
    for (const std::string_view name : optimizer.params) {
      const bool below = name.starts_with(at) && name.size() > at.size();
      if (below && is_digits(name.substr(at.empty() ? 0 : at.size() + 1))) names.insert(name);
    }
  }
  for (const TensorEntry& tensor : source.tensors)
    if (tensor.state == "param") names.erase(tensor.name);
  return names;
}

}  // namespace

Result<> name_contents(Catalog& catalog, const PartsSaid& said) {
  EBB_TRY_ASSIGN(FoundParts found, find_parts(catalog, said));
  std::erase_if(catalog.notes, [&](const std::string& note) {
    return std::ranges::find(catalog.parts.unclear, note) != catalog.parts.unclear.end();
  });
  for (ValueEntry& value : catalog.values) value.echoed = false;
  for (const std::size_t setting : found.settings) catalog.values[setting].echoed = true;
  Naming(catalog, std::move(found)).run();
  catalog.step.reset();
  if (ValueEntry* step = step_value(catalog.values, catalog.parts.models)) {
    catalog.step = step->value.integer;
    catalog.parts.step = step->path;
    step->echoed = true;
  }
  catalog.notes.insert(catalog.notes.end(), catalog.parts.unclear.begin(),
                       catalog.parts.unclear.end());
  return {};
}

Result<> check_understood(const Catalog& source, const Catalog& content) {
  const std::set<std::string_view> numbers = mere_numbers(source);
  for (const TensorEntry& tensor : content.tensors) {
    if (tensor.state == "tensor" && source.parts.models.empty())
      return Error{Code::unsupported,
                   "tensor '" + printable(tensor.name) +
                       "': nothing tells whether it is a parameter, because which part of this "
                       "state dict is the model is not clear",
                   "--model KEY and --optimizer KEY say which part is what; --to dcp, torch, "
                   "safetensors and hdf5 keep every tensor under its key"};
    if (tensor.state != "tensor" && numbers.contains(tensor.name))
      return Error{Code::unsupported,
                   compose("'{}' ({}): neither param_names nor shapes tell which parameter of the "
                           "model this number of the optimizer is",
                           printable(tensor.name), printable(tensor.state)),
                   "--rename '" + printable(tensor.name) +
                       "=NAME' says it; --states param converts the weights alone"};
  }
  return {};
}

std::unique_ptr<Checkpoint> named_like(std::unique_ptr<Checkpoint> stored, const Catalog& model) {
  std::map<std::string_view, const TensorEntry*> by_key;
  for (const TensorEntry& tensor : model.tensors)
    if (tensor.key) by_key.emplace(*tensor.key, &tensor);
  Catalog catalog = stored->catalog();
  for (TensorEntry& tensor : catalog.tensors) {
    const auto known = by_key.find(*tensor.key);
    if (known == by_key.end()) continue;
    tensor.name = known->second->name;
    tensor.state = known->second->state;
  }
  return with_catalog(std::move(stored), std::move(catalog));
}

}  // namespace ebb::formats
