#include "ebb/formats/core/nearest.h"

#include <algorithm>

namespace ebb::formats {
namespace {

// Letters inserted, removed, changed or swapped with their neighbour.
std::size_t edits(std::string_view a, std::string_view b) {
  std::vector<std::vector<std::size_t>> cost(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) {
    for (std::size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        cost[i][j] = i + j;
        continue;
      }
      const std::size_t change = cost[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      cost[i][j] = std::min({cost[i - 1][j] + 1, cost[i][j - 1] + 1, change});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        cost[i][j] = std::min(cost[i][j], cost[i - 2][j - 2] + 1);
    }
  }
  return cost[a.size()][b.size()];
}

}  // namespace

std::optional<std::string> nearest(std::string_view text,
                                   const std::vector<std::string>& candidates) {
  constexpr std::size_t kLongest = 64;  // the work is quadratic
  if (text.size() > kLongest) return std::nullopt;
  std::optional<std::string> best;
  std::size_t best_distance = std::max<std::size_t>(text.size() / 3, 1) + 1;
  for (const std::string& candidate : candidates) {
    const bool longer = text.size() >= 3 && std::string_view(candidate).starts_with(text);
    const std::size_t away = longer ? 1 : edits(text, candidate);
    if (away >= best_distance) continue;
    best = candidate;
    best_distance = away;
  }
  return best;
}

}  // namespace ebb::formats
