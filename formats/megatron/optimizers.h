// The words of a torch_dist common state, what its parameter groups say, which optimizers a
// Megatron job chains, and where each of them keeps what. Internal to formats/megatron.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

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

// Whether weight decay is AdamW's: as the group says it; the fused Adam of a GPU job, told by its
// bias_correction, does not say, and is AdamW unless the run asked for another.
bool is_decoupled(const GroupEntry& group);

// The optimizer of a group as its settings have it: "adamw" is Megatron's "adam" that
// is decoupled. "" when they do not say.
std::string said_optimizer(const GroupEntry& group);

// The same; a group that does not say, but has a momentum as Muon's have it, is Muon's.
std::string optimizer_name(const GroupEntry& group);

// Groups of one optimizer's name share an optimizer, Muon's the first, else in order of appearance;
// without Muon, whose layer-wise optimizer has them all, experts have one of their own.
class OptimizerChain {
 public:
  // `groups`: the content's, and any beside them; those without a name are in the first optimizer
  // that is not Muon's.
  OptimizerChain(const Catalog& content, const std::vector<GroupEntry>& groups);

  std::uint32_t count() const { return count_; }
  std::uint32_t of_group(std::size_t group) const { return numbers_[group]; }
  // By its group; a parameter in none belongs to the first optimizer that keeps such states.
  std::uint32_t of_param(const std::string& name) const;
  // Whether keys begin with "chained_<N>.".
  bool prefixed() const { return prefixed_; }
  // Whether a distributed optimizer has the state, which calls master weights `param` and counts
  // steps in the groups; the layer-wise one has `fp32_param` and one count of all.
  bool is_distributed(std::uint32_t number) const;

 private:
  void number_groups(const std::vector<GroupEntry>& groups);

  std::vector<std::uint32_t> numbers_;
  std::uint32_t count_ = 1;
  bool prefixed_ = false;
  bool muon_ = false;
  bool others_distributed_ = true;
  std::uint32_t first_other_ = 0;  // the first that is not Muon's
  std::map<std::string, std::uint32_t, std::less<>> of_param_;
};

// Whether what Muon does not train is in a distributed optimizer beside its layer-wise one, as by
// default since 0.18; false where the run said otherwise, or is older.
bool has_distributed_beside_muon(const Catalog& content);

}  // namespace ebb::formats::megatron
