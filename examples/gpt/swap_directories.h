// The directories of --swap: one for all ranks, one each, or any number between. Where a run had
// others before, all of them are named, and what lies in them is found.
#pragma once

#include <filesystem>
#include <memory>
#include <vector>

#include "ebb/libmuon/comm/communicator.h"
#include "ebb/libswap/store/store_set.h"

namespace ebb::gpt {

// By rank.
using SwapDirectories = std::vector<std::unique_ptr<libswap::SwapDirectory>>;

// Of as many directories as ranks, each rank's own; of fewer, neighbours share one; of more, the
// first ones: the others are an earlier run's. REQUIRES: there is one.
const std::filesystem::path& directory_of(Rank rank, std::uint32_t world,
                                          const std::vector<std::filesystem::path>& directories);

// As every rank opens them. Code::usage for more directories than ranks where none holds a store.
Result<SwapDirectories> open_swap(libswap::IoQueue& io,
                                  const std::vector<std::filesystem::path>& directories,
                                  std::uint32_t world);

}  // namespace ebb::gpt
