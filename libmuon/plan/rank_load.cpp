#include "ebb/libmuon/plan/rank_load.h"

#include <algorithm>

namespace ebb::libmuon {
namespace {

template <typename Key>
std::uint64_t at(const std::map<Key, std::uint64_t>& loads, const Key& key) {
  const auto found = loads.find(key);
  return found == loads.end() ? 0 : found->second;
}

}  // namespace

std::uint64_t RankLoad::with(std::uint32_t layout, std::uint32_t shard, std::uint64_t more) const {
  const std::uint64_t of_others = most_ - at(most_of_, layout_->partition_of(layout));
  return of_others + at(loads_, {layout, shard}) + more;
}

std::uint64_t RankLoad::add(std::uint32_t layout, std::uint32_t shard, std::uint64_t more) {
  const std::uint64_t load = loads_[{layout, shard}] += more;
  std::uint64_t& most = most_of_[layout_->partition_of(layout)];
  const std::uint64_t of_others = most_ - most;
  most = std::max(most, load);
  most_ = of_others + most;
  return of_others + load;
}

}  // namespace ebb::libmuon
