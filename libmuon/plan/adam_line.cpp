#include "ebb/libmuon/plan/adam_line.h"

namespace ebb::libmuon {

AdamLine::AdamLine(const ModelLayout& shards, const std::vector<bool>& muon) {
  RankLoad used(shards);
  for (std::uint32_t param = 0; param < muon.size(); ++param) {
    if (muon[param]) continue;
    const Policy policy = shards.of(param).layout.spec().policy;
    if (policy == Policy::zero3 || policy == Policy::rows)
      add_evenly(shards, param, used);
    else
      add_shards(shards, param, used);
  }
  length_ = used.most();
}

// Every shard has some of the parameter, and none has more than the first.
void AdamLine::add_evenly(const ModelLayout& shards, std::uint32_t param, RankLoad& used) {
  const std::uint64_t end = used.add(param, 0, shards.of(param).held_by(0).count);
  pieces_.push_back({{param, {0, shards.elems(param)}}, end});
}

// Few shards have some of it.
void AdamLine::add_shards(const ModelLayout& shards, std::uint32_t param, RankLoad& used) {
  const ModelLayout::Part part = shards.of(param);
  const Layout::ShardSpan span = part.shards_of({0, shards.elems(param)});
  for (std::uint32_t shard = span.first; shard <= span.last; ++shard) {
    const FlatRange held = part.held_by(shard);
    if (held.count == 0) continue;
    pieces_.push_back({{param, held}, used.add(param, shard, held.count)});
  }
}

}  // namespace ebb::libmuon
