#include "ebb/formats/state_dict/numbers.h"

#include <algorithm>
#include <map>
#include <set>

#include "ebb/formats/catalog/composite.h"
#include "ebb/formats/catalog/renaming.h"
#include "ebb/formats/catalog/resume.h"
#include "ebb/formats/core/json_text.h"
#include "ebb/formats/core/number_text.h"
#include "ebb/formats/state_dict/parts.h"

namespace ebb::formats {
namespace {

// Whether the shape can be that of a factor of a parameter's state: of its rows, its columns.
bool is_factor_of(const Shape& shape, const Shape& param) {
  return std::ranges::all_of(shape, [&](std::uint64_t extent) {
    return extent == 1 || std::ranges::find(param, extent) != param.end();
  });
}

Error not_fitting(std::size_t place, std::string_view name, std::string_view why) {
  return {Code::usage, compose("--names: line {}, '{}': {}", place + 1, printable(name), why),
          "the lines are the parameters in the order in which the optimizer was given them"};
}

// Parameters that a catalog calls "<place>.<number>" in groups and states, and by no other name.
class Numbers {
 public:
  struct Param {
    std::string_view place;  // with its last dot; may be empty
    std::size_t number = 0;
    StateShapes states;
  };

  // Borrows the catalog.
  explicit Numbers(const Catalog& catalog) {
    for (const TensorEntry& tensor : catalog.tensors)
      if (tensor.state == "param" && named_.insert(tensor.name).second)
        model_.push_back({tensor.name, &tensor.shape});
    for (const GroupEntry& group : catalog.groups)
      for (const std::string& name : group.params) meet(name);
    for (const TensorEntry& tensor : catalog.tensors)
      if (tensor.state != "param" && tensor.state != "tensor")
        if (Param* param = meet(tensor.name))
          param->states.emplace(tensor.state, &shape_of_whole(tensor));
  }

  const std::map<std::string_view, Param>& params() const { return params_; }
  const std::vector<ModelParam>& model() const { return model_; }
  // In the order in which they come, each with its highest number and 1.
  const std::vector<std::pair<std::string_view, std::size_t>>& places() const { return places_; }

 private:
  Param* meet(std::string_view name) {
    const std::size_t dot = name.rfind('.');
    const std::string_view place = name.substr(0, dot == std::string_view::npos ? 0 : dot + 1);
    if (!is_index(name.substr(place.size())) || named_.contains(name)) return nullptr;
    const auto number = *parse_number<std::size_t>(name.substr(place.size()));
    const auto known = std::ranges::find(places_, place, [](const auto& one) { return one.first; });
    if (known == places_.end())
      places_.emplace_back(place, number + 1);
    else
      known->second = std::max(known->second, number + 1);
    return &params_.try_emplace(name, Param{place, number, {}}).first->second;
  }

  std::set<std::string_view> named_;
  std::vector<ModelParam> model_;
  std::map<std::string_view, Param> params_;
  std::vector<std::pair<std::string_view, std::size_t>> places_;
};

}  // namespace

bool is_index(std::string_view text) {
  return !text.empty() && text.size() < 10 &&
         text.find_first_not_of("0123456789") == std::string_view::npos;
}

std::size_t SaidNames::add_optimizer(std::size_t count) {
  count_ += count;
  return count_ - count;
}

Result<> SaidNames::check_count() const {
  if (names_.size() != count_)
    return Error{
        Code::usage,
        compose("--names has {} lines, but optimizers number {} parameters", names_.size(), count_),
        "one parameter a line, in the order in which the optimizer was given them; of "
        "several optimizers one behind the other"};
  std::set<std::string_view> seen;
  for (std::size_t i = 0; i < names_.size(); ++i)
    if (!seen.insert(names_[i]).second) return not_fitting(i, names_[i], "is there twice");
  return {};
}

std::string_view SaidNames::at(std::size_t place) const {
  return place < names_.size() ? std::string_view(names_[place]) : std::string_view();
}

Result<> SaidNames::check(std::size_t place, const StateShapes& states,
                          const std::vector<ModelParam>& model) const {
  const std::string_view name = at(place);
  if (model.empty()) return {};
  const auto param = std::ranges::find(model, name, &ModelParam::name);
  if (param == model.end())
    return not_fitting(place, name, "no parameter of the model is called so");
  const Shape* other = nullptr;
  for (const auto& [state, shape] : states) {
    if (volume(*shape) == 1) continue;
    if (*shape == *param->shape || is_factor_of(*shape, *param->shape)) return {};
    other = shape;
  }
  if (other == nullptr) return {};
  return not_fitting(place, name,
                     compose("is {}, but the states of that number are {}",
                             to_string(*param->shape), to_string(*other)));
}

std::optional<std::size_t> place_of_number(const TensorEntry& tensor) {
  if (!tensor.key || is_weight(tensor.state)) return std::nullopt;
  for (std::size_t i = 1; i < tensor.path.size(); ++i) {
    if (tensor.path[i - 1] != PathItem("state")) continue;
    const auto* text = std::get_if<std::string>(&tensor.path[i]);
    if (text == nullptr || (is_index(*text) && *text != tensor.name)) return i;
  }
  return std::nullopt;
}

std::optional<std::size_t> number_of(const PathItem& item) {
  if (const auto* number = std::get_if<std::int64_t>(&item))
    return *number < 0 ? std::nullopt : std::optional(static_cast<std::size_t>(*number));
  const auto& text = std::get<std::string>(item);
  return is_index(text) ? parse_number<std::size_t>(text) : std::nullopt;
}

ParamNumbers::ParamNumbers(const Catalog& content, const Owner& owner) {
  for (const TensorEntry& tensor : content.tensors)
    if (const auto place = place_of_number(tensor)) {
      const std::size_t number = number_of(tensor.path[*place]).value_or(0);
      known_.emplace(tensor.name, static_cast<std::int64_t>(number));
      next_.emplace(owner(tensor.name), 0);
    }
}

Value ParamNumbers::called(std::size_t optimizer, const std::string& name) {
  const auto next = next_.find(optimizer);
  if (next == next_.end()) return Value::of_string(name);
  const auto known = known_.find(name);
  const std::int64_t number = known == known_.end() ? next->second : known->second;
  next->second = number + 1;
  return Value::of_int(number);
}

NamedBy named_by(const Catalog& catalog, const TensorEntry& tensor) {
  if (!tensor.key || tensor.state == "param" || tensor.state == "tensor") return NamedBy::recorded;
  for (const StateDictOptimizer& optimizer : catalog.parts.optimizers) {
    if (optimizer.named == NamedBy::recorded) continue;
    const std::string at = text_of(optimizer.at);
    const std::string below = at.empty() ? "state." : at + ".state.";
    const bool its = tensor.key->starts_with(below);
    if (its && !std::string_view(*tensor.key).substr(below.size()).starts_with(tensor.name + "."))
      return optimizer.named;
  }
  return NamedBy::recorded;
}

void InferredCount::add(NamedBy by) {
  by_shapes += by == NamedBy::shapes ? 1 : 0;
  by_order += by == NamedBy::order ? 1 : 0;
}

std::vector<std::string> InferredCount::lines() const {
  std::vector<std::string> lines;
  if (by_shapes > 0)
    lines.push_back(
        compose("{}{} states follow from shapes: nothing records them", kInferredNames, by_shapes));
  if (by_order > 0)
    lines.push_back(
        compose("{}{} states are by order, not recorded: the optimizer's numbers count the model's "
                "parameters as they are listed",
                kInferredNames, by_order));
  return lines;
}

std::vector<std::string> inferred_names(const Catalog& catalog) {
  InferredCount count = said_by_order(catalog);
  for (const TensorEntry& tensor : catalog.tensors) count.add(named_by(catalog, tensor));
  return count.lines();
}

void say_by_order(Catalog& content, std::size_t states) {
  content.values.push_back(
      {std::string(kByOrderKey), {}, Value::of_int(static_cast<std::int64_t>(states))});
}

InferredCount said_by_order(const Catalog& catalog) {
  InferredCount count;
  const auto said = std::ranges::find(catalog.values, kByOrderKey, &ValueEntry::key);
  if (said != catalog.values.end() && said->value.integer > 0)
    count.by_order = static_cast<std::size_t>(said->value.integer);
  return count;
}

std::string names_hint(std::string_view job) {
  const std::string of = job.empty() ? std::string() : std::string(job) + ".";
  return compose(
      "--names FILE says them, a parameter a line in the optimizer's order, an empty line behind "
      "each group. In Python: n = {id(p): n for n, p in {}model.named_parameters()}; open('FILE', "
      "'w').write('\\n\\n'.join('\\n'.join(n[id(p)] for p in g['params']) for g in "
      "{}optimizer.param_groups))",
      of, of);
}

namespace {

// The names of states and groups, changed.
void rename_optimized(Catalog& catalog, const std::map<std::string, std::string>& fresh) {
  const auto rename = [&](std::string& name) {
    if (const auto found = fresh.find(name); found != fresh.end()) name = found->second;
  };
  for (TensorEntry& tensor : catalog.tensors)
    if (tensor.state != "param" && tensor.state != "buffer") rename(tensor.name);
  rename_beside_tensors(catalog, rename);
}

// Names that only the order gave are numbers again: what somebody says is better.
void take_back_order(Catalog& catalog) {
  const auto inferred = [](const StateDictOptimizer& one) { return one.named == NamedBy::order; };
  if (catalog.parts.optimizers.size() != 1 || !inferred(catalog.parts.optimizers.front())) return;
  const std::string at = text_of(catalog.parts.optimizers.front().at);
  std::map<std::string, std::string> numbers;
  for (const GroupEntry& group : catalog.groups)
    for (const std::string& name : group.params)
      numbers.emplace(name, compose("{}.{}", at, numbers.size()));
  rename_optimized(catalog, numbers);
  catalog.parts.optimizers.clear();
  std::erase_if(catalog.values, [](const ValueEntry& value) { return value.key == kByOrderKey; });
  std::erase_if(catalog.notes,
                [](const std::string& note) { return note.starts_with(kInferredNames); });
}

}  // namespace

Result<> say_names(Catalog& catalog, std::span<const std::string> names) {
  take_back_order(catalog);
  const Numbers numbers(catalog);
  SaidNames said(names);
  std::map<std::string_view, std::size_t> first;  // name of each place
  for (const auto& [place, count] : numbers.places()) first[place] = said.add_optimizer(count);
  EBB_TRY(said.check_count());
  std::map<std::string, std::string> fresh;
  for (const auto& [name, its] : numbers.params()) {
    const std::size_t line = first.at(its.place) + its.number;
    EBB_TRY(said.check(line, its.states, numbers.model()));
    fresh.emplace(name, said.at(line));
  }
  rename_optimized(catalog, fresh);
  return {};
}

}  // namespace ebb::formats
