#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "ebb/formats/catalog/resume.h"
#include "ebb/formats/core/float_cast.h"
#include "ebb/formats/core/json_text.h"
#include "ebb/formats/dcp/item_writer.h"
#include "ebb/formats/megatron/common_state.h"
#include "ebb/formats/megatron/folder.h"
#include "ebb/formats/megatron/megatron.h"
#include "ebb/formats/megatron/names.h"
#include "ebb/formats/megatron/optimizers.h"
#include "ebb/formats/megatron/run_args.h"
#include "ebb/formats/torch/file_writer.h"

namespace ebb::formats::megatron {
namespace {

// All four fields that megatron-core 0.12 wants; newer versions read the two they know.
constexpr std::string_view kConfigText =
    R"({"sharded_backend": "torch_dist", "sharded_backend_version": 1, )"
    R"("common_backend": "torch", "common_backend_version": 1})";

OutputFile text_file(std::string name, std::string_view text) {
  ByteVector bytes;
  append_text(bytes, text);
  return literal_file(std::move(name), std::move(bytes));
}

// Leaves out of the common state, at its top, what cannot be written, and says so.
Value writable_part(Value common, std::vector<std::string>& dropped) {
  std::erase_if(common.entries, [&](const auto& entry) {
    const std::string_view key_part = unwritable_part(entry.first);
    const std::string_view part = key_part.empty() ? unwritable_part(entry.second) : key_part;
    if (part.empty()) return false;
    dropped.push_back(
        compose("value {}: holds an object of class {}", json_string(entry.first.text), part));
    return true;
  });
  return common;
}

// What the model computes in, where its own weights are not in the content: as those that are, or
// as DeepSpeed's configuration says; else as the master weights.
std::optional<DType> model_dtype(const Catalog& content) {
  for (const std::string_view mode : {"bf16", "fp16"})
    if (const Value* on = value_at(content, {"ds_config", mode, "enabled"}))
      if (on->kind == Value::Kind::boolean && on->integer != 0)
        return mode == "bf16" ? DType::bf16 : DType::f16;
  for (const TensorEntry& tensor : content.tensors)
    if (tensor.state == "param" && is_floating(tensor.dtype)) return tensor.dtype;
  return std::nullopt;
}

// What the arguments of the run say the model computes in; nullopt: fp32, or they do not say.
std::optional<DType> dtype_of_run(const Catalog& content) {
  if (run_arg(content, "bf16").value_or(0) != 0) return DType::bf16;
  if (run_arg(content, "fp16").value_or(0) != 0) return DType::f16;
  return std::nullopt;
}

bool is_of_model(const TensorEntry& tensor) {
  return tensor.state == "param" || tensor.state == "buffer" || tensor.state == "tensor";
}

class Emitter {
 public:
  Emitter(const Catalog& content, std::string folder, dcp::ItemWriter items)
      : content_(content),
        folder_(std::move(folder)),
        items_(std::move(items)),
        chain_(content, content.groups),
        has_params_(std::ranges::any_of(content.tensors,
                                        [](const TensorEntry& tensor) {
                                          return tensor.state == "param" ||
                                                 tensor.state == "master";
                                        })),
        run_dtype_(dtype_of_run(content)),
        fp32_weights_(has_masters(content) ? fp32_weights_of(content) : std::set<std::uint32_t>()) {
    for (const TensorEntry& tensor : content.tensors)
      if (is_weight(tensor.state)) shapes_.emplace(tensor.name, &tensor.shape);
  }

  Result<EmitPlan> run() {
    for (const ValueEntry& entry : content_.values)
      if (is_object_key(entry.key)) EBB_TRY(items_.add_value(entry.key, {}, entry.value));
    for (std::uint32_t i = 0; i < content_.tensors.size(); ++i) {
      const TensorEntry& tensor = content_.tensors[i];
      std::string key = key_of(tensor);
      if (const std::string_view why = why_left_out(tensor, key); !why.empty()) {
        items_.omit(i, is_of_model(tensor) ? key : label_of(tensor), why);
        continue;
      }
      std::vector<PathItem> path{key};
      const bool is_master = fp32_weights_.contains(i);
      store(tensor, key);
      EBB_TRY(items_.add_tensor(std::move(key), std::move(path), i,
                                is_master ? run_dtype_ : std::nullopt));
      if (is_master) EBB_TRY(add_master(i));
    }
    EBB_TRY_ASSIGN(std::string note, add_model_weights());
    if (!fp32_weights_.empty())
      note = compose(
          "{} weights in fp32 of a run in {}: they are its master weights, and {}its model weights",
          fp32_weights_.size(), name_of(run_dtype_.value_or(DType::f32)),
          run_dtype_ ? "rounded " : "");
    const Value common =
        writable_part(common_state_of(content_, masters(), items_.dropped()), items_.dropped());
    EBB_TRY_ASSIGN(ByteVector common_bytes, value_archive(common));
    EmitPlan plan = items_.finish();
    plan.groups_have_order = false;
    note_untold_groups(common, plan.notes);
    if (!note.empty()) plan.notes.push_back(std::move(note));
    if (masters() == Masters::none && content_.format == "megatron-fsdp")
      plan.notes.emplace_back(
          "nothing says what the run computes in: written as one of 32 bits, which has no master "
          "weights; a job with --bf16 or --fp16 asks for them");
    // A rank without items writes no file.
    std::erase_if(plan.files, [](const OutputFile& file) { return file.size == 0; });
    plan.files.push_back(literal_file(compose("{}/{}", folder_, kCommon), std::move(common_bytes)));
    plan.commit_files.push_back(text_file(compose("{}/{}", folder_, kConfig), kConfigText));
    const bool numbered = folder_.starts_with("iter_");
    const std::string said =
        numbered ? folder_.substr(std::min(folder_.find_first_not_of('0', 5), folder_.size() - 1))
                 : folder_;
    plan.commit_files.push_back(text_file(std::string(kTracker), said));
    return plan;
  }

 private:
  // Megatron-FSDP keeps the master weights as the model's. A run in 16 bits, or with the
  // distributed optimizer, has both here, and asks for both.
  static bool has_masters(const Catalog& content) {
    return dtype_of_run(content) || run_arg(content, "use_distributed_optimizer").value_or(0) != 0;
  }
  static std::set<std::uint32_t> fp32_weights_of(const Catalog& content) {
    std::set<std::string_view> trained;
    for (const TensorEntry& tensor : content.tensors) {
      if (tensor.state == "master") return {};
      if (!is_of_model(tensor)) trained.insert(tensor.name);
    }
    std::set<std::uint32_t> weights;
    for (std::uint32_t i = 0; i < content.tensors.size(); ++i) {
      const TensorEntry& tensor = content.tensors[i];
      if (tensor.state == "param" && tensor.dtype == DType::f32 && trained.contains(tensor.name))
        weights.insert(i);
    }
    return weights;
  }

  Masters masters() const {
    const bool any = !fp32_weights_.empty() ||
                     std::ranges::find(content_.tensors, "master", &TensorEntry::state) !=
                         content_.tensors.end();
    return any ? Masters::stored : Masters::none;
  }

  Result<> add_master(std::uint32_t number) {
    std::string key = state_key(content_.tensors[number].name, "master");
    std::vector<PathItem> path{key};
    return items_.add_tensor(std::move(key), std::move(path), number);
  }

  // "" where it is stored.
  std::string_view why_left_out(const TensorEntry& tensor, const std::string& key) const {
    if (is_object_part(key)) return kObjectPart;
    if (is_nobodys(tensor))
      return "belongs to no model or optimizer; Megatron would take it for a weight";
    if (is_misspelled(tensor, key)) return kOtherState;
    const auto param = shapes_.find(tensor.name);
    if (!is_of_model(tensor) && param != shapes_.end() && *param->second != tensor.shape)
      return "is not of its parameter's shape, in which Megatron's optimizers have every state";
    return {};
  }

  // Beside parameters, what is not known to be one.
  bool is_nobodys(const TensorEntry& tensor) const {
    return tensor.state == "tensor" && !tensor.key && has_params_;
  }

  // A reader would find another state of another parameter under the key.
  static bool is_misspelled(const TensorEntry& tensor, const std::string& key) {
    if (is_of_model(tensor) || is_bucket_name(tensor.name)) return false;
    const Key found = parsed_key(key);
    return found.name != tensor.name || found.state != tensor.state;
  }

  // Megatron loads the model from its own weights: where only the masters are there, as in ZeRO
  // stage 3, those are rounded. Says how many, "" for none.
  Result<std::string> add_model_weights() {
    std::set<std::string> have;
    for (const TensorEntry& tensor : content_.tensors)
      if (tensor.state == "param") have.insert(tensor.name);
    const std::optional<DType> dtype = model_dtype(content_);
    std::size_t added = 0;
    for (std::uint32_t i = 0; i < content_.tensors.size(); ++i) {
      const TensorEntry& master = content_.tensors[i];
      const bool lacks_model = master.state == "master" && !master.key &&
                               is_floating(master.dtype) && !have.contains(master.name);
      if (!lacks_model) continue;
      EBB_TRY(items_.add_tensor(master.name, {master.name}, i, dtype.value_or(master.dtype)));
      ++added;
    }
    if (added == 0) return std::string();
    return compose("{} model weights were not in the source: its master weights, {}", added,
                   (dtype ? compose("rounded to {}", name_of(*dtype)) : "as they are"));
  }

  void store(const TensorEntry& tensor, const std::string& key) {
    TensorEntry& stored = stored_.tensors.emplace_back();
    stored.key = key;
    stored.name = tensor.name;
    stored.state = tensor.state;
    stored.shape = tensor.shape;
  }

  // Megatron stores no names: whose a group is follows from the states that its parameters have, of
  // which some may be left out.
  void note_untold_groups(const Value& common, std::vector<std::string>& notes) {
    for (const ValueEntry& entry : content_.values)
      if (is_object_key(entry.key)) stored_.values.push_back(entry);
    add_common_state(stored_, common);
    std::set<std::string_view> stored;
    for (const TensorEntry& tensor : stored_.tensors) stored.insert(tensor.name);
    std::map<std::string_view, std::string> told;  // the optimizer of each parameter's group
    for (const GroupEntry& group : stored_.groups)
      for (const std::string& name : group.params) told.emplace(name, group.optimizer);
    for (std::size_t i = 0; i < content_.groups.size(); ++i)
      if (std::ranges::any_of(content_.groups[i].params, [&](const std::string& name) {
            const auto group = told.find(name);
            return stored.contains(name) &&
                   (group == told.end() || group->second != content_.groups[i].optimizer);
          }))
        notes.push_back(
            compose("parameter group {} keeps its settings; which parameters are in it is told by "
                    "states that are left out",
                    i));
  }

  // The content's own key where it says the same to Megatron; else the one its optimizers use.
  std::string key_of(const TensorEntry& tensor) const {
    if (tensor.key) {
      const Key own = parsed_key(*tensor.key);
      if (own.name == tensor.name && own.state == tensor.state) return *tensor.key;
    }
    if (is_of_model(tensor)) return tensor.name;
    if (is_bucket_name(tensor.name))
      return compose("{}.{}", tensor.name, tensor.state == "master" ? "param" : tensor.state);
    return state_key(tensor.name, tensor.state);
  }

  std::string state_key(const std::string& name, std::string state) const {
    const std::uint32_t number = chain_.of_param(name);
    const std::string key = chain_.prefixed() ? compose("chained_{}.", number) : "";
    if (state == "master") state = chain_.is_distributed(number) ? "param" : "fp32_param";
    return compose("{}optimizer.state.{}.{}", key, state, name);
  }

  const Catalog& content_;
  std::string folder_;
  dcp::ItemWriter items_;
  OptimizerChain chain_;
  std::map<std::string_view, const Shape*> shapes_;  // of parameters
  Catalog stored_;                                   // as far as a reader takes groups from it
  bool has_params_ = false;
  std::optional<DType> run_dtype_;
  std::set<std::uint32_t> fp32_weights_;  // content tensors that are master weights as well
};

// "release" stays; an iteration's folder follows from the step.
std::string folder_for(const Catalog& content) {
  for (const ValueEntry& entry : content.values)
    if (entry.key == "folder" && entry.value.text == "release") return "release";
  return iteration_folder(std::max<std::int64_t>(0, content.step.value_or(0)));
}

}  // namespace

}  // namespace ebb::formats::megatron

namespace ebb::formats {

Result<EmitPlan> emit_megatron(const EmitRequest& request) {
  std::string folder = megatron::folder_for(request.content);
  EBB_TRY_ASSIGN(dcp::ItemWriter items, dcp::ItemWriter::make(request, folder + "/"));
  return megatron::Emitter(request.content, std::move(folder), std::move(items)).run();
}

}  // namespace ebb::formats
