// Histories of SwapSpace and of StateStore: what a trainer with an optimizer of its own does to
// them, in any order, on any number of ranks, started again as others, on disks that fail; against
// a model that is nothing but the bytes.
#pragma once

#include <filesystem>
#include <vector>

#include "tests/durability/draws.h"
#include "tests/durability/histories/run.h"

namespace ebb::test {

// Disks on which the ranks of a start page, by rank, and those that each reaches beside. They are
// shared by all ranks or one each, and some rank reaches each of them.
struct Disks {
  std::vector<std::filesystem::path> directories;
  std::vector<std::vector<std::filesystem::path>> sources;
};
Disks draw_disks(Draws& draws, std::uint32_t ranks, const std::filesystem::path& base);
// What ranks have taken over is gone from disks to which none of them pages.
void clear_other_disks(const Disks& disks, const std::filesystem::path& base);

// Both in a directory of their own below this one, which is gone behind them.
Verdict run_space_history(std::uint64_t seed, const std::filesystem::path& directory);
Verdict run_state_store_history(std::uint64_t seed, const std::filesystem::path& directory);

}  // namespace ebb::test
