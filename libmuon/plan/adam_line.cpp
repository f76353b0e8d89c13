#include "ebb/libmuon/plan/adam_line.h"

#include <algorithm>

namespace ebb::libmuon {

AdamLine::AdamLine(const Layout& shards, const std::vector<bool>& muon) {
  const Policy policy = shards.spec().policy;
  const bool evenly = policy == Policy::zero3 || policy == Policy::rows;
  std::vector<std::uint64_t> used(evenly ? 0 : shards.spec().mesh.shard_world, 0);
  for (std::uint32_t param = 0; param < muon.size(); ++param) {
    if (muon[param]) continue;
    if (evenly)
      add_evenly(shards, param);
    else
      add_shards(shards, param, used);
  }
}

// Every shard has some of the parameter, and none has more than the first.
void AdamLine::add_evenly(const Layout& shards, std::uint32_t param) {
  length_ += shards.held(param, Rank{0}).count;
  pieces_.push_back({{param, {0, formats::volume(shards.tensors()[param])}}, length_});
}

// Few shards have some of it.
void AdamLine::add_shards(const Layout& shards, std::uint32_t param,
                          std::vector<std::uint64_t>& used) {
  const FlatRange all{0, formats::volume(shards.tensors()[param])};
  const Layout::ShardSpan span = shards.shards_of(param, all);
  for (std::uint32_t shard = span.first; shard <= span.last; ++shard) {
    const FlatRange held = shards.held(param, Rank{shard});
    if (held.count == 0) continue;
    used[shard] += held.count;
    length_ = std::max(length_, used[shard]);
    pieces_.push_back({{param, held}, used[shard]});
  }
}

}  // namespace ebb::libmuon
