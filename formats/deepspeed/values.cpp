#include "ebb/formats/deepspeed/values.h"

#include <algorithm>
#include <cmath>

#include "ebb/formats/core/float_cast.h"
#include "ebb/formats/deepspeed/config.h"

namespace ebb::formats::deepspeed {
namespace {

// What a value means to other formats: something of its own, or what the catalog says already.
enum class Kind { own, echoed };

// The groups as a list of dicts; tuples become lists, as JSON readers expect of betas.
Value groups_value(const std::vector<GroupEntry>& groups) {
  Value list = Value::of_list({});
  for (const GroupEntry& group : groups) {
    Value names = Value::of_list({});
    for (const std::string& name : group.params) names.items.push_back(Value::of_string(name));
    Value dict = Value::of_dict();
    dict.add("names", std::move(names));
    for (const auto& [key, setting] : group.settings) {
      Value value = setting;
      if (value.kind == Value::Kind::tuple) value.kind = Value::Kind::list;
      dict.add(key, std::move(value));
    }
    list.items.push_back(std::move(dict));
  }
  return list;
}

Value steps_value(const std::vector<std::optional<double>>& steps) {
  Value dict = Value::of_dict();
  for (std::size_t i = 0; i < steps.size(); ++i)
    dict.add(std::to_string(i), steps[i] ? Value::of_real(*steps[i]) : Value{});
  return dict;
}

Value text_or_none(const std::string& text) {
  return text.empty() ? Value{} : Value::of_string(text);
}

class Values {
 public:
  explicit Values(Catalog& catalog) : list_(catalog.values) {}

  void add(const std::string& key, Value value, Kind kind) {
    list_.push_back({key, {key}, std::move(value), kind == Kind::echoed});
  }
  // Nothing is nothing to keep.
  void add_if_any(const std::string& key, Value value) {
    const bool nothing = value.kind == Value::Kind::none ||
                         (value.kind == Value::Kind::dict && value.entries.empty());
    add(key, std::move(value), nothing ? Kind::echoed : Kind::own);
  }
  bool has(std::string_view key) const {
    return std::any_of(list_.begin(), list_.end(),
                       [&](const ValueEntry& entry) { return entry.key == key; });
  }

 private:
  std::vector<ValueEntry>& list_;
};

void add_client(Values& values, const std::vector<ValueEntry>& client) {
  Value all = Value::of_dict();
  for (const ValueEntry& entry : client) all.add(entry.key, entry.value);
  values.add("client_state", std::move(all), Kind::echoed);
  for (const ValueEntry& entry : client)
    values.add(values.has(entry.key) ? "client_state." + entry.key : entry.key, entry.value,
               Kind::own);
}

Value tied_value(const std::map<std::string, std::string>& tied) {
  Value dict = Value::of_dict();
  for (const auto& [alias, owner] : tied) dict.add(alias, Value::of_string(owner));
  return dict;
}

// Other formats call them parameters, which DeepSpeed's stage 3 keeps in another place.
Value buffer_names(const Catalog& catalog) {
  Value list = Value::of_list({});
  for (const TensorEntry& tensor : catalog.tensors)
    if (tensor.state == "buffer" && is_floating(tensor.dtype))
      list.items.push_back(Value::of_string(tensor.name));
  return list;
}

void set_param_steps(Catalog& catalog, const std::vector<Group>& groups,
                     const std::vector<std::optional<double>>& steps) {
  for (std::size_t i = 0; i < steps.size(); ++i)
    if (steps[i] && std::abs(*steps[i]) < 9e15)
      for (const Param& param : groups[i])
        catalog.param_steps.emplace(param.name, static_cast<std::int64_t>(*steps[i]));
}

// What the folder's name, the model file and the optimizer files say about the step.
void note_steps(Catalog& catalog, const std::string& tag) {
  constexpr std::string_view kUsual = "global_step";
  if (!catalog.step) return;
  const std::string step = std::to_string(*catalog.step);
  const bool numbered = tag.starts_with(kUsual) && tag.size() > kUsual.size() &&
                        tag.find_first_not_of("0123456789", kUsual.size()) == std::string::npos;
  if (numbered && tag.substr(kUsual.size()) != step)
    catalog.notes.push_back(
        compose("the folder is called {}, its model file says step {}: files of two saves, unless "
                "the job chose the name",
                tag, step));
  std::int64_t most = 0;
  for (const auto& [name, steps] : catalog.param_steps) most = std::max(most, steps);
  if (most > *catalog.step + 1)
    catalog.notes.push_back(
        compose("the optimizer counts {} steps, the model file {}: files of two saves, unless the "
                "job began to count again",
                most, step));
}

}  // namespace

void undo_dealing(const ModelFacts& model, std::uint32_t world, OptimizerFacts& optimizer) {
  const auto config = std::ranges::find(model.engine, "ds_config", &ValueEntry::key);
  if (config == model.engine.end() || !round_robin(config->value, optimizer.stage)) return;
  for (GroupEntry& group : optimizer.groups)
    group.params = dealt_back(std::move(group.params), world);
}

bool same_settings(const GroupEntry& a, const GroupEntry& b) {
  return std::equal(a.settings.begin(), a.settings.end(), b.settings.begin(), b.settings.end(),
                    [](const auto& x, const auto& y) {
                      return x.first == y.first && to_json(x.second) == to_json(y.second);
                    });
}

void set_values(Catalog& catalog, const std::string& tag, const std::vector<Group>& groups,
                const ModelFacts& model, OptimizerFacts optimizer) {
  catalog.producer = model.version.empty() ? "DeepSpeed" : "DeepSpeed " + model.version;
  catalog.step = model.global_steps;
  set_param_steps(catalog, groups, optimizer.steps);
  note_steps(catalog, tag);
  Values values(catalog);
  if (catalog.step) {
    values.add("step", Value::of_int(*catalog.step), Kind::echoed);
    values.add("global_steps", Value::of_int(*catalog.step), Kind::echoed);
  }
  const bool usual_tag = catalog.step && tag == compose("global_step{}", *catalog.step);
  if (!tag.empty()) values.add("tag", Value::of_string(tag), usual_tag ? Kind::echoed : Kind::own);
  for (const ValueEntry& entry : model.engine)
    if (entry.value.kind != Value::Kind::none || entry.key == "lr_scheduler")
      values.add_if_any(entry.key, entry.value);
  values.add("param_groups", groups_value(optimizer.groups), Kind::echoed);
  values.add("state_step", steps_value(optimizer.steps), Kind::echoed);
  values.add_if_any("tied", tied_value(model.tied));
  if (Value buffers = buffer_names(catalog); !buffers.items.empty())
    values.add(std::string(kBufferNames), std::move(buffers), Kind::own);
  values.add("zero_stage", Value::of_int(optimizer.stage), Kind::echoed);
  values.add("optimizer", text_or_none(optimizer.optimizer), Kind::echoed);
  values.add("zero_optimizer", text_or_none(optimizer.zero_optimizer), Kind::echoed);
  const Value* scale = optimizer.loss_scaler.kind == Value::Kind::dict
                           ? optimizer.loss_scaler.find("cur_scale")
                           : nullptr;
  values.add("loss_scale", scale == nullptr ? Value{} : *scale, Kind::echoed);
  values.add_if_any("loss_scaler", std::move(optimizer.loss_scaler));
  for (ValueEntry& entry : optimizer.values) catalog.values.push_back(std::move(entry));
  add_client(values, model.client);
  catalog.groups = std::move(optimizer.groups);
}

}  // namespace ebb::formats::deepspeed
