// Histories of SwapSpace and of StateStore: what a trainer with an optimizer of its own does to
// them, in any order, on any number of ranks, started again as others, on disks that fail; against
// a model that is nothing but the bytes.
#pragma once

#include "tests/durability/histories/run.h"

namespace ebb::test {

// Both in a directory of their own below this one, which is gone behind them.
Verdict run_space_history(std::uint64_t seed, const std::filesystem::path& directory);
Verdict run_state_store_history(std::uint64_t seed, const std::filesystem::path& directory);

}  // namespace ebb::test
