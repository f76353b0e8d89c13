// What `ds_config`, the user's own configuration of the run, decides about the files. Internal to
// formats/deepspeed. Source: DeepSpeed 0.19.8 engine.py, stage_1_and_2.py, stage3.py.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ebb/formats/catalog/catalog.h"
#include "ebb/formats/catalog/value.h"

namespace ebb::formats::deepspeed {

// config[section][key]; nullptr when either is missing.
const Value* setting(const Value& config, std::string_view section, std::string_view key);

std::optional<DType> model_dtype(const Value& config);  // bf16, fp16; nullopt: neither is on
// Stage 3: elements of a rank's flat buffer after which the next one begins.
std::uint64_t sub_group_elems(const Value& config);
// Stages 1 and 2: parameters are dealt to the ranks in turn (round_robin.h).
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

}  // namespace ebb::formats::deepspeed
