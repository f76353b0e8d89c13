#include "ebb/formats/megatron/common_state.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>

#include "ebb/formats/catalog/resume.h"
#include "ebb/formats/megatron/names.h"
#include "ebb/formats/megatron/optimizers.h"
#include "ebb/formats/state_dict/groups.h"

namespace ebb::formats::megatron {
namespace {

constexpr std::size_t kMaxGuessed = 256;  // groups: each is held against each parameter

bool is_dict(const Value* value) { return value != nullptr && value->kind == Value::Kind::dict; }
bool is_list(const Value* value) { return value != nullptr && value->kind == Value::Kind::list; }

std::optional<std::int64_t> steps_in(const Value* value) {
  const auto number = number_in(value);
  constexpr double kMost = 9e15;  // whole numbers up to here are exact
  if (!number || !(*number >= 0) || *number > kMost || *number != std::floor(*number))
    return std::nullopt;
  return static_cast<std::int64_t>(*number);
}

// The groups of all optimizers of a chain, and their parameters.
class GroupReader {
 public:
  explicit GroupReader(Catalog& catalog) : catalog_(catalog) {
    for (const TensorEntry& tensor : catalog_.tensors) {
      if (!tensor.key || !is_optimizer_key(*tensor.key)) continue;
      std::string_view key = *tensor.key;
      prefixed_ = prefixed_ || take_chained(key).has_value();
      Member& member = of_optimizer_[parsed_key(*tensor.key).optimizer][tensor.name];
      member.tensor = &tensor;
      member.momentum = member.momentum || tensor.state == "momentum_buffer";
      member.mean = member.mean || tensor.state == "exp_avg";
    }
  }

  void add_optimizers(const Value& optimizer) {
    bool chained = false;
    for (const auto& [key, part] : optimizer.entries)
      if (key.kind == Value::Kind::integer && key.integer >= 0) {
        chained = true;
        add_optimizer(static_cast<std::uint32_t>(key.integer), part);
      }
    if (!chained) add_optimizer(0, optimizer);
  }

  // A dict with param_groups. Of dp_reshardable each cut of the model has one, which say the same.
  void add_groups(std::uint32_t number, const Value& inner) {
    const Value* list = inner.find(kParamGroups);
    if (!is_list(list)) return;
    const Value* state = inner.find(kState);
    const auto common = steps_in(is_dict(state) ? state->find(kCommonStep) : nullptr);
    std::vector<Stored>& known = stored_[number];
    const std::size_t before = known.size();
    for (const Value& group : list->items) {
      const std::string said = to_json(group);
      const bool again = std::any_of(known.begin(), known.begin() + static_cast<long>(before),
                                     [&](const Stored& other) { return other.said == said; });
      if (!again) known.push_back(stored(group, said, common));
    }
  }

  void run() {
    std::vector<Stored> all;
    std::map<std::uint32_t, Candidates> of_number;
    for (auto& [number, groups] : stored_)
      for (Stored& group : groups) {
        const std::uint32_t members = prefixed_ ? number : 0;
        of_number[members].push_back(all.size());
        all.push_back(std::move(group));
      }
    for (auto& [number, candidates] : of_number)
      if (const auto members = of_optimizer_.find(number); members != of_optimizer_.end())
        name_members(members->second, candidates, all);
    if (unplaced_ != 0)
      catalog_.notes.push_back(
          compose("{} parameters fit no group by Megatron's default rule", unplaced_));
    if (std::ranges::all_of(all, [](const Stored& group) { return group.index.has_value(); }))
      std::ranges::stable_sort(all, {}, [](const Stored& group) { return *group.index; });
    for (Stored& group : all) {
      if (group.steps)
        for (const std::string& name : group.entry.params)
          catalog_.param_steps[name] = *group.steps;
      catalog_.groups.push_back(std::move(group.entry));
    }
  }

 private:
  struct Member {
    const TensorEntry* tensor = nullptr;
    bool momentum = false;
    bool mean = false;
  };
  using Members = std::map<std::string, Member>;
  using Candidates = std::vector<std::size_t>;  // of the groups in the order of their optimizers

  struct Stored {
    GroupEntry entry;
    std::string said;                   // the group as JSON
    std::optional<std::int64_t> steps;  // its parameters'
    std::optional<std::int64_t> index;  // among the groups of the content it was written from
  };

  void add_optimizer(std::uint32_t number, const Value& part) {
    const Value* inner = part.find(kOptimizer);
    add_groups(number, is_dict(inner) ? *inner : part);
  }

  static Stored stored(const Value& group, std::string said, std::optional<std::int64_t> common) {
    Stored out;
    for (const auto& [name, value] : group.entries) {
      if (name.kind != Value::Kind::string) continue;
      if (name.text == kParamNames && value.kind == Value::Kind::list) {
        for (const Value& param : value.items) out.entry.params.push_back(param.text);
      } else if (name.text == kStepSetting) {
        out.entry.settings.emplace_back(kStep, value);
      } else if (name.text == kGroupIndex && value.kind == Value::Kind::integer) {
        out.index = value.integer;
      } else if (name.text != "params" && name.text != kStep) {
        out.entry.settings.emplace_back(name.text, value);
      }
    }
    out.entry.optimizer = optimizer_name(out.entry);
    out.said = std::move(said);
    const auto own = steps_in(group.find(kStep));
    out.steps = own ? own : common;
    return out;
  }

  // Megatron stores no names: a group alone has all parameters of its optimizer; of several,
  // Megatron's default rule decides (docs/formats/megatron.md, "groups"). Where the keys do not say
  // whose they are, the groups of all optimizers are asked.
  void name_members(const Members& members, const Candidates& candidates,
                    std::vector<Stored>& groups) {
    const auto named = [&](std::size_t i) { return !groups[i].entry.params.empty(); };
    if (std::ranges::any_of(candidates, named)) return;
    if (candidates.size() > kMaxGuessed) {
      catalog_.notes.push_back(
          compose("which of {} groups a parameter is in is not looked for: more than {}",
                  candidates.size(), kMaxGuessed));
      return;
    }
    for (const auto& [name, member] : members) {
      std::optional<std::size_t> found;
      for (const std::size_t i : candidates) {
        if (candidates.size() > 1 && !fits(member, groups[i].entry)) continue;
        if (found) {
          found.reset();
          break;
        }
        found = i;
      }
      if (found)
        groups[*found].entry.params.push_back(name);
      else
        ++unplaced_;
    }
  }

  // Experts have groups of their own; biases and vectors have those without weight decay. Muon's
  // parameters have a momentum, Adam's an exp_avg.
  static bool fits(const Member& member, const GroupEntry& group) {
    const TensorEntry& tensor = *member.tensor;
    const bool muon = group.optimizer == "muon";
    const bool adam = group.optimizer.starts_with("adam");
    if ((muon && !member.momentum) || (adam && !member.mean)) return false;
    const bool expert = tensor.name.find(".experts.") != std::string::npos;
    const Value* for_experts = setting_of(group, "is_expert_parallel");
    if (for_experts != nullptr && (for_experts->integer != 0) != expert) return false;
    const auto decay = number_in(setting_of(group, "wd_mult"));
    const std::size_t dims = tensor.shape.size();
    const bool vector = dims <= 1 + std::min(dims, stacked_axes(tensor.name));
    const bool undecayed = tensor.name.ends_with(".bias") || vector;
    return !decay || (*decay == 0) == undecayed;
  }

  Catalog& catalog_;
  std::map<std::uint32_t, Members> of_optimizer_;
  std::map<std::uint32_t, std::vector<Stored>> stored_;  // by the optimizer's number
  bool prefixed_ = false;                                // keys begin with "chained_<N>."
  std::size_t unplaced_ = 0;
};

// Of the first optimizer: chained ones have their own, which go up and down together.
const Value* scaler_in(const Value& common) {
  const Value* optimizer = common.find(kOptimizer);
  if (!is_dict(optimizer)) return nullptr;
  const Value* scaler = optimizer->find(kScaler);
  for (const auto& [key, part] : optimizer->entries)
    if (scaler == nullptr && key.kind == Value::Kind::integer) scaler = part.find(kScaler);
  return scaler;
}

// "[chained_N.]optimizer.distributed.dp_group_idx_M.optimizer/shard_0_1": the groups of the
// optimizer of that number, in a list of one.
std::optional<std::uint32_t> of_distributed(std::string_view key) {
  const std::uint32_t number = take_chained(key).value_or(0);
  const bool groups = key.starts_with("optimizer.distributed.dp_group_idx_") &&
                      key.find(".optimizer/shard_") != std::string_view::npos;
  return groups ? std::optional(number) : std::nullopt;
}

}  // namespace

void add_common_state(Catalog& catalog, const Value& common) {
  GroupReader groups(catalog);
  for (const ValueEntry& entry : catalog.values)
    if (const auto number = of_distributed(entry.key))
      if (is_list(&entry.value) && entry.value.items.size() == 1)
        groups.add_groups(*number, entry.value.items[0]);
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
      groups.add_optimizers(value);
      entry.echoed = true;
    }
    if (entry.key == kVersion || entry.key == kContentMetadata)
      entry.echoed = true;  // Megatron's own
    catalog.values.push_back(std::move(entry));
  }
  groups.run();
  const Value* scaler = scaler_in(common);
  if (scaler != nullptr && common.find(kLossScaler) == nullptr)
    catalog.values.push_back({std::string(kLossScaler),
                              {"common", std::string(kOptimizer), std::string(kScaler)},
                              *scaler});
}

}  // namespace ebb::formats::megatron
