#include "examples/gpt/swap_directories.h"

#include <algorithm>

#include "examples/gpt/rank_threads.h"

namespace ebb::gpt {

namespace fs = std::filesystem;

const fs::path& directory_of(Rank rank, std::uint32_t world,
                             const std::vector<fs::path>& directories) {
  const std::size_t used = std::min<std::size_t>(directories.size(), world);
  return directories[formats::index_of(rank) * used / world];
}

Result<SwapDirectories> open_swap(libswap::IoQueue& io, const std::vector<fs::path>& directories,
                                  std::uint32_t world) {
  SwapDirectories opened(world);
  EBB_TRY(on_rank_threads(world, [&](libmuon::Communicator& ranks) -> Result<> {
    const fs::path& mine = directory_of(ranks.rank(), world, directories);
    std::vector<fs::path> others = directories;
    std::erase(others, mine);
    auto& own = opened[formats::index_of(ranks.rank())];
    EBB_TRY_ASSIGN(own, libswap::SwapDirectory::open(io, mine, ranks, std::move(others)));
    return {};
  }));
  if (directories.size() > world && !opened.front()->current())
    return Error{Code::usage,
                 compose("--swap names {} directories for {} ranks, and no store lies in any",
                         directories.size(), world),
                 "name at most one for each rank"};
  return opened;
}

}  // namespace ebb::gpt
