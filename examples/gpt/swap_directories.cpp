#include "examples/gpt/swap_directories.h"

#include <algorithm>

#include "ebb/libswap/store/rank_shares.h"

namespace ebb::gpt {

namespace fs = std::filesystem;

Result<std::vector<fs::path>> directories_of(const SwapPaths& swap, std::uint32_t world) {
  const std::size_t used = std::min<std::size_t>(swap.directories.size(), world);
  std::vector<double> weights = swap.weights;
  weights.resize(used, 1.0);
  EBB_TRY_ASSIGN(const auto shares, libswap::share_out(world, weights));
  std::vector<fs::path> directories;
  for (const std::uint32_t share : shares) directories.push_back(swap.directories[share]);
  return directories;
}

Result<SwapDirectories> open_swap(libswap::IoQueue& io, const SwapPaths& swap, Team& team) {
  const std::uint32_t world = team.world();
  SwapDirectories opened(world);
  EBB_TRY_ASSIGN(const std::vector<fs::path> own, directories_of(swap, world));
  EBB_TRY(team.run([&](libmuon::Communicator& ranks) -> Result<> {
    const std::size_t me = formats::index_of(ranks.rank());
    std::vector<fs::path> others = swap.directories;
    std::erase(others, own[me]);
    EBB_TRY_ASSIGN(opened[me], libswap::SwapDirectory::open(io, own[me], ranks, std::move(others)));
    return {};
  }));
  if (swap.directories.size() > world && !resumes(opened))
    return Error{Code::usage,
                 compose("--swap names {} directories for {} ranks, and no store lies in any",
                         swap.directories.size(), world),
                 "name at most one for each rank"};
  return opened;
}

bool resumes(const SwapDirectories& swap) {
  const auto here = std::ranges::find_if(swap, [](const auto& one) { return one != nullptr; });
  return here != swap.end() && (*here)->current().has_value();
}

}  // namespace ebb::gpt
