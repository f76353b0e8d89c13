// RankLoad: the most that any rank has of what is added, without a look at each of them. A rank is
// in one class of each partition of a model, so most of the classes do not meet in it.
#pragma once

#include <cstdint>
#include <map>
#include <utility>

#include "ebb/libmuon/plan/model_layout.h"

namespace ebb::libmuon {

class RankLoad {
 public:
  explicit RankLoad(const ModelLayout& layout) : layout_(&layout) {}

  // What a rank then has at most, with so much more for one shard of a class, whose layout that is.
  // Shards of a class that all have as much are added as its shard 0.
  std::uint64_t with(std::uint32_t layout, std::uint32_t shard, std::uint64_t more) const;
  // Adds it. The same answer.
  std::uint64_t add(std::uint32_t layout, std::uint32_t shard, std::uint64_t more);
  // Of any rank.
  std::uint64_t most() const { return most_; }

 private:
  const ModelLayout* layout_;
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint64_t> loads_;  // by class and shard
  std::map<std::uint32_t, std::uint64_t> most_of_;                          // by partition
  std::uint64_t most_ = 0;                                                  // their sum
};

}  // namespace ebb::libmuon
