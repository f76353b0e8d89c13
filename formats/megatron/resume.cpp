// Source: megatron-core 0.19.2 (dist_checkpointing/mapping.py, optimizer/distrib_optimizer.py,
// optimizer/layer_wise_optimizer.py), megatron-fsdp 0.6.1, and runs of them:
// docs/formats/megatron.md.
#include <algorithm>

#include "ebb/formats/megatron/megatron.h"
#include "ebb/formats/megatron/names.h"
#include "ebb/formats/megatron/run_args.h"

namespace ebb::formats {
namespace {

bool has_buckets(const ResumeQuestion& question) {
  return std::ranges::any_of(question.catalog.tensors, [](const TensorEntry& tensor) {
    return megatron::is_bucket_name(tensor.name);
  });
}

std::int64_t model_parallel(const Catalog& catalog) {
  return megatron::run_arg(catalog, "tensor_model_parallel_size").value_or(1) *
         megatron::run_arg(catalog, "pipeline_model_parallel_size").value_or(1);
}

bool buckets_of_another_cut(const ResumeQuestion& question) {
  const std::int64_t cut = std::max<std::int64_t>(1, model_parallel(question.catalog));
  return has_buckets(question) && question.world % cut != 0;
}

// As a conversion keeps it: the boxes are whole then, but under keys that no newer job looks for.
bool of_flat_model_space(const ResumeQuestion& question) {
  const auto says = [](const Value& part) {
    const Value* type = part.find("param_state_sharding_type");
    return type != nullptr && type->text == "fully_sharded_model_space";
  };
  const Value* optimizer = value_at(question.catalog, {"optimizer"});
  return optimizer != nullptr &&
         (says(*optimizer) || std::ranges::any_of(optimizer->entries, [&](const auto& entry) {
            return says(entry.second);
          }));
}

bool layer_wise_elsewhere(const ResumeQuestion& question) {
  return !same_world(question) && has_optimizer(question.catalog, "muon");
}

bool has_no_name_of_megatrons(const ResumeQuestion& question) {
  constexpr std::string_view kWords[] = {"decoder.", "encoder.", "embedding.", "output_layer."};
  return std::ranges::none_of(question.catalog.tensors, [&](const TensorEntry& tensor) {
    return std::ranges::any_of(
        kWords, [&](std::string_view word) { return tensor.name.find(word) != std::string::npos; });
  });
}

// A job's optimizer looks for groups of its own identity; 0.19.2 raises where it finds none.
bool has_groups_of_others(const ResumeQuestion& question) {
  return std::ranges::any_of(question.catalog.groups, [](const GroupEntry& group) {
    return std::ranges::none_of(
        group.settings, [](const auto& setting) { return setting.first.ends_with("wd_mult"); });
  });
}

using Says = ResumeRule::Says;
constexpr ResumeRule kTorchDist[] = {
    {Says::no, buckets_of_another_cut,
     "its optimizer state lies in the flat buckets (dp_reshardable) of one tensor- and "
     "pipeline-parallel cut, which {wanted} cannot have; whose elements they are is not "
     "stored: save again with --dist-ckpt-optim-fully-reshardable"},
    {Says::yes, has_buckets,
     "as long as its tensor- and pipeline-parallel sizes stay: its flat buckets "
     "(dp_reshardable) can be dealt to another number of data-parallel ranks only"},
    {Says::no,
     of_flat_model_space,
     "its optimizer state is of fully_sharded_model_space, flat inside each "
     "tensor-parallel box up to 0.15, which newer ones refuse to lay out "
     "(flattened_range); made dcp, and that made megatron, it is fully_reshardable",
     "megatron",
     {},
     "dcp"},
    {Says::yes, always,
     "each of {wanted} reads its part of every tensor from whichever file holds it, at any "
     "tensor-, pipeline- and data-parallel sizes"},
    {Says::note, layer_wise_elsewhere,
     "Megatron documents its layer-wise Muon optimizer for a fixed number of data-parallel "
     "ranks; what is stored does not depend on it"},
    {Says::note, has_groups_of_others,
     "some of its parameter groups never were Megatron's and lack the settings (wd_mult, "
     "max_lr, "
     "...) by which a job finds its own: the job's optimizer does not take them as they are"},
    {Says::note, has_no_name_of_megatrons,
     "none of its parameters has a name of Megatron's (decoder., embedding., ...): the model "
     "that resumes has to call its own by these"},
};

constexpr ResumeRule kFsdp[] = {
    {Says::yes, always,
     "each of {wanted} reads its rows of every tensor from whichever file holds them, "
     "however unevenly they are cut"},
};

bool of_other_cut(const ResumeQuestion& question) {
  return question.world % std::max<std::uint32_t>(1, question.catalog.world) != 0;
}

bool fixes_data_parallel(const ResumeQuestion& question) {
  return has_optimizer(question.catalog, "muon");
}

std::string as_many_parts(const ResumeQuestion& question) {
  return compose(
      "a job loads each rank's files as they are, at the same tensor- and "
      "pipeline-parallel sizes as saved, whose product is {}: {wanted} cannot have them",
      question.catalog.world);
}

constexpr ResumeRule kRanks[] = {
    {Says::no, of_other_cut, {}, "megatron", {}, {}, as_many_parts},
    {Says::yes, always,
     "as long as its tensor- and pipeline-parallel sizes stay: each of {wanted} loads the files of "
     "its own; --to megatron makes torch_dist of it, which has any sizes"},
    {Says::note, fixes_data_parallel,
     "its layer-wise optimizer (Muon) has a file for each data-parallel rank, whose number has to "
     "stay"},
};

}  // namespace

ResumeRules megatron_ranks_resume() { return {"Megatron-LM (megatron-core 0.19)", kRanks}; }
ResumeRules megatron_resume() { return {"megatron-core 0.19", kTorchDist}; }
ResumeRules megatron_fsdp_resume() { return {"Megatron-FSDP 0.6", kFsdp}; }

}  // namespace ebb::formats
