// predict: what an engine will take and move, as EnginePlan has it.
#pragma once

#include "ebb/libmuon/step/config.h"

namespace ebb::libmuon {

// Answers for Engine::plan().
Result<EnginePlan> predict(const EngineConfig& config, Rank rank, Side wire);

}  // namespace ebb::libmuon
