#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "ebb/formats/catalog/resume.h"
#include "ebb/formats/core/json_text.h"
#include "ebb/formats/core/sha256.h"
#include "ebb/formats/megatron/common_state.h"
#include "ebb/formats/megatron/names.h"
#include "ebb/formats/megatron/optimizers.h"
#include "ebb/formats/state_dict/groups.h"

namespace ebb::formats::megatron {
namespace {

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
  const bool adam = adamw || group.optimizer == "adam";
  if (adam && is_decoupled(group) != adamw && setting_of(group, kDecoupled) == nullptr)
    group.settings.emplace_back(kDecoupled, Value::of_bool(adamw));
  const bool told = group.optimizer.empty() || optimizer_name(group) == group.optimizer;
  if (adam_beside_muon || !told)
    group.settings.emplace_back(kOptimizer, Value::of_string(adamw ? "adam" : group.optimizer));
  Value dict = Value::of_dict();
  for (auto& [name, value] : group.settings)
    dict.add(name == kStep ? kStepSetting : std::string_view(name), std::move(value));
  std::vector<Value> names;
  for (std::string& name : group.params) names.push_back(Value::of_string(std::move(name)));
  if (!names.empty()) dict.add(kParamNames, Value::of_list(std::move(names)));
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

using Indexes = std::vector<std::size_t>;  // of groups

// The fused Adam of a GPU job counts its steps in the group, as a whole number.
bool counts_in_group(const GroupEntry& group) {
  return setting_of(group, "bias_correction") != nullptr;
}

// The groups of one optimizer, each with its steps; torch's own optimizers, where they are not
// distributed, look for one count of all.
Value stored_groups(const Catalog& content, const std::vector<GroupEntry>& groups,
                    const Indexes& members, bool one_count, std::vector<std::string>& dropped) {
  std::vector<std::optional<std::int64_t>> steps;
  for (const std::size_t i : members) steps.push_back(steps_of(groups[i], content, dropped));
  constexpr std::int64_t kExact = 1 << 24;  // whole numbers up to here are exact in fp32
  const auto is_fused = [&](std::size_t i) { return counts_in_group(groups[i]); };
  one_count =
      one_count && std::ranges::none_of(members, is_fused) && steps.front() &&
      *steps.front() <= kExact &&
      std::all_of(steps.begin(), steps.end(), [&](const auto& s) { return s == steps.front(); });
  Value inner = Value::of_dict();
  Value state = Value::of_dict();
  if (one_count) state.add(kCommonStep, scalar(static_cast<float>(*steps.front())));
  if (one_count) inner.add(kState, std::move(state));
  Value list = Value::of_list({});
  for (std::size_t i = 0; i < members.size(); ++i) {
    Value group = stored_group(groups[members[i]], content);
    if (steps[i] && !one_count)
      group.add(kStep, is_fused(members[i]) ? Value::of_int(*steps[i])
                                            : Value::of_real(static_cast<double>(*steps[i])));
    list.items.push_back(std::move(group));
  }
  inner.add(kParamGroups, std::move(list));
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
  Value dict = Value::of_dict();
  Value tensor = scalar(static_cast<float>(*scale));
  tensor.items.push_back(Value::of_int(1));
  dict.add("scale", std::move(tensor));
  dict.add("growth_tracker", Value::of_int(std::max<std::int64_t>(0, stable) % window));
  dict.add("hysteresis_tracker", Value::of_int(whole("cur_hysteresis", 1)));
  return dict;
}

// Groups of other formats are in an order of their own, which the optimizers' order may not keep.
bool is_reordered(const OptimizerChain& chain, std::size_t groups) {
  for (std::size_t i = 1; i < groups; ++i)
    if (chain.of_group(i) < chain.of_group(i - 1)) return true;
  return false;
}

Value stored_optimizer(const Catalog& content, std::vector<GroupEntry> groups, Masters masters,
                       std::vector<std::string>& dropped) {
  const OptimizerChain chain(content, groups);
  if (is_reordered(chain, groups.size()))
    for (std::size_t i = 0; i < groups.size(); ++i)
      groups[i].settings.emplace_back(kGroupIndex, Value::of_int(static_cast<std::int64_t>(i)));
  const std::optional<Value> scaler = grad_scaler_of(content);
  Value all = Value::of_dict();
  for (std::uint32_t number = 0; number < chain.count(); ++number) {
    Indexes members;
    for (std::size_t i = 0; i < groups.size(); ++i)
      if (chain.of_group(i) == number) members.push_back(i);
    const bool distributed = chain.is_distributed(number);
    Value part = Value::of_dict();
    Value inner = stored_groups(content, groups, members, !distributed, dropped);
    if (distributed || masters == Masters::stored)
      part.add(kOptimizer, std::move(inner));
    else
      part = std::move(inner);  // a model of 32 bits has torch's own optimizer
    if (distributed)
      part.add("param_state_sharding_type", Value::of_string(std::string(kModelSpace)));
    if (scaler) part.add(kScaler, *scaler);
    if (chain.count() == 1) return part;
    all.entries.emplace_back(Value::of_int(number), std::move(part));
  }
  return all;
}

// As they are with singleton_local_shards, which a job goes by; without it layers are stacked.
bool has_layers_apart(const Catalog& content) {
  constexpr std::string_view kLayers = ".layers.";
  return std::ranges::any_of(content.tensors, [&](const TensorEntry& tensor) {
    const std::size_t at = tensor.name.find(kLayers);
    if (at == std::string::npos || at + kLayers.size() == tensor.name.size()) return false;
    const char next = tensor.name[at + kLayers.size()];
    return next >= '0' && next <= '9';
  });
}

}  // namespace

Value common_state_of(const Catalog& content, Masters masters, std::vector<std::string>& dropped) {
  Value common = Value::of_dict();
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
      dropped.push_back(compose("value {}: {}", json_string(entry.key), kObjectPart));
    } else if (entry.key == "folder") {
      if (!entry.echoed && entry.value.text != "release") dropped.emplace_back(kOtherFolder);
    } else if (!is_object_key(entry.key)) {
      common.add(entry.key, entry.value);
    }
  }
  if (!has_own && common.find(kVersion) == nullptr) common.add(kVersion, Value::of_real(3.0));
  if (content.step && common.find(kIteration) == nullptr)
    common.add(kIteration, Value::of_int(*content.step));
  if (groups.empty() || common.find(kOptimizer) != nullptr) return common;
  common.add(kOptimizer, stored_optimizer(content, groups, masters, dropped));
  if (common.find(kContentMetadata) == nullptr) {
    Value layout = Value::of_dict();
    layout.add(kShardingType, Value::of_string(std::string(kModelSpace)));
    if (has_layers_apart(content)) layout.add("singleton_local_shards", Value::of_bool(true));
    common.add(kContentMetadata, std::move(layout));
  }
  return common;
}

}  // namespace ebb::formats::megatron
