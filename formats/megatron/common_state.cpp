#include "ebb/formats/megatron/common_state.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>

#include "ebb/formats/catalog/resume.h"
#include "ebb/formats/core/json_text.h"
#include "ebb/formats/core/sha256.h"
#include "ebb/formats/megatron/names.h"

namespace ebb::formats {
namespace {

constexpr std::size_t kMaxGuessed = 256;  // groups: each is held against each parameter
constexpr std::string_view kIteration = "iteration";
constexpr std::string_view kOptimizer = "optimizer";
constexpr std::string_view kParamNames = "param_names";  // ours; Megatron carries it along
// A group's "step" counts its parameters' steps here; a setting of that name, which DeepSpeed's
// Adam has beside the real counters, is kept under this one.
constexpr std::string_view kStep = "step";
constexpr std::string_view kStepSetting = "step_setting";
constexpr std::string_view kDecoupled = "decoupled_weight_decay";
constexpr std::string_view kState = "state";
constexpr std::string_view kCommonStep = "common_step";
constexpr std::string_view kScaler = "grad_scaler";
constexpr std::string_view kLossScaler = "loss_scaler";
constexpr std::string_view kVersion = "checkpoint_version";
constexpr std::string_view kLayout = "content_metadata";  // how the optimizer's state is laid out
constexpr std::string_view kModelSpace = "fully_reshardable";

bool is_dict(const Value* value) { return value != nullptr && value->kind == Value::Kind::dict; }
bool is_list(const Value* value) { return value != nullptr && value->kind == Value::Kind::list; }

// A number, or a tensor of one fp32 element.
std::optional<double> number_in(const Value* value) {
  if (value == nullptr) return std::nullopt;
  if (value->kind == Value::Kind::integer) return static_cast<double>(value->integer);
  if (value->kind == Value::Kind::real) return value->real;
  if (value->kind == Value::Kind::tensor && value->dtype == DType::f32 && value->raw.size() == 4)
    return load_le<float>(value->raw);
  return std::nullopt;
}

std::optional<std::int64_t> steps_in(const Value* value) {
  const auto number = number_in(value);
  constexpr double kMost = 9e15;  // whole numbers up to here are exact
  if (!number || !(*number >= 0) || *number > kMost || *number != std::floor(*number))
    return std::nullopt;
  return static_cast<std::int64_t>(*number);
}

const Value* setting_of(const GroupEntry& group, std::string_view name) {
  for (const auto& [key, value] : group.settings)
    if (key == name) return &value;
  return nullptr;
}

std::string optimizer_name(const GroupEntry& group) {
  std::string said = said_optimizer(group);
  // Muon's groups do not say: they have a momentum, and nothing of what torch's SGD has beside it.
  const bool muon = setting_of(group, "momentum") != nullptr && !setting_of(group, "dampening");
  return said.empty() && muon ? "muon" : said;
}

class Reader {
 public:
  explicit Reader(Catalog& catalog) : catalog_(catalog) {
    for (const TensorEntry& tensor : catalog_.tensors)
      if (tensor.key && is_optimizer_key(*tensor.key))
        of_optimizer_[megatron_key(*tensor.key).optimizer].emplace(tensor.name, &tensor);
  }

  void read_optimizers(const Value& optimizer) {
    bool chained = false;
    for (const auto& [key, part] : optimizer.entries)
      if (key.kind == Value::Kind::integer && key.integer >= 0) {
        chained = true;
        read_optimizer(static_cast<std::uint32_t>(key.integer), part);
      }
    if (!chained) read_optimizer(0, optimizer);
  }

  // A dict with param_groups: a flat bucket's groups lie in a sharded object of their own.
  void read_groups(std::uint32_t number, const Value& inner) {
    const Value* list = inner.find("param_groups");
    if (!is_list(list)) return;
    const std::size_t first = catalog_.groups.size();
    for (const Value& group : list->items) catalog_.groups.push_back(group_of(group));
    if (const auto members = of_optimizer_.find(number); members != of_optimizer_.end())
      name_members(members->second, *list, first);
    const Value* state = inner.find(kState);
    const auto common = steps_in(is_dict(state) ? state->find(kCommonStep) : nullptr);
    for (std::size_t i = 0; i < list->items.size(); ++i) {
      const auto steps = steps_in(list->items[i].find(kStep));
      if (!steps && !common) continue;
      for (const std::string& name : catalog_.groups[first + i].params)
        catalog_.param_steps[name] = steps ? *steps : *common;
    }
  }

 private:
  using Members = std::map<std::string, const TensorEntry*>;

  void read_optimizer(std::uint32_t number, const Value& part) {
    const Value* inner = part.find(kOptimizer);
    read_groups(number, is_dict(inner) ? *inner : part);
  }

  static GroupEntry group_of(const Value& group) {
    GroupEntry entry;
    for (const auto& [name, value] : group.entries) {
      if (name.kind != Value::Kind::string) continue;
      if (name.text == kParamNames && value.kind == Value::Kind::list) {
        for (const Value& param : value.items) entry.params.push_back(param.text);
      } else if (name.text == kStepSetting) {
        entry.settings.emplace_back(kStep, value);
      } else if (name.text != "params" && name.text != kStep) {
        entry.settings.emplace_back(name.text, value);
      }
    }
    entry.optimizer = optimizer_name(entry);
    return entry;
  }

  // Megatron stores no names: an optimizer with one group has all of its own; of several,
  // Megatron's default rule decides (docs/formats/megatron.md, "groups").
  void name_members(const Members& members, const Value& list, std::size_t first) {
    const std::size_t count = list.items.size();
    for (std::size_t i = 0; i < count; ++i)
      if (!catalog_.groups[first + i].params.empty()) return;
    if (count > kMaxGuessed) {
      catalog_.notes.push_back("which of " + std::to_string(count) +
                               " groups a parameter is in is not looked for: more than " +
                               std::to_string(kMaxGuessed));
      return;
    }
    for (const auto& [name, tensor] : members) {
      std::optional<std::size_t> found;
      for (std::size_t i = 0; i < count; ++i) {
        if (count > 1 && !fits(*tensor, list.items[i])) continue;
        if (found) {
          found.reset();
          break;
        }
        found = i;
      }
      if (found)
        catalog_.groups[first + *found].params.push_back(name);
      else
        ++unplaced_;
    }
    if (unplaced_ != 0)
      catalog_.notes.push_back(std::to_string(unplaced_) +
                               " parameters fit no group by Megatron's default rule");
  }

  // Experts have groups of their own; biases and vectors have those without weight decay.
  static bool fits(const TensorEntry& tensor, const Value& group) {
    const bool expert = tensor.name.find(".experts.") != std::string::npos;
    const Value* for_experts = group.find("is_expert_parallel");
    if (for_experts != nullptr && (for_experts->integer != 0) != expert) return false;
    const auto decay = number_in(group.find("wd_mult"));
    const std::size_t dims = tensor.shape.size();
    const bool vector = dims <= 1 + std::min(dims, stacked_axes(tensor.name));
    const bool undecayed = tensor.name.ends_with(".bias") || vector;
    return !decay || (*decay == 0) == undecayed;
  }

  Catalog& catalog_;
  std::map<std::uint32_t, Members> of_optimizer_;
  std::size_t unplaced_ = 0;
};

void set(Value& dict, std::string key, Value value) {
  dict.entries.emplace_back(Value::of_string(std::move(key)), std::move(value));
}

Value empty_dict() {
  Value dict;
  dict.kind = Value::Kind::dict;
  return dict;
}

Value scalar(float number) {
  Value value;
  value.kind = Value::Kind::tensor;
  value.dtype = DType::f32;
  append_le(value.raw, number);
  value.text = sha256_hex(value.raw);
  return value;
}

// One group as Megatron keeps it, without its steps. A job finds its groups by these settings: the
// optimizer's name is among them where Megatron has it, and where they would not tell.
Value stored_group(GroupEntry group, const Catalog& content) {
  const bool adamw = group.optimizer == "adamw";  // "adam" with a setting here
  const bool adam_beside_muon =
      (adamw || group.optimizer == "adam") && has_optimizer(content, "muon");
  std::erase_if(group.settings, [](const auto& setting) {
    return setting.first == kOptimizer && setting.second.kind == Value::Kind::string;
  });
  if (adamw && setting_of(group, kDecoupled) == nullptr)
    group.settings.emplace_back(kDecoupled, Value::of_bool(true));
  const bool told = group.optimizer.empty() || optimizer_name(group) == group.optimizer;
  if (adam_beside_muon || !told)
    group.settings.emplace_back(kOptimizer, Value::of_string(adamw ? "adam" : group.optimizer));
  Value dict = empty_dict();
  for (auto& [name, value] : group.settings)
    set(dict, name == kStep ? std::string(kStepSetting) : name, std::move(value));
  std::vector<Value> names;
  for (std::string& name : group.params) names.push_back(Value::of_string(std::move(name)));
  if (!names.empty()) set(dict, std::string(kParamNames), Value::of_list(std::move(names)));
  return dict;
}

// The steps that a group's parameters have taken; `dropped` hears of ones that differ inside it.
std::optional<std::int64_t> steps_of(const GroupEntry& group, const Catalog& content,
                                     std::vector<std::string>& dropped) {
  std::set<std::int64_t> steps;
  for (const std::string& name : group.params)
    if (const auto found = content.param_steps.find(name); found != content.param_steps.end())
      steps.insert(found->second);
  if (steps.size() > 1)
    dropped.push_back("the steps of each parameter of the " +
                      (group.optimizer.empty() ? "optimizer" : printable(group.optimizer)) +
                      " group: Megatron counts them per group, and they differ");
  if (steps.size() != 1) return std::nullopt;
  return *steps.begin();
}

// The content's groups; parameters in none of them, whose steps are counted, are in one without
// settings for each count.
std::vector<GroupEntry> groups_with_steps(const Catalog& content) {
  std::set<std::string_view> placed;
  for (const GroupEntry& group : content.groups)
    placed.insert(group.params.begin(), group.params.end());
  std::map<std::int64_t, GroupEntry> others;
  for (const auto& [name, steps] : content.param_steps)
    if (!placed.contains(name)) others[steps].params.push_back(name);
  std::vector<GroupEntry> groups = content.groups;
  for (auto& [steps, group] : others) groups.push_back(std::move(group));
  return groups;
}

// The groups of one optimizer, each with its steps. Beside Muon, whose optimizers are not the
// distributed one, Megatron looks for one count of all of them.
Value stored_groups(const Catalog& content, const std::vector<const GroupEntry*>& members,
                    std::vector<std::string>& dropped) {
  std::vector<std::optional<std::int64_t>> steps;
  for (const GroupEntry* group : members) steps.push_back(steps_of(*group, content, dropped));
  constexpr std::int64_t kExact = 1 << 24;  // whole numbers up to here are exact in fp32
  const bool one_count =
      has_optimizer(content, "muon") && steps.front() && *steps.front() <= kExact &&
      std::all_of(steps.begin(), steps.end(), [&](const auto& s) { return s == steps.front(); });
  Value inner = empty_dict();
  Value state = empty_dict();
  if (one_count) set(state, std::string(kCommonStep), scalar(static_cast<float>(*steps.front())));
  if (one_count) set(inner, std::string(kState), std::move(state));
  Value groups = Value::of_list({});
  for (std::size_t i = 0; i < members.size(); ++i) {
    Value group = stored_group(*members[i], content);
    if (steps[i] && !one_count)
      set(group, std::string(kStep), Value::of_real(static_cast<double>(*steps[i])));
    groups.items.push_back(std::move(group));
  }
  set(inner, "param_groups", std::move(groups));
  return inner;
}

// Megatron's scaler as it is; one of DeepSpeed's in Megatron's words: it grows after scale_window
// steps without overflow. nullopt: of neither.
std::optional<Value> grad_scaler_of(const Catalog& content) {
  const Value* scaler = value_at(content, {kLossScaler});
  if (scaler == nullptr || scaler->find("scale") != nullptr)
    return scaler == nullptr ? std::nullopt : std::optional(*scaler);
  const auto scale = number_in(scaler->find("cur_scale"));
  if (!scale) return std::nullopt;
  const auto whole = [&](std::string_view name, double otherwise) {
    return static_cast<std::int64_t>(number_in(scaler->find(name)).value_or(otherwise));
  };
  const std::int64_t stable = whole("cur_iter", 0) - whole("last_overflow_iter", -1) - 1;
  const std::int64_t window = std::max<std::int64_t>(1, whole("scale_window", 1));
  Value dict = empty_dict();
  Value tensor = scalar(static_cast<float>(*scale));
  tensor.items.push_back(Value::of_int(1));
  set(dict, "scale", std::move(tensor));
  set(dict, "growth_tracker", Value::of_int(std::max<std::int64_t>(0, stable) % window));
  set(dict, "hysteresis_tracker", Value::of_int(whole("cur_hysteresis", 1)));
  return dict;
}

Value stored_optimizer(const Catalog& content, const std::vector<GroupEntry>& groups,
                       std::vector<std::string>& dropped) {
  const std::vector<std::uint32_t> numbers = chained_numbers(groups);
  const std::uint32_t count = *std::max_element(numbers.begin(), numbers.end()) + 1;
  const std::optional<Value> scaler = grad_scaler_of(content);
  Value all = empty_dict();
  for (std::uint32_t number = 0; number < count; ++number) {
    std::vector<const GroupEntry*> members;
    for (std::size_t i = 0; i < numbers.size(); ++i)
      if (numbers[i] == number) members.push_back(&groups[i]);
    Value part = empty_dict();
    set(part, std::string(kOptimizer), stored_groups(content, members, dropped));
    if (!has_optimizer(content, "muon"))
      set(part, "param_state_sharding_type", Value::of_string(std::string(kModelSpace)));
    if (scaler) set(part, std::string(kScaler), *scaler);
    if (count == 1) return part;
    all.entries.emplace_back(Value::of_int(number), std::move(part));
  }
  return all;
}

}  // namespace

namespace {

// Of the first optimizer: chained ones have their own, which go up and down together.
const Value* scaler_in(const Value& common) {
  const Value* optimizer = common.find(kOptimizer);
  if (!is_dict(optimizer)) return nullptr;
  const Value* scaler = optimizer->find(kScaler);
  for (const auto& [key, part] : optimizer->entries)
    if (scaler == nullptr && key.kind == Value::Kind::integer) scaler = part.find(kScaler);
  return scaler;
}

}  // namespace

void add_common_state(Catalog& catalog, const Value& common) {
  Reader reader(catalog);
  for (const ValueEntry& entry : std::vector<ValueEntry>(catalog.values)) {
    const bool groups = entry.key.find("optimizer.distributed.dp_group_idx_") == 0 &&
                        entry.key.find(".optimizer/shard_") != std::string::npos;
    if (groups && is_list(&entry.value) && entry.value.items.size() == 1)
      reader.read_groups(0, entry.value.items[0]);
  }
  for (const auto& [key, value] : common.entries) {
    const bool number = key.kind == Value::Kind::integer;
    if (!number && key.kind != Value::Kind::string) {
      catalog.notes.push_back("the common state has a key that is neither text nor a whole number");
      continue;
    }
    const PathItem item = number ? PathItem(key.integer) : PathItem(key.text);
    ValueEntry entry{number ? std::to_string(key.integer) : key.text, {"common", item}, value};
    if (entry.key == kIteration && value.kind == Value::Kind::integer) {
      catalog.step = value.integer;
      entry.echoed = true;
    }
    if (entry.key == kOptimizer && value.kind == Value::Kind::dict) {
      reader.read_optimizers(value);
      entry.echoed = true;
    }
    if (entry.key == kVersion || entry.key == kLayout) entry.echoed = true;  // Megatron's own
    catalog.values.push_back(std::move(entry));
  }
  const Value* scaler = scaler_in(common);
  if (scaler != nullptr && common.find(kLossScaler) == nullptr)
    catalog.values.push_back({std::string(kLossScaler),
                              {"common", std::string(kOptimizer), std::string(kScaler)},
                              *scaler});
}

Value common_state_of(const Catalog& content, std::vector<std::string>& dropped) {
  Value common = empty_dict();
  bool has_own = false;  // read from a common state: nothing is missing in it
  const std::vector<GroupEntry> groups = groups_with_steps(content);
  for (const ValueEntry& entry : content.values) {
    const bool read_here = !entry.path.empty() && entry.path[0] == PathItem("common");
    has_own = has_own || read_here;
    if (read_here && entry.path.size() == 2) {
      const auto* text = std::get_if<std::string>(&entry.path[1]);
      common.entries.emplace_back(
          text ? Value::of_string(*text) : Value::of_int(std::get<std::int64_t>(entry.path[1])),
          entry.value);
    } else if (read_here && common.find(kOptimizer) != nullptr) {
      continue;  // a part of the optimizer's own value, shown beside it
    } else if (entry.key == kLossScaler && entry.value.find("scale") && !groups.empty()) {
      continue;  // the optimizer's
    } else if (is_object_part(entry.key)) {
      dropped.push_back("value " + json_string(entry.key) + ": " + std::string(kObjectPart));
    } else if (!is_object_key(entry.key) && entry.key != "folder") {
      set(common, entry.key, entry.value);
    }
  }
  if (!has_own && common.find(kVersion) == nullptr)
    set(common, std::string(kVersion), Value::of_real(3.0));
  if (content.step && common.find(kIteration) == nullptr)
    set(common, std::string(kIteration), Value::of_int(*content.step));
  if (groups.empty() || common.find(kOptimizer) != nullptr) return common;
  set(common, std::string(kOptimizer), stored_optimizer(content, groups, dropped));
  if (common.find(kLayout) == nullptr) {
    Value layout = empty_dict();
    set(layout, "distrib_optim_sharding_type", Value::of_string(std::string(kModelSpace)));
    set(common, std::string(kLayout), std::move(layout));
  }
  return common;
}

std::optional<std::int64_t> megatron_arg(const Catalog& catalog, std::string_view name) {
  const Value* args = value_at(catalog, {"args"});
  // A namespace: the class's arguments, and its attributes.
  if (args == nullptr || args->kind != Value::Kind::object || args->items.size() != 2)
    return std::nullopt;
  const Value* value = args->items[1].find(name);
  if (value == nullptr || value->kind != Value::Kind::integer) return std::nullopt;
  return value->integer;
}

std::string said_optimizer(const GroupEntry& group) {
  const Value* decoupled = setting_of(group, kDecoupled);
  const std::string adam = decoupled != nullptr && decoupled->integer != 0 ? "adamw" : "adam";
  if (const Value* said = setting_of(group, kOptimizer); said && said->kind == Value::Kind::string)
    return said->text == "adam" ? adam : said->text;
  return setting_of(group, "betas") != nullptr ? adam : std::string();
}

std::vector<std::uint32_t> chained_numbers(const std::vector<GroupEntry>& groups) {
  const auto is_muon = [](const GroupEntry& group) { return group.optimizer == "muon"; };
  const bool layer_wise = std::any_of(groups.begin(), groups.end(), is_muon);
  using Optimizer = std::pair<std::string, bool>;  // name, of experts
  const auto optimizer_of = [&](const GroupEntry& group) {
    const Value* experts = setting_of(group, "is_expert_parallel");
    return Optimizer(group.optimizer, !layer_wise && experts != nullptr && experts->integer != 0);
  };
  std::vector<Optimizer> order;
  for (const GroupEntry& group : groups)
    if (std::find(order.begin(), order.end(), optimizer_of(group)) == order.end())
      order.push_back(optimizer_of(group));
  std::stable_partition(order.begin(), order.end(),
                        [](const Optimizer& optimizer) { return optimizer.first == "muon"; });
  std::vector<std::uint32_t> numbers;
  for (const GroupEntry& group : groups)
    numbers.push_back(static_cast<std::uint32_t>(
        std::find(order.begin(), order.end(), optimizer_of(group)) - order.begin()));
  return numbers;
}

}  // namespace ebb::formats
