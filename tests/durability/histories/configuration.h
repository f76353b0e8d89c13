// What a start of a history is to an engine.
#pragma once

#include "tests/durability/histories/history.h"

namespace ebb::test {

// Tall, wide, square and prime matrices, heads, a stack, vectors, one element; groups are the
// history's Muon, AdamW, and that Muon once more with matrices split by heads.
libmuon::ModelSpec model_of(const Meaning& meaning, const Start& start);
inline constexpr std::uint32_t kAdamGroup = 1;

// Within the budget that the start names. An error is the one of Engine::plan.
Result<libmuon::EngineConfig> config_of(const Meaning& meaning, const Start& start);

// One rank with all in memory, fp32 in and out, and masters that the engine keeps unless the
// history's trainer does: what every other start is compared with.
Start plain_start(std::uint64_t until);

}  // namespace ebb::test
