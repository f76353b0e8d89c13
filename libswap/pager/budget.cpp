#include "ebb/libswap/pager/budget.h"

#include <algorithm>
#include <cmath>

namespace ebb::libswap {
namespace {

constexpr std::uint64_t kBusyFrames = 16;
constexpr std::uint64_t kBusyBytes = 64u << 20;
constexpr std::uint64_t kQueues = 3;

}  // namespace

std::uint64_t TileBudget::frames_in_flight(std::uint64_t tile_bytes) {
  return std::max(kBusyFrames, kBusyBytes / tile_bytes);
}

std::uint64_t TileBudget::frames_worth_having(std::uint64_t tile_bytes) {
  return kQueues * frames_in_flight(tile_bytes);
}

Result<TileBudget> TileBudget::divide(std::uint64_t tiles, std::uint64_t tile_bytes,
                                      std::uint64_t budget_bytes) {
  const std::uint64_t affordable = budget_bytes / tile_bytes;
  if (tiles <= affordable) return TileBudget{tiles, 0};
  if (affordable == 0)
    return Error{Code::no_memory,
                 compose("a state budget of {} bytes a rank holds no tile; the smallest that works "
                         "is one tile, {} bytes a rank",
                         budget_bytes, tile_bytes),
                 "give a larger --budget or a smaller --tile"};
  // A frame more keeps the disk busier; a tile that stays is never moved. If F frames bring a disk
  // to F / (F + 3) of its speed, a round of (tiles - affordable + F) is the shortest at this root.
  const double best = std::sqrt(3.0 * static_cast<double>(tiles - affordable));
  const auto wanted = std::clamp<std::uint64_t>(static_cast<std::uint64_t>(best), 6,
                                                frames_worth_having(tile_bytes));
  const std::uint64_t frames = std::min(affordable, wanted);
  return TileBudget{affordable - frames, frames};
}

Homes Homes::spread(const TileBudget& budget, std::span<const std::uint64_t> order) {
  Homes homes{std::vector<Tier>(order.size(), Tier::nvme), budget.frames};
  homes.stay(budget.resident, order);
  return homes;
}

void Homes::stay(std::uint64_t resident, std::span<const std::uint64_t> of) {
  for (std::uint64_t i = 0; i < of.size(); ++i)
    if ((i + 1) * resident / of.size() > i * resident / of.size()) tiles[of[i]] = Tier::host;
}

std::uint64_t Homes::bounces() const { return std::min(kMostResidentWrites, count(Tier::device)); }

std::uint64_t Homes::count(Tier tier) const {
  return static_cast<std::uint64_t>(std::ranges::count(tiles, tier));
}

}  // namespace ebb::libswap
