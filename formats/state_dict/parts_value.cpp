#include "ebb/formats/state_dict/parts_value.h"

#include <algorithm>
#include <map>
#include <optional>

#include "ebb/formats/catalog/key_path.h"

namespace ebb::formats {
namespace {

using Keys = StateDictOptimizer::Keys;

constexpr std::string_view kFlattened = "flattened", kNested = "nested";

Value value_of(const std::vector<PathItem>& path) {
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

std::optional<std::vector<PathItem>> path_in(const Value* value) {
  if (value == nullptr) return std::nullopt;
  std::vector<PathItem> path;
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

std::optional<StateDictParts> parts_in(const Value& value) {
  StateDictParts parts;
  const Value* models = value.find("models");
  const Value* optimizers = value.find("optimizers");
  auto step = path_in(value.find("step"));
  if (models == nullptr || optimizers == nullptr || !step) return std::nullopt;
  parts.step = std::move(*step);
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
  return place.prefix.empty() && place.path == std::vector<PathItem>{std::string(word)};
}

bool is_usual(const StateDictParts& parts) {
  return std::ranges::all_of(parts.models, [](const auto& at) { return lies_at(at, "model"); }) &&
         std::ranges::all_of(parts.optimizers,
                             [](const StateDictOptimizer& one) {
                               return one.keys == Keys::nested && lies_at(one.at, "optimizer");
                             }) &&
         (parts.step.empty() || parts.step == std::vector<PathItem>{"step"});
}

// Whether a list that leads to a tensor may hold values, too: they travel under their keys, and
// beside them the list would come back with nothing in their positions.
bool shares_list(const std::vector<PathItem>& path, const std::vector<ValueEntry>& values) {
  const bool list = std::ranges::any_of(
      path, [](const PathItem& item) { return std::holds_alternative<std::int64_t>(item); });
  return list && std::ranges::any_of(values, [&](const ValueEntry& value) {
           return value.path.size() > 1 && value.path.front() == path.front();
         });
}

// A tensor of neither model nor optimizer: its path, or its name where that has to do.
Value other_value(const TensorEntry& tensor, const std::vector<ValueEntry>& values) {
  const std::vector<PathItem>& path = tensor.path;
  const bool nested = path.size() > 1 && joined(path) == tensor.name && !shares_list(path, values);
  return nested ? value_of(path) : Value::of_string(tensor.name);
}

std::vector<PathItem> other_path(const Value& value) {
  if (value.kind == Value::Kind::list) return path_in(&value).value_or(std::vector<PathItem>());
  return {value.text};
}

}  // namespace

void put_parts(Catalog& content) {
  const StateDictParts& parts = content.parts;
  std::vector<Value> models, optimizers, others;
  for (const TensorEntry& tensor : content.tensors)
    if (tensor.state == "tensor") others.push_back(other_value(tensor, content.values));
  if (is_usual(parts) && others.empty()) return;
  for (const StateDictPlace& model : parts.models) models.push_back(value_of(model));
  for (StateDictOptimizer one : parts.optimizers) {
    if (parts.optimizers.size() == 1) one.params.clear();  // all are its own
    optimizers.push_back(value_of(one));
  }
  content.values.push_back({std::string(kPartsKey),
                            {},
                            Value::of_dict({{"models", Value::of_list(std::move(models))},
                                            {"optimizers", Value::of_list(std::move(optimizers))},
                                            {"step", value_of(parts.step)},
                                            {"others", Value::of_list(std::move(others))}})});
}

void take_parts(Catalog& content) {
  const auto said = std::ranges::find(content.values, kPartsKey, &ValueEntry::key);
  if (said == content.values.end()) return;
  auto parts = parts_in(said->value);
  if (!parts) return;
  content.parts = std::move(*parts);
  std::map<std::string, std::vector<PathItem>> others;
  if (const Value* listed = said->value.find("others"))
    for (const Value& item : listed->items) {
      std::vector<PathItem> path = other_path(item);
      others.emplace(joined(path), std::move(path));
    }
  for (TensorEntry& tensor : content.tensors) {
    const auto other = others.find(tensor.name);
    if (other == others.end() || (tensor.state != "param" && tensor.state != "tensor")) continue;
    tensor.state = "tensor";  // a format without a word for it may have called it a parameter
    tensor.path = other->second;
  }
  content.values.erase(said);
}

}  // namespace ebb::formats
