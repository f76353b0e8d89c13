#include "ebb/libswap/pager/budget.h"

#include <algorithm>

namespace ebb::libswap {
namespace {

// Frames beyond this buy nothing on disks measured here; the rest of a budget becomes residency.
constexpr std::uint64_t kMostFrames = 16;
constexpr std::uint64_t kFrameBytesWorthHaving = 64u << 20;

}  // namespace

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
  // A third of a small budget, never more than helps; the rest saves traffic for good.
  const std::uint64_t most =
      std::max<std::uint64_t>(kMostFrames, kFrameBytesWorthHaving / tile_bytes);
  const std::uint64_t wanted = std::clamp<std::uint64_t>(affordable / 3, 6, most);
  const std::uint64_t frames = std::min(affordable, wanted);
  return TileBudget{affordable - frames, frames};
}

}  // namespace ebb::libswap
