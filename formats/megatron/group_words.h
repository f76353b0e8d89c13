// The words of a torch_dist common state, and what its parameter groups say. Internal to
// formats/megatron.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "ebb/formats/catalog/catalog.h"

namespace ebb::formats::megatron {

constexpr std::string_view kIteration = "iteration";
constexpr std::string_view kOptimizer = "optimizer";
constexpr std::string_view kParamGroups = "param_groups";
constexpr std::string_view kState = "state";
constexpr std::string_view kCommonStep = "common_step";
constexpr std::string_view kScaler = "grad_scaler";
constexpr std::string_view kLossScaler = "loss_scaler";  // other formats' word
constexpr std::string_view kVersion = "checkpoint_version";
constexpr std::string_view kDecoupled = "decoupled_weight_decay";
// How the optimizer's state is laid out: `content_metadata` says it to the job that loads.
constexpr std::string_view kContentMetadata = "content_metadata";
constexpr std::string_view kShardingType = "distrib_optim_sharding_type";
constexpr std::string_view kModelSpace = "fully_reshardable";

// Ours; Megatron carries them along: whose a group is, and its place among the groups where the
// order of the optimizers is another.
constexpr std::string_view kParamNames = "param_names";
constexpr std::string_view kGroupIndex = "group_index";
// A group's "step" counts its parameters' steps here; a setting of that name, which DeepSpeed's
// Adam has beside the real counters, is kept under the second.
constexpr std::string_view kStep = "step";
constexpr std::string_view kStepSetting = "step_setting";

// A number, or a tensor of one fp32 element.
std::optional<double> number_in(const Value* value);

const Value* setting_of(const GroupEntry& group, std::string_view name);

// Whether weight decay is AdamW's: as the group says it; the fused Adam of a GPU job, told by its
// bias_correction, does not say, and is AdamW unless the run asked for another.
bool is_decoupled(const GroupEntry& group);

// The optimizer of a group as its settings have it: "adamw" is Megatron's "adam" that
// is decoupled. "" when they do not say.
std::string said_optimizer(const GroupEntry& group);

// The same; a group that does not say, but has a momentum as Muon's have it, is Muon's.
std::string optimizer_name(const GroupEntry& group);

}  // namespace ebb::formats::megatron
