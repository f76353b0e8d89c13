#include "ebb/libswap/store/rank_shares.h"

#include <algorithm>
#include <cmath>

namespace ebb::libswap {

Result<std::vector<std::uint32_t>> share_out(std::uint32_t ranks, std::span<const double> weights) {
  const auto fast = [](double weight) { return std::isfinite(weight) && weight > 0; };
  if (weights.empty() || !std::ranges::all_of(weights, fast))
    return Error{Code::usage, "a directory needs a weight above zero"};
  std::vector<std::uint32_t> directories;
  std::vector<std::uint32_t> counts(weights.size(), 0);
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    std::uint32_t least = 0;  // loaded, with one more; ties go to the first
    const auto load = [&](std::uint32_t i) { return (counts[i] + 1) / weights[i]; };
    for (std::uint32_t i = 1; i < weights.size(); ++i)
      if (load(i) < load(least)) least = i;
    ++counts[least];
    directories.push_back(least);
  }
  std::ranges::sort(directories);
  return directories;
}

}  // namespace ebb::libswap
