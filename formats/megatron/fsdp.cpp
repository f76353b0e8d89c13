// fsdp_dtensor: plain DCP with Megatron's keys. Uneven shards, HSDP and experts are only boxes
// here.
#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "ebb/formats/catalog/key_path.h"
#include "ebb/formats/catalog/value_alike.h"
#include "ebb/formats/catalog/with_catalog.h"
#include "ebb/formats/core/folder_tree.h"
#include "ebb/formats/dcp/dcp.h"
#include "ebb/formats/dcp/item_writer.h"
#include "ebb/formats/megatron/common_state.h"
#include "ebb/formats/megatron/folder.h"
#include "ebb/formats/megatron/megatron.h"
#include "ebb/formats/megatron/names.h"
#include "ebb/formats/megatron/optimizers.h"
#include "ebb/formats/state_dict/groups.h"

namespace ebb::formats::megatron {
namespace {

constexpr std::string_view kMeta = "param_to_group_meta";

// `model.<name>` is "param", `optimizer[.<i>].state.<name>.<state>` a state; anything else (key,
// "tensor").
std::pair<std::string, std::string> identity_of(std::string_view key) {
  constexpr std::string_view kModel = "model.", kState = "state.";
  if (key.starts_with(kModel)) return {std::string(key.substr(kModel.size())), "param"};
  const std::size_t word = key.starts_with("optim") ? key.find(compose(".{}", kState)) : 0;
  const std::size_t first = word + kState.size() + 1, last = key.rfind('.');
  if (word == 0 || word == std::string_view::npos || last <= first || last == key.npos)
    return {std::string(key), "tensor"};
  return {std::string(key.substr(first, last - first)), std::string(key.substr(last + 1))};
}

// `optimizer[.<i>].param_to_group_meta.<parameter>.<setting>`
struct Meta {
  std::string optimizer;  // "" or "<i>"
  std::string param;
  std::string setting;
};

std::optional<Meta> meta_of(const std::vector<PathItem>& path) {
  std::vector<std::string> words;
  for (const PathItem& item : path) words.push_back(joined({item}));
  const bool several = words.size() == 5 && words[2] == kMeta;
  if (!several && !(words.size() == 4 && words[1] == kMeta)) return std::nullopt;
  return Meta{several ? words[1] : "", words[words.size() - 2], words.back()};
}

using States = std::map<std::string, std::set<std::string>>;  // of each parameter

// SwiGLU's two halves are stored apart; the settings keep the name of the whole.
std::vector<std::string> stored_names(const std::string& param, const States& states) {
  std::vector<std::string> halves{param + "_w", param + "_v"};
  if (states.contains(param) || !states.contains(halves[0]) || !states.contains(halves[1]))
    return {param};
  return halves;
}

// Parameters of one optimizer with the same settings are one group.
void read_groups(Catalog& catalog) {
  struct Settings {
    std::vector<std::pair<std::string, Value>> list;
    std::set<std::string> lines;  // to compare: ranks list them in different orders
  };
  std::vector<std::pair<std::string, std::string>> order;  // (optimizer, parameter)
  std::map<std::pair<std::string, std::string>, Settings> of_param;
  for (ValueEntry& entry : catalog.values) {
    const auto meta = meta_of(entry.path);
    if (!meta) continue;
    entry.echoed = true;
    auto [at, fresh] = of_param.try_emplace({meta->optimizer, meta->param});
    if (fresh) order.push_back(at->first);
    at->second.list.emplace_back(meta->setting, entry.value);
    at->second.lines.insert(meta->setting + "=" + to_json(entry.value));
  }
  States states;
  for (const TensorEntry& tensor : catalog.tensors) states[tensor.name].insert(tensor.state);
  std::map<std::pair<std::string, std::set<std::string>>, std::size_t> group_of;
  for (const auto& place : order) {
    Settings& settings = of_param[place];
    std::vector<std::string> names = stored_names(place.second, states);
    const auto [at, fresh] =
        group_of.try_emplace({place.first, settings.lines}, catalog.groups.size());
    if (fresh) {
      GroupEntry group{"", std::move(settings.list), {}};
      group.optimizer = said_optimizer(group);
      const bool muon = states[names.front()].contains("momentum_buffer");
      if (group.optimizer.empty() && muon) group.optimizer = "muon";
      catalog.groups.push_back(std::move(group));
    }
    auto& params = catalog.groups[at->second].params;
    std::move(names.begin(), names.end(), std::back_inserter(params));
  }
}

class FsdpEmitter {
 public:
  FsdpEmitter(const Catalog& content, dcp::ItemWriter items)
      : content_(content), items_(std::move(items)), chain_(content, content.groups) {
    for (std::size_t i = 0; i < content.groups.size(); ++i)
      for (const auto& names : {content.groups[i].params, unsplit(content.groups[i].params)})
        for (const std::string& name : names) optimizer_of_[name] = chain_.of_group(i);
    for (std::uint32_t i = 0; i < content.tensors.size(); ++i) {
      const TensorEntry& tensor = content.tensors[i];
      if (tensor.state == "master") masters_[tensor.name] = i;
      if (tensor.state == "param") params_[tensor.name] = i;
    }
  }

  Result<EmitPlan> run() {
    for (std::uint32_t i = 0; i < content_.tensors.size(); ++i) {
      const TensorEntry& tensor = content_.tensors[i];
      if (const auto from = made_of(i)) {
        derived_.push_back({i, *from});
        continue;
      }
      Key key = key_of(tensor);
      if (!is_weight(tensor.state) &&
          identity_of(key.text) != std::pair(tensor.name, tensor.state)) {
        items_.omit(i, label_of(tensor), kOtherState);
        continue;
      }
      EBB_TRY(items_.add_tensor(std::move(key.text), std::move(key.path), i));
    }
    bool has_meta = false;
    for (const ValueEntry& entry : content_.values) {
      if (entry.key == "folder") {
        if (!entry.echoed) items_.dropped().emplace_back(kOtherFolder);
        continue;
      }
      has_meta = has_meta || meta_of(entry.path);
      EBB_TRY(items_.add_value(entry.key, entry.path, entry.value));
    }
    if (!has_meta) EBB_TRY(add_groups());
    if (content_.step && !items_.has("iteration"))
      EBB_TRY(items_.add_value("iteration", {}, Value::of_int(*content_.step)));
    if (!items_.has("checkpoint_version"))
      EBB_TRY(items_.add_value("checkpoint_version", {}, Value::of_real(3.0)));
    EmitPlan plan = items_.finish();
    plan.groups_have_order = false;
    plan.derived = std::move(derived_);
    std::ranges::move(notes_, std::back_inserter(plan.notes));
    return plan;
  }

 private:
  struct Key {
    std::string text;
    std::vector<PathItem> path;
  };

  // The one of a parameter's two copies that is not stored, here of another format: the model's
  // when it is rounded from the master, the master when the model's is as wide.
  std::optional<std::uint32_t> made_of(std::uint32_t number) const {
    const TensorEntry& tensor = content_.tensors[number];
    const auto master = masters_.find(tensor.name), param = params_.find(tensor.name);
    if (tensor.key || master == masters_.end() || param == params_.end()) return std::nullopt;
    const bool as_wide =
        content_.tensors[master->second].dtype == content_.tensors[param->second].dtype;
    if (tensor.state == "param" && !as_wide) return master->second;
    if (tensor.state == "master" && as_wide) return param->second;
    return std::nullopt;
  }

  static Key key_at(const std::vector<std::string>& words) {
    Key key{{}, {words.begin(), words.end()}};
    key.text = joined(key.path);
    return key;
  }

  // `optimizer[.<i>].<part>.<name>.<last>`
  Key optimizer_key(const std::string& name, std::string_view part, const std::string& last) const {
    std::vector<std::string> words{"optimizer"};
    const auto number = optimizer_of_.find(name);
    if (chain_.count() > 1)
      words.push_back(std::to_string(number == optimizer_of_.end() ? 0 : number->second));
    words.insert(words.end(), {std::string(part), name, last});
    return key_at(words);
  }

  // Megatron-FSDP's model weights are the master weights: fp32 whatever the model computes in.
  Key key_of(const TensorEntry& tensor) const {
    if (tensor.key && identity_of(*tensor.key) == std::pair(tensor.name, tensor.state))
      return {*tensor.key, tensor.path.empty() ? std::vector<PathItem>{*tensor.key} : tensor.path};
    if (tensor.state == "param" || tensor.state == "buffer" || tensor.state == "master")
      return key_at({"model", tensor.name});
    if (tensor.state == "tensor") return {tensor.name, {tensor.name}};
    return optimizer_key(tensor.name, "state", tensor.state);
  }

  // SwiGLU's two halves have one entry, under the name of the whole.
  static std::vector<std::string> unsplit(const std::vector<std::string>& params) {
    const std::set<std::string> names(params.begin(), params.end());
    std::vector<std::string> out;
    for (const std::string& name : params) {
      const std::string whole = name.substr(0, std::max<std::size_t>(name.size(), 2) - 2);
      const bool halves = names.contains(whole + "_w") && names.contains(whole + "_v");
      if (halves && name.ends_with("_v")) continue;
      out.push_back(halves && name.ends_with("_w") ? whole : name);
    }
    return out;
  }

  Result<> add_groups() {
    const bool recorded = list_params(content_.groups);
    for (std::size_t i = 0; i < content_.groups.size(); ++i) {
      const GroupEntry& group = content_.groups[i];
      if (group.params.empty() && recorded)
        notes_.push_back(compose(
            "parameter group {} has no parameters and is left out: settings are stored for each "
            "parameter",
            i));
      else if (group.params.empty() && !group.settings.empty())
        items_.dropped().push_back(
            compose("parameter group {} does not say whose it is, and settings are stored for each "
                    "parameter",
                    i));
      for (const std::string& name : unsplit(group.params)) {
        bool named = false;
        for (const auto& [setting, value] : group.settings) {
          named = named || setting == "optimizer";
          EBB_TRY(add_setting(name, setting, value));
        }
        if (named || group.optimizer.empty()) continue;
        EBB_TRY(add_optimizer(name, group));
      }
    }
    return {};
  }

  // In Megatron's words: AdamW is an "adam" that is decoupled.
  Result<> add_optimizer(const std::string& param, const GroupEntry& group) {
    const bool decoupled = is_decoupled(group);
    if (group.optimizer == "adam" && decoupled)
      EBB_TRY(add_setting(param, kDecoupled, Value::of_bool(false)));
    const bool adamw = group.optimizer == "adamw" && decoupled;
    return add_setting(param, kOptimizer, Value::of_string(adamw ? "adam" : group.optimizer));
  }

  Result<> add_setting(const std::string& param, std::string_view setting, const Value& value) {
    Key key = optimizer_key(param, kMeta, std::string(setting));
    return items_.add_value(std::move(key.text), std::move(key.path), value);
  }

  const Catalog& content_;
  dcp::ItemWriter items_;
  OptimizerChain chain_;
  std::map<std::string, std::uint32_t> optimizer_of_;
  std::map<std::string, std::uint32_t> masters_;
  std::map<std::string, std::uint32_t> params_;
  std::vector<Derived> derived_;
  std::vector<std::string> notes_;
};

}  // namespace

}  // namespace ebb::formats::megatron

namespace ebb::formats {

bool detect_megatron_fsdp(const SourceTree& tree) {
  return megatron::look_for_place(tree).kind == megatron::Kind::fsdp;
}

Result<std::unique_ptr<Checkpoint>> describe_megatron_fsdp(std::shared_ptr<const SourceTree> tree) {
  EBB_TRY_ASSIGN(const megatron::Place place, megatron::find_place(*tree));
  EBB_TRY_ASSIGN(dcp::Opened opened, dcp::open(folder_of(std::move(tree), place.folder)));
  Catalog catalog = opened.checkpoint->catalog();
  catalog.format = "megatron-fsdp";
  catalog.producer = dcp::produced_by("Megatron-FSDP", catalog.producer);
  for (TensorEntry& tensor : catalog.tensors)
    std::tie(tensor.name, tensor.state) = megatron::identity_of(*tensor.key);
  if (ValueEntry* step = step_value(catalog.values, {})) {
    catalog.step = step->value.integer;
    step->echoed = true;
  }
  megatron::read_groups(catalog);
  for (ValueEntry& entry : catalog.values)
    if (entry.key == "iteration" || entry.key == "checkpoint_version") entry.echoed = true;
  if (!place.folder.empty()) {
    for (FileEntry& file : catalog.files) file.name.insert(0, place.folder + "/");
    catalog.values.push_back({"folder", {"folder"}, Value::of_string(place.folder), true});
  }
  if (std::string differ = megatron::iterations_that_differ(catalog); !differ.empty())
    catalog.notes.push_back(std::move(differ));
  return with_catalog(std::move(opened.checkpoint), std::move(catalog));
}

CommonNames megatron_fsdp_names(const Catalog& catalog) {
  constexpr std::string_view kWrapper = "module.";
  CommonNames names;
  names.groups = catalog.groups;
  const auto is_model = [](std::string_view state) {
    return state == "param" || state == "buffer";
  };
  bool unwrap = !weights_only({catalog});
  for (const TensorEntry& tensor : catalog.tensors) {
    names.tensors.emplace_back(tensor.name, tensor.state);
    unwrap = unwrap && is_model(tensor.state) == tensor.name.starts_with(kWrapper);
  }
  for (auto& [name, state] : names.tensors)
    if (unwrap && is_model(state)) name.erase(0, kWrapper.size());
  return names;
}

Result<EmitPlan> emit_megatron_fsdp(const EmitRequest& request) {
  EBB_TRY_ASSIGN(dcp::ItemWriter items, dcp::ItemWriter::make(request, ""));
  return megatron::FsdpEmitter(request.content, std::move(items)).run();
}

}  // namespace ebb::formats
