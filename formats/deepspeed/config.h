// What `ds_config`, the user's own configuration of the run, and the parameter groups say about
// optimizer and files. Internal to formats/deepspeed. Source: DeepSpeed 0.19.8 engine.py,
// stage_1_and_2.py, stage3.py.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ebb/formats/catalog/catalog.h"
#include "ebb/formats/torch/archive.h"

namespace ebb::formats::deepspeed {

inline constexpr std::string_view kBufferNames = "buffer_names";
// At the top of a model file: what describes tensors, files or ranks, and what the engine reads
// back. Everything else there is the client's.
inline constexpr std::string_view kStructureKeys[] = {"module",
                                                      kBufferNames,
                                                      "optimizer",
                                                      "param_shapes",
                                                      "frozen_param_shapes",
                                                      "shared_params",
                                                      "frozen_param_fragments",
                                                      "ds_version",
                                                      "global_steps",
                                                      "dp_world_size",
                                                      "mp_world_size",
                                                      "checkpoint_parallel_dimensions"};
// How tensor-parallel shards make whole tensors: affine_map, patterns of names.
inline constexpr std::string_view kUniversalInfo = "universal_checkpoint_info";
inline constexpr std::string_view kEngineKeys[] = {
    "global_samples", "skipped_steps", "lr_scheduler", "data_sampler",
    "random_ltd",     "ds_config",     kUniversalInfo};
// Structure that is not read.
inline constexpr std::string_view kLeftOut[] = {"sparse_tensor_module_names", "ds_autoep_layers",
                                                "num_experts"};
template <std::size_t N>
bool one_of(const std::string_view (&names)[N], std::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

// No client's: what describes tensors, files or ranks is made anew by whoever writes a model file.
inline bool is_a_files_own(std::string_view key) {
  return one_of(kStructureKeys, key) || one_of(kLeftOut, key);
}

// config[section][key]; nullptr when either is missing.
const Value* setting(const Value& config, std::string_view section, std::string_view key);

std::optional<DType> model_dtype(const Value& config);  // bf16, fp16; nullopt: neither is on
// Stage 3: elements of a rank's flat buffer after which the next one begins.
std::uint64_t sub_group_elems(const Value& config);
// Stages 1 and 2: parameters are dealt to the ranks in turn.
bool round_robin(const Value& config, std::int64_t stage);
// Stages 1 and 2: elements that parameters begin on a multiple of, 1 if they need not.
std::uint64_t param_alignment(const Value& config, DType model);
// Stage 1 under BF16_Optimizer, which is used where gradients are summed in fp32.
bool is_bf16_optimizer(const Value& config, std::int64_t stage);
// Stages 1 and 2: Muon's momentum is cut like the master weights, not kept whole where touched.
bool cuts_momentum(const Value& config, std::int64_t stage);

// What an engine with this configuration gives a group that says nothing of its own; elastic
// checkpoints keep no more.
void default_settings(const Value& config, std::vector<std::pair<std::string, Value>>& settings);

// The stage that wrote the content, also where it came through another format; 0: none did.
std::int64_t stage_of(const Catalog& content);

// The configuration with this stage; made from the groups when the content brings none.
Value config_for(const Value* given, std::int64_t stage, DType model,
                 const std::vector<GroupEntry>& groups);

// ZeroStageEnum(3), getattr(ZeroStageEnum, 'weights') or a plain number; 1 when there is none, as
// in a file of BF16_Optimizer.
std::int64_t stage_number(const PickleGraph& graph, PickleId id);

// The parts of a stored `ds_config` that say how state was kept.
struct Config {
  Value whole;            // none when the file has no configuration
  std::string optimizer;  // "AdamW", "Muon", ... as the user wrote it; "" when he passed an object
  bool adam_w_mode = true;  // decoupled weight decay
  bool torch_adam = false;
  bool offload = false;  // optimizer state on CPU or NVMe
};
Result<Config> config_of(const PickleGraph& graph);

// "muon", "adamw", "lion", ... : lower case; "" when nothing says.
std::string group_optimizer(const Config& config, const GroupEntry& group);
// The class of the wrapped optimizer, "FusedAdam"; "" when nothing says.
std::string optimizer_class(const Config& config, const std::vector<GroupEntry>& groups);

// A plain number, or one in a tensor of one element.
std::optional<double> number_of(const Value& value);

// The attributes of a loss scaler as a new engine makes it.
Value first_scaler(bool dynamic);
// {"class": ..., numbers...} of a loss scaler object, none when there is none.
Result<Value> loss_scaler_of(const PickleGraph& graph, PickleId id);

// The order of a group's parameters under round_robin_gradients: dealt to the ranks like cards, so
// that the flat buffer begins with those of rank 0.
// Calls visit(from, to) for each parameter: its place in the model's order and in the dealt one.
template <typename Visit>
void deal(std::size_t count, std::uint32_t world, Visit visit) {
  std::size_t to = 0;
  for (std::size_t rank = 0; rank < world && rank < count; ++rank)
    for (std::size_t from = rank; from < count; from += world) visit(from, to++);
}

template <typename T>
std::vector<T> dealt(std::vector<T> params, std::uint32_t world) {
  std::vector<T> out(params.size());
  deal(params.size(), world,
       [&](std::size_t from, std::size_t to) { out[to] = std::move(params[from]); });
  return out;
}
template <typename T>
std::vector<T> dealt_back(std::vector<T> params, std::uint32_t world) {
  std::vector<T> out(params.size());
  deal(params.size(), world,
       [&](std::size_t from, std::size_t to) { out[from] = std::move(params[to]); });
  return out;
}

}  // namespace ebb::formats::deepspeed
