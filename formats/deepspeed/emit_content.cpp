#include "ebb/formats/deepspeed/emit_content.h"

#include <algorithm>
#include <set>

#include "ebb/formats/catalog/resume.h"
#include "ebb/formats/catalog/value_alike.h"
#include "ebb/formats/core/float_cast.h"
#include "ebb/formats/core/json_text.h"
#include "ebb/formats/deepspeed/config.h"
#include "ebb/formats/torch/file_writer.h"

namespace ebb::formats::deepspeed {
namespace {

constexpr std::string_view kVersion = "0.19.8";  // whose layout is written
constexpr std::string_view kProducer = "DeepSpeed ";

// What an engine keeps that is in no model file under that name; everything else is the client's.
constexpr std::string_view kOptimizerKeys[] = {"tied",     "loss_scaler", "dynamic_loss_scale",
                                               "overflow", "clip_grad",   "zero_stage"};

bool is_optimizer_state(const ValueEntry& entry) {
  if (entry.path.size() < 4) return false;
  const auto* first = std::get_if<std::string>(&entry.path[0]);
  const auto* second = std::get_if<std::string>(&entry.path[1]);
  return first != nullptr && second != nullptr && *first == "optimizer" && *second == "state";
}

// The reader's name for a client's key that is also one of the engine's.
std::string client_key(const std::string& key) {
  constexpr std::string_view kPrefix = "client_state.";
  return key.starts_with(kPrefix) ? key.substr(kPrefix.size()) : key;
}

bool names_a_folder(const Value& tag) {
  return tag.kind == Value::Kind::string && !tag.text.empty() && !tag.text.starts_with('.') &&
         tag.text.find('/') == std::string::npos;
}

// Whether the files have room for it: under a client's key, or as what lies at a place of its own.
bool is_free(const ValueEntry& entry) {
  constexpr std::string_view kMadeAnew[] = {"client_state",   "dynamic_loss_scale", "loss_scale",
                                            "param_groups",   "state_step",         "step",
                                            "zero_optimizer", "zero_stage"};
  constexpr std::string_view kDicts[] = {"ds_config", "tied"};
  if (entry.key == kBufferNames) return is_sequence(entry.value);
  if (is_a_files_own(client_key(entry.key)) || one_of(kMadeAnew, entry.key)) return false;
  if (one_of(kDicts, entry.key)) return entry.value.kind == Value::Kind::dict;
  return entry.key != "tag" || names_a_folder(entry.value);
}

class Gatherer {
 public:
  Gatherer(const EmitRequest& request, Form form, EmitPlan& plan)
      : content_(request.content), layout_(request.layout), form_(form), plan_(plan) {}

  Result<Content> run() {
    sort_values();
    EBB_TRY(choose_stage());
    if (std::ranges::any_of(content_.tensors, [](const auto& one) { return one.name.empty(); }))
      return Error{Code::unsupported, "parameter \"\": DeepSpeed's parameters have names",
                   "--include '?*' takes those that have one"};
    for (std::uint32_t i = 0; i < content_.tensors.size(); ++i)
      tensors_[content_.tensors[i].name].try_emplace(content_.tensors[i].state, i);
    choose_dtype();
    take_config();
    EBB_TRY(take_groups());
    order_groups(content_, made_by_engine(), out_, plan_);
    take_whole_tensors();
    take_tied();
    out_.step = content_.step.value_or(most_steps());
    out_.counts_the_run_alone = !made_by_engine();
    drop_the_rest();
    return std::move(out_);
  }

 private:
  void drop(std::string line) { plan_.dropped.push_back(std::move(line)); }

  bool from_deepspeed() const {
    return content_.format == "deepspeed" || content_.format == "deepspeed-universal";
  }

  // True when an engine of DeepSpeed's made the groups, whatever format they came through.
  bool made_by_engine() const {
    return from_deepspeed() || out_.value("ds_config") != nullptr ||
           std::ranges::any_of(content_.groups, [](const GroupEntry& group) {
             return job_group(group.settings).has_value();
           });
  }

  void sort_values() {
    for (const ValueEntry& entry : content_.values) {
      if (is_optimizer_state(entry)) {
        if (!entry.echoed)
          drop("value " + json_string(entry.key) +
               ": a parameter's own; DeepSpeed keeps one count of steps for each flat buffer");
        continue;
      }
      if (const std::string_view part = unwritable_part(entry.value); !part.empty()) {
        drop(compose("value {}: holds an object of class {}", json_string(entry.key), part));
        continue;
      }
      const bool own = one_of(kStructureKeys, entry.key) || one_of(kEngineKeys, entry.key) ||
                       one_of(kOptimizerKeys, entry.key);
      if (entry.echoed && !own) continue;  // other words for what stands elsewhere
      if (!entry.echoed && !is_free(entry)) {
        drop(compose("value {}: DeepSpeed's files keep something of their own under that name",
                     json_string(entry.key)));
        continue;
      }
      const bool scaler = entry.key == "loss_scaler";
      if ((scaler || one_of(kEngineKeys, entry.key)) && entry.value.kind == Value::Kind::none) {
        plan_.rewritten.push_back(entry.key);  // it is as if nothing had been said
        continue;
      }
      if (scaler && entry.value.find("cur_scale") == nullptr)
        drop("value \"loss_scaler\": not a scaler of DeepSpeed's");
      else if (own)
        out_.engine.try_emplace(entry.key, &entry.value);
      else if (entry.key == "tag" && names_a_folder(entry.value))
        out_.tag = entry.value.text;
      else
        out_.client.emplace_back(client_key(entry.key), &entry.value);
    }
    out_.version = from_deepspeed() && content_.producer.starts_with(kProducer)
                       ? content_.producer.substr(kProducer.size())
                       : std::string(kVersion);
  }

  Result<> choose_stage() {
    const Layout::Spec& spec = layout_.spec();
    out_.policy = spec.policy;
    out_.world = spec.mesh.shard_world;
    if (form_ == Form::universal) {  // whole tensors, whatever the partition
      out_.policy = Policy::zero12;
      out_.world = spec.mesh.world();
      const std::int64_t stage = stage_of(content_);
      out_.stage = stage >= 1 && stage <= 3 ? stage : 2;
      return {};
    }
    if (spec.mesh.replicas != 1)
      return Error{Code::usage, compose("DeepSpeed's ZeRO keeps one copy of the state, not {}",
                                        spec.mesh.replicas)};
    if (spec.policy == Policy::zero3) {
      out_.stage = 3;
      return {};
    }
    if (spec.policy != Policy::zero12 && spec.policy != Policy::zero12_boundary)
      return Error{Code::usage,
                   compose("DeepSpeed cannot hold the partition {}", name_of(spec.policy)),
                   "use --partition zero3 (stage 3), zero12 or zero12-boundary (stages 1 and 2)"};
    out_.stage = stage_of(content_) == 1 ? 1 : 2;
    return {};
  }

  void take_config() {
    const Value* given = out_.value("ds_config");
    out_.config = config_for(given, out_.stage, out_.model_dtype, content_.groups);
    if (given != nullptr && to_json(*given) != to_json(out_.config))
      plan_.rewritten.emplace_back("ds_config");  // it names the stage
  }

  std::optional<std::uint32_t> find(const std::string& name, const std::string& state) const {
    const auto states = tensors_.find(name);
    if (states == tensors_.end()) return std::nullopt;
    const auto tensor = states->second.find(state);
    if (tensor == states->second.end()) return std::nullopt;
    return tensor->second;
  }

  // What the configuration asks for; without it, what the trained parameters are, else any.
  void choose_dtype() {
    if (const Value* config = out_.value("ds_config")) {
      if (const auto dtype = model_dtype(*config)) {
        out_.model_dtype = *dtype;
        return;
      }
      out_.model_dtype = DType::f32;
    }
    for (const GroupEntry& group : content_.groups)
      for (const std::string& name : group.params)
        if (const auto param = find(name, "param")) {
          out_.model_dtype = content_.tensors[*param].dtype;
          return;
        }
    if (out_.value("ds_config") != nullptr) return;
    for (const TensorEntry& tensor : content_.tensors)
      if (tensor.state == "param" && is_floating(tensor.dtype)) {
        out_.model_dtype = tensor.dtype;
        return;
      }
  }

  Result<> take_groups() {
    groups_ = content_.groups;
    const bool named = list_params(groups_);
    if (!named && groups_.size() > 1)
      return Error{
          Code::unsupported,
          compose(
              "the content has {} optimizer groups and does not say which parameters are in which",
              groups_.size())};
    if (!named) groups_ = groups_by_states();
    for (std::uint32_t i = 0; i < groups_.size(); ++i) {
      if (groups_[i].params.empty())
        plan_.notes.push_back(
            compose("parameter group {} has no parameters and is left out, as DeepSpeed leaves it "
                    "out of its optimizer",
                    i));
      EBB_TRY(take_group(i));
    }
    if (!trained_.empty()) return {};
    if (std::ranges::none_of(content_.tensors,
                             [](const auto& one) { return is_weight(one.state); }))
      return Error{Code::unsupported,
                   "no weights are in this content, of which DeepSpeed's optimizer keeps masters",
                   "name the folder that has both the model and its optimizer"};
    return Error{Code::unsupported,
                 "nothing in this content is trained: DeepSpeed's ZeRO files hold optimizer "
                 "groups with at least one parameter"};
  }

  // Parameters with any state beside their own value; all of them when none has.
  std::vector<std::string> stateful_names() const {
    std::vector<std::string> names;
    std::vector<std::string> every;
    std::set<std::string> seen;
    for (const TensorEntry& tensor : content_.tensors) {
      const bool weights = tensor.state == "param" || tensor.state == "master";
      if (!weights || !is_floating(tensor.dtype) || !seen.insert(tensor.name).second) continue;
      every.push_back(tensor.name);
      const auto& states = tensors_.at(tensor.name);
      if (states.size() > states.count("param")) names.push_back(tensor.name);
    }
    return names.empty() ? every : names;
  }

  // Where nothing says who is in which group: one for each set of states, as DeepSpeed keeps one
  // buffer of a state for all of a group. Of its optimizers only Muon keeps momentum alone.
  std::vector<GroupEntry> groups_by_states() const {
    std::map<std::set<std::string_view>, GroupEntry> groups;
    for (const std::string& name : stateful_names()) {
      std::set<std::string_view> states;
      for (const auto& [state, number] : tensors_.at(name))
        if (state != "param" && state != "master" && state != "step") states.insert(state);
      const auto [group, is_new] = groups.try_emplace(states);
      if (is_new && !content_.groups.empty()) group->second = content_.groups.front();
      if (is_new && content_.groups.empty() &&
          states == std::set<std::string_view>{"momentum_buffer"})
        group->second.optimizer = "muon";
      group->second.params.push_back(name);
    }
    std::vector<GroupEntry> out;
    for (auto& [states, group] : groups) out.push_back(std::move(group));
    return out;
  }

  Result<> take_group(std::uint32_t number) {
    const GroupEntry& group = groups_[number];
    OutGroup out;
    out.number = number;
    out.muon = group.optimizer == "muon";
    for (const std::string& name : group.params) {
      listed_.insert(name);
      const auto master = find(name, "master");
      const auto param = find(name, "param");
      if (!master && !param) continue;  // left out on purpose
      const std::uint32_t source = master ? *master : *param;
      const TensorEntry& tensor = content_.tensors[source];
      if (!is_floating(tensor.dtype))
        return Error{Code::unsupported, compose("{} is {}: no optimizer trains that",
                                                label_of(tensor), name_of(tensor.dtype))};
      if (volume(tensor.shape) == 0) continue;  // to the engine such a parameter is frozen
      if (!trained_.insert(name).second)
        return Error{Code::layout,
                     "parameter " + json_string(name) + " is in two optimizer groups"};
      Trained& trained = out.params.emplace_back();
      trained = {name, tensor.shape, param, source, {}, steps_of(name)};
      for (const auto& [state, one] : tensors_.at(name))
        if (state != "param" && state != "master" && content_.tensors[one].shape == tensor.shape)
          trained.states.emplace(state, one);
    }
    if (out.params.empty()) return {};
    take_settings(group, out);
    out_.groups.push_back(std::move(out));
    return {};
  }

  std::optional<std::int64_t> steps_of(const std::string& name) const {
    const auto found = content_.param_steps.find(name);
    if (found == content_.param_steps.end()) return std::nullopt;
    return found->second;
  }

  void take_settings(const GroupEntry& group, OutGroup& out) {
    const auto has = [&](std::string_view name) {
      return std::ranges::any_of(out.settings, [&](const auto& s) { return s.first == name; });
    };
    for (const auto& [name, value] : group.settings) {
      const std::string_view part = unwritable_part(value);
      if (part.empty())
        out.settings.emplace_back(name, value);
      else
        drop(
            compose("setting {} of a group: holds an object of class {}", json_string(name), part));
    }
    if (made_by_engine()) {
      out.tensor_steps = has("foreach");
      if (group.settings.empty()) default_settings(out_.config, out.settings);
      return;
    }
    // What DeepSpeed's own optimizers ask of every group, whatever trained it before.
    const bool muon_run =
        std::ranges::any_of(groups_, [](const GroupEntry& g) { return g.optimizer == "muon"; });
    if (muon_run && !has("use_muon"))
      out.settings.emplace_back("use_muon", Value::of_bool(out.muon));
    const bool adam = group.optimizer == "adam" || group.optimizer == "adamw";
    if (adam && !has("bias_correction"))
      out.settings.emplace_back("bias_correction", Value::of_bool(true));
  }

  void take_whole_tensors() {
    std::set<std::string> buffers;
    const Value* names = out_.value(kBufferNames);
    if (names != nullptr)
      for (const Value& name : names->items) buffers.insert(name.text);
    for (std::uint32_t i = 0; i < content_.tensors.size(); ++i) {
      const TensorEntry& tensor = content_.tensors[i];
      if (trained_.contains(tensor.name)) continue;
      if (tensor.state == "buffer" ||
          (tensor.state == "param" && (buffers.contains(tensor.name) || seems_a_buffer(tensor))))
        out_.buffers.push_back({tensor.name, i});
      else if (tensor.state == "param")
        out_.frozen.push_back({tensor.name, i});
    }
    if (names == nullptr && !made_by_engine()) note_frozen();
  }

  // Formats without buffers call them parameters; the model's dtype tells most of them, and of
  // BatchNorm's the counter of batches beside them.
  bool seems_a_buffer(const TensorEntry& tensor) const {
    if (!is_floating(tensor.dtype)) return true;
    if (tensor.dtype != out_.model_dtype && out_.model_dtype != DType::f32) return true;
    for (const std::string_view mean : {"running_mean", "running_var"}) {
      const std::string_view name = tensor.name;
      if (!name.ends_with(mean)) continue;
      return tensors_.contains(
          std::string(name.substr(0, name.size() - mean.size())).append("num_batches_tracked"));
    }
    return false;
  }

  // Stage 3 keeps buffers whole and frozen parameters in pieces, and a job takes each from its own
  // place only; the other stages keep both alike.
  void note_frozen() {
    if (out_.stage != 3 || out_.frozen.empty()) return;
    std::vector<std::string> names;
    for (const Whole& frozen : out_.frozen) names.push_back(frozen.name);
    plan_.notes.push_back(compose(
        "in no optimizer group, and written as frozen parameters: {}. Stage 3 does not load them "
        "where the model has them as buffers; stages 1 and 2 (--partition zero12) load either",
        some_of(names)));
  }

  void take_tied() {
    const Value* shared = out_.value("tied");
    if (shared == nullptr) return;
    std::size_t left_out = 0;
    for (const auto& [alias, owner] : shared->entries) {
      if (tensors_.contains(alias.text)) continue;
      if (find(owner.text, "param") || find(owner.text, "master"))
        out_.tied.emplace_back(alias.text, owner.text);
      else
        ++left_out;
    }
    if (out_.tied.size() != shared->entries.size()) plan_.rewritten.emplace_back("tied");
    if (left_out == 0) return;
    plan_.notes.push_back(compose("{}{} left out with the {} of which {}", left_out,
                                  left_out == 1 ? " tied name is" : " tied names are",
                                  left_out == 1 ? "parameter" : "parameters",
                                  left_out == 1 ? "it is another name" : "they are other names"));
  }

  std::int64_t most_steps() const {
    std::int64_t most = 0;
    for (const auto& [name, steps] : content_.param_steps) most = std::max(most, steps);
    return most;
  }

  std::string_view why_dropped(const TensorEntry& tensor) const {
    if (trained_.contains(tensor.name))
      return ": not of its parameter's shape, DeepSpeed's flat buffers have no place for it";
    if (listed_.contains(tensor.name) && !find(tensor.name, "param") &&
        !find(tensor.name, "master"))
      return ": its parameter has no weights, of which DeepSpeed's optimizer keeps masters";
    return ": belongs to no parameter of an optimizer group";
  }

  void drop_the_rest() {
    std::set<std::uint32_t> kept;
    for (const OutGroup& group : out_.groups)
      for (const Trained& param : group.params) {
        kept.insert(param.source);
        if (param.param) kept.insert(*param.param);
        for (const auto& [state, number] : param.states) kept.insert(number);
      }
    for (const auto* wholes : {&out_.frozen, &out_.buffers})
      for (const Whole& whole : *wholes) kept.insert(whole.tensor);
    for (std::uint32_t i = 0; i < content_.tensors.size(); ++i) {
      if (kept.contains(i)) continue;
      const TensorEntry& tensor = content_.tensors[i];
      drop(compose("{} {}{}", label_of(tensor), to_string(tensor.shape), why_dropped(tensor)));
      plan_.omitted.push_back(i);
    }
  }

  const Catalog& content_;
  std::vector<GroupEntry> groups_;  // with their parameters
  const Layout& layout_;
  Form form_;
  EmitPlan& plan_;
  Content out_;
  std::map<std::string, std::map<std::string, std::uint32_t>> tensors_;  // name -> state -> number
  std::set<std::string> listed_, trained_;  // of the groups: all, and those that have weights
};

}  // namespace

Result<Content> gather_content(const EmitRequest& request, Form form, EmitPlan& plan) {
  return Gatherer(request, form, plan).run();
}

}  // namespace ebb::formats::deepspeed
