// The order of groups and of the parameters in them, by which alone an engine finds its own.
// Internal to formats/deepspeed. Source: DeepSpeed 0.19.8 engine.py (_muon_param_groups),
// original_muon.py, stage_1_and_2.py.
#pragma once

#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "ebb/formats/deepspeed/emit_content.h"

namespace ebb::formats::deepspeed {

// The engine names the halves of a group "<its name>-muon-params" and "<its name>-adam-params", and
// "muon-params", "adam-params" where there is one: the part before. nullopt for other groups.
std::optional<std::string_view> job_group(
    const std::vector<std::pair<std::string, Value>>& settings);

// Puts the groups and their parameters in the order of an engine's of out.stage on out.world ranks.
// What had to be guessed is noted in the plan.
void order_groups(const Catalog& content, bool made_by_engine, Content& out, EmitPlan& plan);

}  // namespace ebb::formats::deepspeed
