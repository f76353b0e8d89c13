// Source: deepspeed/runtime/engine.py and zero/stage3.py of 0.19.8, and runs of it:
// docs/formats/deepspeed.md.
#include <algorithm>
#include <array>
#include <string>
#include <string_view>

#include "ebb/formats/catalog/value_alike.h"
#include "ebb/formats/core/number_text.h"
#include "ebb/formats/deepspeed/config.h"
#include "ebb/formats/deepspeed/deepspeed.h"
#include "ebb/formats/deepspeed/experts.h"
#include "ebb/formats/deepspeed/names.h"
#include "ebb/formats/state_dict/groups.h"

namespace ebb::formats {
namespace deepspeed {
namespace {

bool other_world_stage3(const ResumeQuestion& question) {
  return !same_world(question) && question.catalog.partition.starts_with("zero3");
}

// State on NVMe, and some state that is not.
bool partly_swapped(const ResumeQuestion& question) {
  const auto& files = question.catalog.files;
  return std::any_of(files.begin(), files.end(), [](const FileEntry& file) {
    return file.name.find("offloaded_tensors/") != std::string::npos;
  });
}

bool momentum_kept_in_memory(const ResumeQuestion& question) {
  const Value* value = value_at(
      question.catalog, {"ds_config", "zero_optimization", "save_muon_momentum_buffer_in_memory"});
  return value != nullptr && value->kind == Value::Kind::boolean && value->integer != 0;
}

bool padded_between(const ResumeQuestion& question) {
  return question.catalog.partition.starts_with("zero12-boundary");
}

bool named_by_nothing(const ResumeQuestion& question) {
  return std::ranges::find(question.catalog.notes, kNoLatest) != question.catalog.notes.end();
}

bool without_zero(const ResumeQuestion& question) {
  return question.catalog.partition == kWithoutZero;
}

// Cut over more than data-parallel ranks.
bool is_parallel(const ResumeQuestion& question) {
  const std::string& how = question.catalog.partition;
  return how.find(kStages) != std::string::npos || how.find(kTensorRanks) != std::string::npos ||
         how.find(kWithExperts) != std::string::npos;
}

bool has_experts(const ResumeQuestion& question) {
  return std::ranges::any_of(question.catalog.tensors, [](const TensorEntry& tensor) {
    return expert_name(tensor.name).has_value();
  });
}

// The number before this word of the partition, 1 without it.
std::uint64_t number_before(std::string_view partition, std::string_view word) {
  const std::size_t end = partition.find(word);
  if (end == std::string_view::npos) return 1;
  const std::size_t first = partition.find_last_not_of("0123456789", end - 1) + 1;
  return std::max<std::uint64_t>(
      1, parse_number<std::uint64_t>(partition.substr(first, end - first)).value_or(0));
}

// Each data-parallel rank then loads the same files.
bool without_zero_on_others(const ResumeQuestion& question) {
  const std::string& how = question.catalog.partition;
  return how.starts_with(kWithoutZeroInParts) && !has_experts(question) &&
         question.world % (number_before(how, kStages) * number_before(how, kTensorRanks)) == 0;
}

bool parallel_on_others(const ResumeQuestion& question) {
  return !same_world(question) && is_parallel(question) && !has_experts(question);
}

bool experts_on_others(const ResumeQuestion& question) {
  return !same_world(question) && is_parallel(question) && has_experts(question);
}

bool experts_among_others(const ResumeQuestion& question) {
  return has_experts(question) && !is_parallel(question);
}

// transformers' Trainer asks for two files of its own, for the second where its scheduler is none
// of DeepSpeed's. The first that is missing of a folder that has others of them; "": none.
std::string_view missing_of_trainers(const Catalog& catalog) {
  constexpr std::string_view kState = "trainer_state.json", kScheduler = "scheduler.pt";
  const bool state = lies_beside(catalog, kState), scheduler = lies_beside(catalog, kScheduler);
  const bool numbers = std::ranges::any_of(
      catalog.beside, [](const auto& entry) { return entry.path.starts_with("rng_state"); });
  if (!state && !scheduler && !numbers) return {};
  if (!state) return kState;
  const Value* own = value_at(catalog, {"lr_scheduler"});
  const bool of_deepspeed = own != nullptr && own->kind == Value::Kind::dict;
  return scheduler || of_deepspeed ? std::string_view() : kScheduler;
}

// DeepSpeed gives the job's groups what the stored ones say, and nothing where those say nothing.
bool groups_without_settings(const ResumeQuestion& question) {
  const Catalog& catalog = question.catalog;
  if (std::ranges::find(catalog.notes, kElastic) != catalog.notes.end()) return false;
  return std::ranges::any_of(catalog.groups, [](const GroupEntry& group) {
    return !group.params.empty() && setting_of(group, "lr") == nullptr;
  });
}

using Says = ResumeRule::Says;
constexpr ResumeRule kWithoutSettings{
    Says::no, groups_without_settings,
    "its parameter groups have no settings (lr, betas, ...): DeepSpeed takes them for the job's, "
    "and the next step fails"};
constexpr std::array kRules = {
    ResumeRule{Says::yes,
               without_zero,
               "stage 0: each of {wanted} loads the one file, model and optimizer whole",
               {},
               {}},
    ResumeRule{Says::yes,
               without_zero_on_others,
               "stage 0: whatever the number of data-parallel ranks, each loads its part",
               {},
               {}},
    ResumeRule{Says::no,
               experts_among_others,
               "its experts lie among the other weights, and DeepSpeed's MoE layers load files of "
               "their own (layer_*_expert_*), which only a job of theirs writes",
               {},
               {}},
    ResumeRule{Says::no,
               experts_on_others,
               "saved by {saved}, and DeepSpeed loads experts on as many ranks only; no conversion "
               "writes files of experts",
               {},
               {}},
    ResumeRule{Says::no,
               parallel_on_others,
               "saved by {saved}, and DeepSpeed loads it on as many pipeline stages, "
               "tensor-parallel and data-parallel ranks only; a universal checkpoint goes to any",
               "deepspeed-universal",
               {}},
    ResumeRule{Says::no, other_world_stage3,
               "saved by {saved}, and DeepSpeed loads ZeRO state on as many ranks only",
               "deepspeed", "zero3"},
    ResumeRule{Says::no, [](const ResumeQuestion& question) { return !same_world(question); },
               "saved by {saved}, and DeepSpeed loads ZeRO state on as many ranks only",
               "deepspeed", "zero12"},
    ResumeRule{Says::no, padded_between,
               "its partitions end where parameters do, which no released DeepSpeed reads",
               "deepspeed", "zero12"},
    ResumeRule{Says::no, partly_swapped,
               "a part of its state lies on NVMe: DeepSpeed then skips what the .pt files hold - "
               "step counters, loss scaler, sub-groups too small to be swapped - without a word",
               "deepspeed", "zero3"},
    kWithoutSettings,
    ResumeRule{Says::yes, always, "saved by as many ranks", {}, {}},
    ResumeRule{Says::note,
               is_parallel,
               "the job must be cut the same way: as many pipeline stages, tensor-parallel and "
               "expert-parallel ranks as saved it",
               {},
               {}},
    ResumeRule{Says::note, named_by_nothing, kNoLatest, {}, {}},
    ResumeRule{.says = Says::note,
               .applies =
                   [](const ResumeQuestion& question) {
                     return !missing_of_trainers(question.catalog).empty();
                   },
               .tell =
                   [](const ResumeQuestion& question) {
                     return std::string(missing_of_trainers(question.catalog)) +
                            " is missing: transformers' Trainer does not resume without it, "
                            "DeepSpeed's own loader does";
                   }},
    ResumeRule{Says::note,
               momentum_kept_in_memory,
               "save_muon_momentum_buffer_in_memory: DeepSpeed 0.19 steps on from zero momentum, "
               "not from the one saved; turn it off before resuming",
               {},
               {}},
};

// Whose job loads with stage 3's loader of universal checkpoints.
bool configured_for_stage3(const ResumeQuestion& question) {
  const Value* stage = value_at(question.catalog, {"ds_config", "zero_optimization", "stage"});
  return stage != nullptr && stage->kind == Value::Kind::integer && stage->integer == 3;
}

// That loader asks for exp_avg and exp_avg_sq of every parameter.
bool muon_in_stage3(const ResumeQuestion& question) {
  return has_optimizer(question.catalog, "muon") && configured_for_stage3(question);
}

// It also sets what the first group has in all groups. Words, as a group's name, no step reads.
bool other_settings_in_stage3(const ResumeQuestion& question) {
  const std::vector<GroupEntry>& groups = question.catalog.groups;
  if (groups.size() < 2 || !configured_for_stage3(question)) return false;
  return std::ranges::any_of(groups.front().settings, [&](const auto& setting) {
    if (setting.second.kind == Value::Kind::string) return false;
    return std::any_of(groups.begin() + 1, groups.end(), [&](const GroupEntry& group) {
      const Value* own = setting_of(group, setting.first);
      return own == nullptr || !alike(*own, setting.second);
    });
  });
}

// Stages 1 and 2 keep whole matrices of momentum where they do not offload it; the loader of
// universal checkpoints cuts it like the masters all the same, and the next step runs past its end.
bool muon_on_ranks(const ResumeQuestion& question) {
  const Value* config = value_at(question.catalog, {"ds_config"});
  const Value* stage = value_at(question.catalog, {"ds_config", "zero_optimization", "stage"});
  return question.world > 1 && has_optimizer(question.catalog, "muon") && stage != nullptr &&
         !cuts_momentum(*config, stage->integer);
}

// Stages 1 and 2 then deal the parameters to the ranks; the loader of universal checkpoints cuts
// them by their order in the model.
bool dealt_parameters(const ResumeQuestion& question) {
  const Value* config = value_at(question.catalog, {"ds_config"});
  return config != nullptr && round_robin(*config, stage_of(question.catalog));
}

bool experts_on_ranks(const ResumeQuestion& question) {
  return question.world > 1 && has_experts(question);
}

constexpr std::array kUniversalRules = {
    ResumeRule{Says::no,
               experts_on_ranks,
               "DeepSpeed 0.19 gives each rank's experts the state of those with the same number "
               "on rank 0: its MoE layers count their own, the checkpoint all of them",
               {},
               {}},
    ResumeRule{Says::no, dealt_parameters,
               "round_robin_gradients is on: DeepSpeed 0.19 then gives parameters the state of "
               "others, without a word; with it off in ds_config and in the job it loads right",
               "deepspeed", "zero12"},
    ResumeRule{Says::no, muon_in_stage3,
               "its configuration asks for stage 3, whose loader of universal checkpoints knows "
               "Adam's state only",
               "deepspeed", "zero3"},
    ResumeRule{
        Says::no, other_settings_in_stage3,
        "its configuration asks for stage 3, where DeepSpeed 0.19 gives all parameter groups "
        "the settings (lr, weight_decay, ...) of the first, without a word; in stages 1 and "
        "2 each group keeps its own",
        "deepspeed", "zero3"},
    ResumeRule{Says::no, muon_on_ranks,
               "DeepSpeed cuts Muon's momentum like the masters when it loads a universal "
               "checkpoint, and then steps on whole matrices; with grad_accum_dtype fp32 in stage "
               "1, with CPU offload or on one rank it works",
               "deepspeed", "zero12"},
    kWithoutSettings,
    ResumeRule{Says::yes, always, "a universal checkpoint, for any number of ranks", {}, {}},
};

}  // namespace
}  // namespace deepspeed

ResumeRules deepspeed_resume() { return {"DeepSpeed 0.19", deepspeed::kRules}; }
ResumeRules deepspeed_universal_resume() { return {"DeepSpeed 0.19", deepspeed::kUniversalRules}; }

}  // namespace ebb::formats
