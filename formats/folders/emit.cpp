// Folders that transformers' Trainer and accelerate's FSDP resume from: each part as the framework
// lays it down, by the writer of its format. Content comes as respell_for_folder() leaves it.
#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ebb/formats/catalog/adapter.h"
#include "ebb/formats/catalog/composite.h"
#include "ebb/formats/catalog/key_path.h"
#include "ebb/formats/catalog/value_alike.h"
#include "ebb/formats/core/json_text.h"
#include "ebb/formats/dcp/dcp.h"
#include "ebb/formats/folders/file_names.h"
#include "ebb/formats/folders/folder_keys.h"
#include "ebb/formats/folders/folders.h"
#include "ebb/formats/folders/joined_plan.h"
#include "ebb/formats/folders/layout.h"
#include "ebb/formats/folders/trainer_state.h"
#include "ebb/formats/safetensors/safetensors.h"
#include "ebb/formats/torch_save/torch_save.h"

namespace ebb::formats {
namespace folders {
namespace {

constexpr std::uint64_t kModelBytes = 5'000'000'000;  // of one file, as transformers cut it

std::string_view first_word(const std::vector<PathItem>& path) {
  const auto* word = path.empty() ? nullptr : std::get_if<std::string>(&path.front());
  return word == nullptr ? std::string_view() : std::string_view(*word);
}

std::vector<PathItem> tail(const std::vector<PathItem>& path) {
  return {path.begin() + 1, path.end()};
}

enum class Depth : std::uint8_t { with_key, below_key };

class Emitter {
 public:
  Emitter(FolderKind kind, const EmitRequest& request)
      : kind_(kind), request_(request), content_(request.content), joined_(request) {
    for (std::uint32_t i = 0; i < content_.tensors.size(); ++i) {
      const TensorEntry& tensor = content_.tensors[i];
      if (tensor.state == "master" && first_word(tensor.path) == kModelKey)
        masters_.emplace(tensor.name, i);
    }
  }

  Result<EmitPlan> run() {
    EBB_TRY(check_parts());
    EBB_TRY(kind_ == FolderKind::trainer ? add_trainers() : add_accelerates());
    EBB_TRY(add_state());
    EBB_TRY(add_job());
    note_empty_groups();
    drop_rest();
    return std::move(joined_.plan());
  }

 private:
  std::string_view name() const { return name_of(kind_); }

  bool holds(std::string_view key) const {
    const auto lies_below = [&](const auto& entry) { return first_word(entry.path) == key; };
    return std::ranges::any_of(content_.tensors, lies_below) ||
           std::ranges::any_of(content_.values, lies_below);
  }

  Result<> check_parts() const {
    for (const std::string_view key : {kModelKey, kOptimizerKey})
      if (!holds(key))
        return Error{
            Code::unsupported,
            compose("{} has a model and its optimizer; the content has no {}", name(), key),
            "--to safetensors writes weights alone; --to dcp and --to torch keep what "
            "there is"};
    if (content_.groups.empty())
      return Error{Code::unsupported,
                   "nothing says how the optimizer is set: its states lie here, and no groups",
                   "--like CHECKPOINT takes groups and settings from a checkpoint of that job"};
    return {};
  }

  // The entries below a key, which are then taken.
  PartContent part(std::string_view key, Depth depth) {
    taken_.emplace(key);
    PartContent part;
    const auto placed = [&](const std::vector<PathItem>& path) {
      return depth == Depth::with_key ? path : tail(path);
    };
    for (std::uint32_t i = 0; i < content_.tensors.size(); ++i) {
      if (first_word(content_.tensors[i].path) != key || is_derived(content_.tensors[i])) continue;
      TensorEntry tensor = content_.tensors[i];
      tensor.path = placed(tensor.path);
      tensor.key = joined(tensor.path);
      part.catalog.tensors.push_back(std::move(tensor));
      part.tensors.push_back(i);
    }
    for (ValueEntry value : content_.values) {
      if (first_word(value.path) != key) continue;
      value.path = placed(value.path);
      value.key = joined(value.path);
      part.catalog.values.push_back(std::move(value));
    }
    for (const ContainerEntry& container : content_.containers)
      if (first_word(container.path) == key)
        part.catalog.containers.push_back({placed(container.path), container.kind});
    return part;
  }

  // What a job rounds the master to, where the master is the model's.
  bool is_derived(const TensorEntry& tensor) const {
    const auto master = masters_.find(tensor.name);
    return tensor.state == "param" && master != masters_.end() &&
           is_rounded_master(tensor, content_.tensors[master->second]);
  }

  void add_derived() {
    for (std::uint32_t i = 0; i < content_.tensors.size(); ++i)
      if (is_derived(content_.tensors[i]))
        joined_.plan().derived.push_back({i, masters_.at(content_.tensors[i].name)});
  }

  Result<> add_trainers() {
    PartContent model = part(kModelKey, Depth::below_key);
    for (TensorEntry& tensor : model.catalog.tensors) {
      if (tensor.part_of != nullptr)
        return Error{
            Code::unsupported,
            compose("the weight '{}' is of {}: from_pretrained takes plain ones",
                    printable(whole_of(tensor).name), class_text(tensor.part_of->whole->type)),
            "--dequantize makes plain weights of it; --to accelerate-fsdp keeps it"};
      tensor.name = *tensor.key;
      tensor.state = "param";
    }
    for (const ValueEntry& value : model.catalog.values)
      joined_.plan().dropped.push_back(
          compose("value {}: a file of safetensors has no place for it beside the model",
                  json_string(compose("{}.{}", kModelKey, value.key))));
    model.catalog.values = part(kModelHeaderKey, Depth::below_key).catalog.values;
    std::vector<Shape> shapes;
    for (const TensorEntry& tensor : model.catalog.tensors) shapes.push_back(tensor.shape);
    EBB_TRY_ASSIGN(const Layout whole, Layout::make({}, std::move(shapes)));
    const bool adapter = is_adapter(content_);  // which PEFT has in one file
    EBB_TRY_ASSIGN(
        EmitPlan plan,
        emit_safetensors({.content = model.catalog,
                          .layout = whole,
                          .file_bytes = adapter ? EmitRequest::kOneFile
                                                : std::min(request_.file_bytes, kModelBytes)}));
    joined_.add(std::move(plan), model,
                [&](const std::string& file) { return adapter ? "adapter_" + file : file; });
    add_derived();
    if (adapter)
      joined_.plan().notes.push_back(
          compose("the weights are an adapter's: PEFT loads them with the {} of the source, which "
                  "is not written: copy it",
                  kAdapterConfig));
    return add_torch(kOptimizerKey, "optimizer.pt", Loader::weights_only);
  }

  Result<> add_accelerates() {
    EBB_TRY(add_dcp(kModelKey, "pytorch_model_fsdp_0/"));
    add_derived();
    return add_dcp(kOptimizerKey, "optimizer_0/");
  }

  Result<> add_dcp(std::string_view key, std::string_view folder) {
    const PartContent its = part(key, Depth::with_key);
    EBB_TRY_ASSIGN(const Layout layout, joined_.layout_of(its));
    EBB_TRY_ASSIGN(EmitPlan plan, emit_dcp({.content = its.catalog, .layout = layout}));
    joined_.add(std::move(plan), its,
                [&](const std::string& file) { return std::string(folder) + file; });
    return {};
  }

  Result<> add_torch(std::string_view key, const std::string& file, Loader loader) {
    const PartContent its = part(key, Depth::below_key);
    EBB_TRY_ASSIGN(const Layout layout, joined_.layout_of(its));
    EBB_TRY_ASSIGN(EmitPlan plan, emit_torch({.content = its.catalog, .layout = layout}, loader));
    joined_.add(std::move(plan), its, [&](const std::string&) { return file; });
    return {};
  }

  Result<> add_state() {
    if (!holds(kTrainerStateKey)) return {};
    EmitPlan& plan = joined_.plan();
    PartContent its = part(kTrainerStateKey, Depth::below_key);
    if (std::ranges::all_of(its.catalog.values, &ValueEntry::echoed)) {
      std::ranges::move(least_trainer_state(), std::back_inserter(its.catalog.values));
      plan.notes.push_back(
          compose("{} has the step alone, as no Trainer's is in the content: Trainer takes "
                  "save_steps, eval_steps and logging_steps from it too, and 500 where they are "
                  "missing",
                  kStateFile));
    }
    TrainerStateText state = trainer_state_text(its.catalog.values);
    for (const std::string& field : state.left)
      plan.dropped.push_back(compose("value {}: JSON has no place for it",
                                     json_string(compose("{}.{}", kTrainerStateKey, field))));
    ByteVector bytes;
    append_text(bytes, state.text);
    plan.commit_files.push_back(literal_file(std::string(kStateFile), std::move(bytes)));
    return {};
  }

  // What the job keeps of its own, under the names that its loader looks for.
  Result<> add_job() {
    std::set<std::string> keys;
    for (const ValueEntry& value : content_.values) keys.emplace(first_word(value.path));
    for (const TensorEntry& tensor : content_.tensors) keys.emplace(first_word(tensor.path));
    for (const std::string& key : keys) {
      const auto file = job_file(kind_, key, own());
      if (file && has_all(key, file->random_numbers))
        EBB_TRY(add_torch(key, file->name, Loader::with_arrays));
      else if (is_random_numbers(key))
        leave_random_numbers(key);
    }
    if (!holds(kSchedulerKey) && holds(kTrainerStateKey))
      joined_.plan().notes.push_back(
          "scheduler.pt is not written, nothing that is read holds one: Trainer then starts a new "
          "optimizer. In "
          "Python, behind trainer.create_optimizer_and_scheduler(STEPS): s = trainer.lr_scheduler; "
          "s.last_epoch = trainer.state.global_step = " +
          compose("{}; torch.save(s.state_dict(), 'DST/scheduler.pt')", content_.step.value_or(0)));
    return {};
  }

  TrainersOwn own() const {
    return kind_ == FolderKind::trainer || holds(kTrainerStateKey) ? TrainersOwn::yes
                                                                   : TrainersOwn::no;
  }

  // As values: a torch.save file for weights_only has had tensors in place of numpy's arrays.
  bool has_all(std::string_view key, std::span<const std::string_view> fields) const {
    if (fields.empty()) return true;
    for (const TensorEntry& tensor : content_.tensors)
      if (first_word(tensor.path) == key) return false;
    return std::ranges::all_of(fields, [&](std::string_view field) {
      return std::ranges::any_of(content_.values, [&](const ValueEntry& value) {
        if (first_word(value.path) != key) return false;
        return value.path.size() > 1 ? is_word(value.path[1], field)
                                     : value.value.find(field) != nullptr;
      });
    });
  }

  // As one of FSDP1 is, whose flat parameters are all in the first: torch compares the numbers.
  void note_empty_groups() {
    const bool its_own = content_.format == name_of(FolderKind::trainer);
    if (kind_ != FolderKind::trainer || its_own || !list_params(content_.groups)) return;
    for (std::size_t i = 0; i < content_.groups.size(); ++i)
      if (content_.groups[i].params.empty())
        joined_.plan().notes.push_back(
            compose("parameter group {} has no parameters: a Trainer whose own has some refuses "
                    "the optimizer; --like, and --names, make the job's groups",
                    i));
  }

  // A loader takes all of them or fails.
  void leave_random_numbers(std::string_view key) {
    taken_.emplace(key);
    EmitPlan& plan = joined_.plan();
    plan.notes.push_back(compose(
        "{} is not written: it lacks some of the random numbers that the job's loader wants, which "
        "then starts with others",
        json_string(key)));
    for (const ValueEntry& value : content_.values)
      if (first_word(value.path) == key) plan.rewritten.push_back(value.key);
    for (std::uint32_t i = 0; i < content_.tensors.size(); ++i)
      if (first_word(content_.tensors[i].path) == key) plan.omitted.push_back(i);
  }

  void drop_rest() {
    EmitPlan& plan = joined_.plan();
    std::set<std::string> keys;
    for (const ValueEntry& value : content_.values)
      if (!taken_.contains(first_word(value.path)) && keys.insert(value.key).second)
        plan.dropped.push_back(
            compose("value {}: no file of {} is for it", json_string(value.key), name()));
    for (std::uint32_t i = 0; i < content_.tensors.size(); ++i) {
      const TensorEntry& tensor = content_.tensors[i];
      if (taken_.contains(first_word(tensor.path))) continue;
      plan.dropped.push_back(
          compose("tensor {}: neither the model's nor the optimizer's", json_string(*tensor.key)));
      plan.omitted.push_back(i);
    }
  }

  FolderKind kind_;
  const EmitRequest& request_;
  const Catalog& content_;
  JoinedPlan joined_;
  std::set<std::string, std::less<>> taken_;           // keys at the top
  std::map<std::string_view, std::uint32_t> masters_;  // that are the model's weights
};

}  // namespace
}  // namespace folders

Result<EmitPlan> emit_folder(FolderKind kind, const EmitRequest& request) {
  return folders::Emitter(kind, request).run();
}

}  // namespace ebb::formats
