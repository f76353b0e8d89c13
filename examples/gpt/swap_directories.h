// The directories of --swap: one for all ranks, one each, or any number between. Where a run had
// others before, all of them are named, and what lies in them is found.
#pragma once

#include <filesystem>
#include <memory>
#include <vector>

#include "ebb/libswap/store/store_set.h"
#include "examples/gpt/settings.h"
#include "examples/gpt/team.h"

namespace ebb::gpt {

// By rank; null for those of other processes.
using SwapDirectories = std::vector<std::unique_ptr<libswap::SwapDirectory>>;

// By rank: its directory. Each has as many ranks as its weight gives it, neighbours share one. Of
// more directories than ranks, the first ones: the others are an earlier run's.
Result<std::vector<std::filesystem::path>> directories_of(const SwapPaths& swap,
                                                          std::uint32_t world);

// Collective. As every rank of this process opens them. Code::usage for more directories than ranks
// where none holds a store.
Result<SwapDirectories> open_swap(libswap::IoQueue& io, const SwapPaths& swap, Team& team);
// Whether a store lies there; the same on all ranks.
bool resumes(const SwapDirectories& swap);

}  // namespace ebb::gpt
