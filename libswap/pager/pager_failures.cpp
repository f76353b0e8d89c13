#include "ebb/libswap/pager/pager_failures.h"

#include <algorithm>

#include "ebb/libswap/sys/when_memory.h"

namespace ebb::libswap {
namespace {

constexpr std::uint8_t kRetries = 3;
constexpr std::chrono::milliseconds kFirstRetry{2};  // then four times as long, each time

}  // namespace

bool PagerFailures::again_later(std::uint64_t tile, std::uint8_t attempts) {
  if (attempts == kRetries) return false;
  add_when_memory(again_, {tile, Clock::now() + kFirstRetry * (1 << 2 * attempts)});
  return true;
}

void PagerFailures::give_up(std::uint64_t tile, const Error& error) {
  add_when_memory(given_up_, tile);
  if (!why_) when_memory([&] { why_ = error; });
}

void PagerFailures::go_on() {
  why_.reset();
  for (const std::uint64_t tile : given_up_) add_when_memory(again_, {tile, Clock::now()});
  given_up_.clear();
}

std::optional<std::uint64_t> PagerFailures::take_due(Clock::time_point now) {
  const auto due = std::ranges::find_if(again_, [&](const Again& one) { return one.due <= now; });
  if (due == again_.end()) return std::nullopt;
  const std::uint64_t tile = due->tile;
  again_.erase(due);
  return tile;
}

void PagerFailures::unreadable(std::uint64_t tile, const Error& error) {
  when_memory([&] { unreadable_.insert_or_assign(tile, error); });
}

std::optional<Error> PagerFailures::why_unreadable(std::uint64_t first, std::uint64_t count) const {
  const auto found = unreadable_.lower_bound(first);
  if (found == unreadable_.end() || found->first >= first + count) return std::nullopt;
  return found->second;
}

std::vector<std::uint64_t> PagerFailures::to_try() const {
  std::vector<std::uint64_t> tiles;
  for (const Again& one : again_) tiles.push_back(one.tile);
  return tiles;
}

}  // namespace ebb::libswap
