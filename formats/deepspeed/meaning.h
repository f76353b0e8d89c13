// What DeepSpeed's configuration and parameter groups say about the optimizer. Internal to
// formats/deepspeed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ebb/formats/catalog/catalog.h"
#include "ebb/formats/torch/archive.h"

namespace ebb::formats::deepspeed {

// ZeroStageEnum(3), getattr(ZeroStageEnum, 'weights') or a plain number; 1 when there is none, as
// in a file of BF16_Optimizer.
std::int64_t stage_number(const PickleGraph& graph, PickleId id);

// The parts of `ds_config` that say how state was kept.
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

// A group of torch's own optimizer: its step is a tensor, and its settings say so.
bool is_torch_group(const GroupEntry& group);

// A plain number, or one in a tensor of one element.
std::optional<double> number_of(const Value& value);

// {"class": ..., numbers...} of a loss scaler object, none when there is none.
Result<Value> loss_scaler_of(const PickleGraph& graph, PickleId id);

}  // namespace ebb::formats::deepspeed
