// Content at its place in such a folder: the model below "model", its one optimizer below
// "optimizer", the step in the state of a Trainer.
#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ebb/formats/catalog/composite.h"
#include "ebb/formats/catalog/key_path.h"
#include "ebb/formats/core/float_cast.h"
#include "ebb/formats/folders/folder_keys.h"
#include "ebb/formats/folders/folders.h"
#include "ebb/formats/folders/layout.h"
#include "ebb/formats/state_dict/numbers.h"
#include "ebb/formats/state_dict/parts.h"
#include "ebb/formats/state_dict/state_dict.h"

namespace ebb::formats {
namespace folders {
namespace {

using Path = std::vector<PathItem>;

Path path_of(std::string_view first, const Path& rest = {}) {
  Path path = {std::string(first)};
  path.insert(path.end(), rest.begin(), rest.end());
  return path;
}

// What of a path lies below the place. Nothing lies below the top, where everything does.
std::optional<Path> below(const StateDictPlace& place, const Path& path) {
  const bool top = place.path.empty() && place.prefix.empty();
  const std::size_t depth = place.path.size();
  if (top || path.size() <= depth ||
      !std::equal(place.path.begin(), place.path.end(), path.begin()))
    return std::nullopt;
  Path rest(path.begin() + static_cast<std::ptrdiff_t>(depth), path.end());
  if (place.prefix.empty()) return rest;
  auto* first = std::get_if<std::string>(&rest.front());
  if (first == nullptr || !first->starts_with(place.prefix)) return std::nullopt;
  first->erase(0, place.prefix.size());
  return rest;
}

// The last items of a path that spell the state: an optimizer may keep lists of tensors.
Path state_in(const TensorEntry& tensor) {
  Path last;
  for (auto item = tensor.path.rbegin(); item != tensor.path.rend(); ++item) {
    last.insert(last.begin(), *item);
    if (joined(last) == tensor.state) return last;
  }
  return {tensor.state};
}

// Formats without nesting have keys of one piece.
Path path_of_key(const std::string& key) {
  const std::size_t dot = key.find('.');
  const std::string first = key.substr(0, dot);
  if (dot == std::string::npos || !is_job_key(first)) return {key};
  return {first, key.substr(dot + 1)};
}

class Respelling {
 public:
  explicit Respelling(Catalog& content) : content_(content), from_(content.parts) {
    for (const GroupEntry& group : content_.groups)
      numbered_.insert(numbered_.end(), group.params.begin(), group.params.end());
  }

  void run() {
    leave_places();
    find_masters();
    content_.parts = {};
    content_.parts.models.push_back({path_of(kModelKey), {}});
    content_.parts.optimizers.push_back({{path_of(kOptimizerKey), {}}, {}, {}});
    content_.parts.step = path_of(kTrainerStateKey, path_of(kTrainerStepKey));
    StateDict placed = state_dict_of(content_);
    for (std::size_t i = 0; i < content_.tensors.size(); ++i)
      place(content_.tensors[i], std::move(placed.tensors[i]));
    const std::size_t own = content_.values.size();
    for (std::size_t i = own; i < placed.values.size(); ++i) {
      auto& [place, value] = placed.values[i];
      content_.values.push_back(
          {std::move(place.key), std::move(place.path), std::move(value), true});
    }
  }

 private:
  // What is said again, at the new places, is not said at the old ones.
  void leave_places() {
    std::erase_if(content_.values, [](const ValueEntry& value) { return value.echoed; });
    for (ValueEntry& value : content_.values) {
      if (value.path.empty() && !value.key.empty()) value.path = path_of_key(value.key);
      if (auto moved = moved_path(value.path)) {
        value.path = std::move(*moved);
        value.key = joined(value.path);
      }
    }
    std::erase_if(content_.containers, [&](const ContainerEntry& container) {
      return moved_path(container.path).has_value();
    });
    for (TensorEntry& tensor : content_.tensors) {
      states_.push_back(tensor.state == "tensor" ? Path() : state_in(tensor));
      if (tensor.state == "tensor") continue;
      tensor.key.reset();
      tensor.path.clear();
    }
  }

  // Where a value or a container of a part comes to lie; nullopt: it is part of none.
  std::optional<Path> moved_path(const Path& path) const {
    for (const StateDictOptimizer& optimizer : from_.optimizers)
      if (auto rest = below(optimizer.at, path)) {
        if (rest->size() > 2 && is_word(rest->front(), kStateKey)) (*rest)[1] = name_of((*rest)[1]);
        return path_of(kOptimizerKey, *rest);
      }
    for (const StateDictPlace& model : from_.models)
      if (auto rest = below(model, path)) return path_of(kModelKey, *rest);
    return std::nullopt;
  }

  // Of a parameter that the optimizer's state has by a number or by its name.
  PathItem name_of(const PathItem& item) const {
    const auto number = number_of(item);
    const bool known =
        number && *number < numbered_.size() && content_.grouped == GroupOrder::of_the_optimizer;
    return known ? PathItem(numbered_[*number]) : item;
  }

  // Whose weights are the masters: a job computes with what it rounds them to.
  void find_masters() {
    std::map<std::string_view, const TensorEntry*> params;
    for (const TensorEntry& tensor : content_.tensors)
      if (tensor.state == "param") params.emplace(tensor.name, &tensor);
    for (const TensorEntry& tensor : content_.tensors) {
      const auto param = params.find(tensor.name);
      if (tensor.state == "master" && param != params.end() &&
          is_rounded_master(*param->second, tensor))
        mastered_.insert(tensor.name);
    }
  }

  void place(TensorEntry& tensor, StatePlace placed) {
    const std::size_t number = static_cast<std::size_t>(&tensor - content_.tensors.data());
    tensor.path = std::move(placed.path);
    if (tensor.state == "master" && mastered_.contains(tensor.name)) {
      tensor.path = path_of(kModelKey, {tensor.name});
    } else if (tensor.state != "tensor" && is_word(tensor.path.front(), kOptimizerKey)) {
      tensor.path.pop_back();
      tensor.path.insert(tensor.path.end(), states_[number].begin(), states_[number].end());
    }
    tensor.key = joined(tensor.path);
  }

  Catalog& content_;
  const StateDictParts from_;
  std::vector<std::string> numbered_;  // the optimizer's parameters, in the order of the groups
  std::vector<Path> states_;           // of each tensor
  std::set<std::string> mastered_;
};

// trainer_state.json is read with a value for each of its fields.
void gather_trainer_state(Catalog& content) {
  Catalog state;
  const StateDictPlace place{path_of(kTrainerStateKey), {}};
  std::erase_if(content.values, [&](const ValueEntry& value) {
    auto rest = value.echoed ? std::nullopt : below(place, value.path);
    if (rest) state.values.push_back({joined(*rest), *rest, value.value});
    return rest.has_value();
  });
  std::erase_if(content.containers, [&](const ContainerEntry& container) {
    auto rest = below(place, container.path);
    if (rest) state.containers.push_back({*rest, container.kind});
    return rest.has_value();
  });
  auto fields = values_in_one_piece(state);
  for (ValueEntry& field : fields ? *fields : state.values) {
    field.path = path_of(kTrainerStateKey, field.path);
    content.values.push_back({joined(field.path), field.path, std::move(field.value)});
  }
}

// Numbers for names in an optimizer's state dict, and the names beside them where they are known.
class Numbering {
 public:
  explicit Numbering(Catalog& content) : content_(content) {
    for (const TensorEntry& tensor : content_.tensors)
      if (tensor.state == "param") params_.insert(tensor.name);
    for (const GroupEntry& group : content_.groups)
      for (const std::string& name : group.params)
        numbers_.emplace(name, static_cast<std::int64_t>(numbers_.size()));
  }

  void run(NamedBy named) {
    for (TensorEntry& tensor : content_.tensors)
      if (number(tensor.path)) tensor.key = joined(tensor.path);
    std::vector<ValueEntry> names;
    for (ValueEntry& value : content_.values) {
      if (number(value.path)) value.key = joined(value.path);
      if (!value.echoed || value.path.size() != 4 || !is_word(value.path[1], kGroupsKey) ||
          !is_word(value.path[3], "params"))
        continue;
      if (named != NamedBy::order && are_names(value.value)) {
        names.push_back(value);
        names.back().path.back() = "param_names";
        names.back().key = joined(names.back().path);
      }
      for (Value& name : value.value.items) name = Value::of_int(numbers_.at(name.text));
    }
    std::ranges::move(names, std::back_inserter(content_.values));
    content_.containers.push_back({path_of(kOptimizerKey, path_of(kStateKey)), Value::Kind::dict});
  }

 private:
  bool number(Path& path) const {
    if (path.size() < 3 || !is_word(path[0], kOptimizerKey) || !is_word(path[1], kStateKey))
      return false;
    const auto* name = std::get_if<std::string>(&path[2]);
    const auto found = name == nullptr ? numbers_.end() : numbers_.find(*name);
    if (found == numbers_.end()) return false;
    path[2] = found->second;
    return true;
  }

  // "optimizer.3" is the name of no parameter.
  bool are_names(const Value& list) const {
    return std::ranges::all_of(list.items, [&](const Value& item) {
      return params_.contains(item.text) || !is_index(item.text.substr(item.text.rfind('.') + 1));
    });
  }

  Catalog& content_;
  std::set<std::string_view> params_;
  std::map<std::string, std::int64_t> numbers_;
};

}  // namespace

bool is_rounded_master(const TensorEntry& param, const TensorEntry& master) {
  return param.dtype != master.dtype && param.shape == master.shape &&
         is_widening(param.dtype, master.dtype);
}

}  // namespace folders

void respell_for_folder(FolderKind kind, Catalog& content) {
  take_parts(content);
  const NamedBy named =
      content.parts.optimizers.empty() ? NamedBy::recorded : content.parts.optimizers.front().named;
  change_wholes(content, [&](Catalog& wholes) {
    folders::Respelling(wholes).run();
    folders::gather_trainer_state(wholes);
    if (kind == FolderKind::trainer) folders::Numbering(wholes).run(named);
  });
}

}  // namespace ebb::formats
