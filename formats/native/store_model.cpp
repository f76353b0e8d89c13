#include "ebb/formats/native/store_model.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string_view>

#include "ebb/formats/catalog/value_json.h"
#include "ebb/formats/core/json_text.h"
#include "ebb/formats/core/number_text.h"
#include "ebb/formats/native/store_files.h"

namespace ebb::formats::native {
namespace {

constexpr std::string_view kOurProducer = "Ebb, store version 1, ";

// The part of a value of which only a name or a digest is known; "" when there is none.
std::string_view lost_part(const Value& value) {
  if (value.kind == Value::Kind::object && value.items.size() != 2) return value.text;
  if (value.kind == Value::Kind::tensor) {
    std::uint64_t bits = bits_of(value.dtype);
    for (const Value& item : value.items) bits *= static_cast<std::uint64_t>(item.integer);
    return bits == 8 * value.raw.size() ? std::string_view() : "tensor";
  }
  for (const Value& item : value.items)
    if (const auto part = lost_part(item); !part.empty()) return part;
  for (const auto& [key, item] : value.entries)
    for (const Value* each : {&key, &item})
      if (const auto part = lost_part(*each); !part.empty()) return part;
  return {};
}

Error over_limit(const std::string& what, std::uint64_t limit) {
  return {Code::limit, compose("{}: the limit of a store is {}", what, limit)};
}

class ModelBuilder {
 public:
  explicit ModelBuilder(const Catalog& content) : content_(content) {}

  Result<StoreModel> run() {
    EBB_TRY(add_groups());
    EBB_TRY(add_values());
    EBB_TRY(add_step());
    EBB_TRY(add_params());
    for (std::uint32_t i = 0; i < content_.tensors.size(); ++i) EBB_TRY(add_tensor(i));
    return std::move(model_);
  }

 private:
  Result<> add_groups() {
    if (content_.groups.size() > kMaxGroups)
      return over_limit(compose("{} parameter groups", content_.groups.size()), kMaxGroups);
    for (const GroupEntry& entry : content_.groups) {
      const auto number = static_cast<std::uint32_t>(model_.manifest.groups.size());
      Group& group = model_.manifest.groups.emplace_back();
      group.optimizer = entry.optimizer;
      for (const auto& [key, value] : entry.settings) add_setting(group, key, value);
      for (const std::string& name : entry.params)
        if (const auto [found, fresh] = group_of_.emplace(name, number);
            !fresh && found->second != number)
          drop(compose("parameter {}: is in parameter group {} as well as in {}", json_string(name),
                       number, found->second));
    }
    return {};
  }

  void add_setting(Group& group, const std::string& key, const Value& value) {
    const std::string what = compose("parameter group {}: setting {}",
                                     model_.manifest.groups.size() - 1, json_string(key));
    std::string text = setting_text(value);
    if (const auto part = lost_part(value); !part.empty())
      drop(compose("{} holds an object of class {}", what, part));
    else if (text.size() > kMaxText)
      drop(compose("{} has more than {} bytes", what, kMaxText));
    else
      group.settings.emplace_back(key, std::move(text));
  }

  // Plain bytes are what a trainer keeps beside its state: the engine gives them back by their key.
  Result<> add_values() {
    for (const ValueEntry& entry : content_.values) {
      if (entry.echoed) continue;
      const auto* top = entry.path.size() == 1 ? std::get_if<std::string>(&entry.path[0]) : nullptr;
      const bool unnested = entry.path.empty() || (top != nullptr && *top == entry.key);
      if (const auto part = lost_part(entry.value); !part.empty())
        drop(compose("value {}: holds an object of class {}", json_string(entry.key), part));
      else if (entry.value.kind != Value::Kind::bytes || !unnested)
        model_.manifest.values.push_back(entry);
      else if (entry.key.size() > kMaxText)
        return over_limit("value " + json_string(entry.key.substr(0, 64)) + "...: the key",
                          kMaxText);
      else
        model_.manifest.blobs.push_back({entry.key, entry.value.raw});
    }
    if (model_.manifest.blobs.size() > kMaxBlobs)
      return over_limit(compose("{} values of bytes", model_.manifest.blobs.size()), kMaxBlobs);
    return {};
  }

  // Where nobody counts for all, the step is that of the parameter that has taken the most.
  Result<> add_step() {
    Manifest& manifest = model_.manifest;
    manifest.param_steps = content_.param_steps;
    std::int64_t step = 0;
    for (const auto& [name, steps] : content_.param_steps) step = std::max(step, steps);
    manifest.step =
        static_cast<std::uint64_t>(std::max<std::int64_t>(0, content_.step.value_or(step)));
    if (manifest.step > kMaxGeneration)
      return over_limit(compose("step {}", manifest.step), kMaxGeneration);
    manifest.fingerprint = content_.producer.starts_with(kOurProducer)
                               ? content_.producer.substr(kOurProducer.size())
                               : "converted from " + content_.producer;
    manifest.fingerprint.resize(std::min<std::size_t>(manifest.fingerprint.size(), kMaxText));
    return {};
  }

  // In the content's order; or, where a group lists its parameters in another one, group by group:
  // the order inside a group means something to flat formats.
  std::vector<std::string_view> names_in_order() {
    std::map<std::string_view, std::size_t> place;
    std::vector<std::string_view> names;
    for (const TensorEntry& tensor : content_.tensors) {
      if (place.emplace(tensor.name, names.size()).second) names.push_back(tensor.name);
      std::vector<Shape>& shapes = shapes_[tensor.name];
      if (std::ranges::find(shapes, tensor.shape) == shapes.end()) shapes.push_back(tensor.shape);
    }
    std::vector<std::string_view> by_group;
    std::set<std::string_view> listed;
    bool ascending = true;
    for (const GroupEntry& group : content_.groups) {
      std::size_t last = 0;
      for (const std::string& name : group.params) {
        if (!listed.insert(name).second) continue;
        by_group.push_back(name);
        const auto found = place.find(name);
        ascending = ascending && found != place.end() && found->second >= last;
        if (found != place.end()) last = found->second;
      }
    }
    if (ascending) return names;
    std::ranges::copy_if(names, std::back_inserter(by_group),
                         [&](std::string_view name) { return !listed.contains(name); });
    return by_group;
  }

  Result<> add_params() {
    std::vector<Param>& params = model_.manifest.params;
    for (const std::string_view name : names_in_order()) {
      const std::string what = "tensor " + json_string(name.substr(0, 64));
      if (name.size() > kMaxText) return over_limit(what + "...: the name", kMaxText);
      const auto group = group_of_.find(name);
      std::vector<Shape>& shapes = shapes_[name];
      if (shapes.empty()) shapes.push_back({0});  // a group lists it, but nothing of it is here
      for (const Shape& shape : shapes) {
        if (shape.size() > kMaxDimensions)
          return over_limit(compose("{} of {} dimensions", what, shape.size()), kMaxDimensions);
        params_.emplace(std::pair(name, shape), static_cast<std::uint32_t>(params.size()));
        params.push_back(
            {std::string(name), shape, group == group_of_.end() ? kNoGroup : group->second});
      }
    }
    if (params.size() > kMaxParams)
      return over_limit(compose("{} parameters", params.size()), kMaxParams);
    return {};
  }

  Result<> add_tensor(std::uint32_t number) {
    const TensorEntry& tensor = content_.tensors[number];
    if (bits_of(tensor.dtype) % 8 != 0) {
      drop(compose("tensor {}: elements of {} are smaller than a byte",
                   json_string(label_of(tensor)), name_of(tensor.dtype)));
      model_.omitted.push_back(number);
      return {};
    }
    EBB_TRY_ASSIGN(const std::uint32_t state, state_number(tensor.state));
    const std::uint32_t param = params_.at({tensor.name, tensor.shape});
    if (!taken_.emplace(param, state).second)
      return Error{
          Code::layout,
          compose("two tensors are called {} ({}): a store tells them apart by nothing else",
                  json_string(tensor.name), json_string(tensor.state))};
    model_.stored.push_back({number, param, state});
    return {};
  }

  Result<std::uint32_t> state_number(const std::string& state) {
    std::vector<std::string>& states = model_.manifest.states;
    const auto found = std::ranges::find(states, state);
    const auto number = static_cast<std::uint32_t>(found - states.begin());
    if (found != states.end()) return number;
    if (state.size() > kMaxText)
      return over_limit("state " + json_string(state.substr(0, 64)) + "...: the name", kMaxText);
    if (states.size() == kMaxStates) return over_limit("more than 256 names of states", kMaxStates);
    states.push_back(state);
    return number;
  }

  void drop(std::string line) { model_.dropped.push_back(std::move(line)); }

  const Catalog& content_;
  StoreModel model_;
  std::map<std::string_view, std::uint32_t> group_of_;
  std::map<std::string_view, std::vector<Shape>> shapes_;
  std::map<std::pair<std::string_view, Shape>, std::uint32_t> params_;
  std::set<std::pair<std::uint32_t, std::uint32_t>> taken_;  // (param, state)
};

}  // namespace

Value setting_value(const std::string& text) {
  if (text == "true" || text == "false") return Value::of_bool(text == "true");
  if (const auto integer = parse_number<std::int64_t>(text)) return Value::of_int(*integer);
  if (const auto real = parse_number<double>(text); real && std::isfinite(*real))
    return Value::of_real(*real);
  if (text == "null" || text.starts_with('"') || text.starts_with('[') || text.starts_with('{'))
    if (auto value = read_value_json(text, "a setting")) return std::move(*value);
  return Value::of_string(text);
}

std::string setting_text(const Value& value) {
  if (value.kind == Value::Kind::string) {
    const Value read = setting_value(value.text);
    if (read.kind == Value::Kind::string && read.text == value.text) return value.text;
  }
  return value_json(value);
}

Result<StoreModel> store_model_of(const Catalog& content) { return ModelBuilder(content).run(); }

}  // namespace ebb::formats::native
