// What holds of a TileCache whenever its lock is free.
#include <algorithm>
#include <array>

#include "ebb/libswap/pager/tile_cache.h"

namespace ebb::libswap {
namespace {

struct Rule {
  const char* what;
  bool holds;
};

std::optional<std::string> first_broken(std::span<const Rule> rules) {
  const auto broken = std::ranges::find(rules, false, &Rule::holds);
  return broken == rules.end() ? std::nullopt : std::optional<std::string>(broken->what);
}

// Whether each number from 0 on is there, once.
bool are_all(std::vector<std::uint64_t> numbers) {
  std::ranges::sort(numbers);
  for (std::uint64_t i = 0; i < numbers.size(); ++i)
    if (numbers[i] != i) return false;
  return true;
}

}  // namespace

std::optional<std::string> TileCache::broken_of(const Tile& tile) {
  const bool reading = tile.state == State::reading;
  const bool here = tile.state == State::in_memory, leaving = tile.state == State::leaving;
  const bool of_residents = tile.dirty || tile.cut_pending || tile.writing;
  return first_broken(std::array<Rule, 9>{{
      {"a resident is in memory, or comes", !tile.resident || here || reading},
      {"a client-managed tile is a resident of the host, and not acquired",
       !tile.client_managed || (tile.resident && !tile.on_device && !tile.in_use)},
      {"what lies on the device is resident", !tile.on_device || tile.resident},
      {"what is acquired is in memory, or about to leave", !tile.in_use || here || leaving},
      {"only what comes can be unwanted", !tile.unwanted || (reading && !tile.resident)},
      {"only residents are dirty, or written for a cut", !of_residents || tile.resident},
      {"what a cut waits for, or is written, is dirty",
       tile.dirty || (!tile.cut_pending && !tile.writing)},
      {"of a cut is what is written", !tile.of_cut || leaving || tile.writing},
      {"a bounce is for what moves from or to the device",
       !tile.bounce || (tile.on_device && (reading || tile.writing))},
  }});
}

// Each is a tile's, or free. Guests take frames of their client's choice, all of which are free to
// the cache.
std::optional<std::string> TileCache::broken_of_places() const {
  std::vector<std::uint64_t> host = free_.frames(), device, managed;
  for (const Tile& tile : tiles_) {
    if (tile.bounce) host.push_back(*tile.bounce);
    if (tile.state == State::on_disk) continue;
    (tile.client_managed ? managed : tile.on_device ? device : host).push_back(tile.frame);
  }
  host.insert(host.end(), free_.bounces().begin(), free_.bounces().end());
  const std::uint64_t places = memory_.places();
  const bool apart = std::ranges::all_of(managed, [&](std::uint64_t i) { return i < places; });
  std::ranges::sort(managed);
  return first_broken(std::array<Rule, 4>{{
      {"every place of the host has one user, or is free", host.size() == places && are_all(host)},
      {"every place of the device has one user", are_all(std::move(device))},
      {"client-managed tiles lie in frames", apart},
      {"a frame has one client-managed tile", std::ranges::adjacent_find(managed) == managed.end()},
  }});
}

std::optional<std::string> TileCache::broken_of_counts() const {
  const auto tiles = [this](auto which) EBB_REQUIRES(mutex_) {
    return static_cast<std::uint64_t>(std::ranges::count_if(tiles_, which));
  };
  const auto may_fail = [this](std::uint64_t number) EBB_REQUIRES(mutex_) {
    const Tile& tile = tiles_[number];
    return tile.writing || tile.state == State::reading || tile.state == State::leaving;
  };
  return first_broken(std::array<Rule, 7>{{
      {"what the disk reads, and what is released, is in flight",
       in_flight_.reads() + in_flight_.releases() <= in_flight_.all()},
      {"a cut counts what of it is under way",
       cut_.writes() == tiles([](const Tile& tile) { return tile.of_cut; })},
      {"a cut counts what of it is being written", cut_.residents() == tiles([](const Tile& tile) {
                                                     return tile.cut_pending && tile.writing;
                                                   })},
      {"what stops a cache waits for go_on()",
       failures_.stopped() == !failures_.given_up().empty()},
      {"what is tried again moves", std::ranges::all_of(failures_.to_try(), may_fail)},
      {"what was given up would move", std::ranges::all_of(failures_.given_up(), may_fail)},
      {"what is wanted is no resident",
       std::ranges::none_of(wanted_.tiles(), [this](std::uint64_t tile) EBB_REQUIRES(
                                                 mutex_) { return tiles_[tile].resident; })},
  }});
}

std::optional<std::string> TileCache::broken_invariant() const {
  const MutexLock lock(mutex_);
  for (std::uint64_t number = 0; number < tiles_.size(); ++number)
    if (auto broken = broken_of(tiles_[number])) return compose("tile {}: {}", number, *broken);
  if (auto broken = broken_of_places()) return broken;
  return broken_of_counts();
}

}  // namespace ebb::libswap
