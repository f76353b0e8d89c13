#include "ebb/libmuon/plan/adam_line.h"

#include <algorithm>

namespace ebb::libmuon {

AdamLine::AdamLine(const Layouts& layouts) {
  const ModelLayout& shards = layouts.shards();
  RankLoad used(shards);
  for (std::uint32_t param = 0; param < layouts.params(); ++param) {
    if (layouts.muon(param)) continue;
    if (shards.parts(param) == 1)
      add(shards.of(param), param, used);
    else
      add_slices(shards, param, used);
  }
  length_ = used.most();
}

// Shards of a part and where each ends: of even ones the first, than which none has more.
template <typename Take>
void AdamLine::for_ends(const ModelLayout::Part& part, RankLoad& used, const Take& take) {
  const Policy policy = part.layout.spec().policy;
  const bool even = policy == Policy::zero3 || policy == Policy::rows;
  const FlatRange all{0, part.slice.elems};
  if (all.count == 0) return;
  const Layout::ShardSpan span = even ? Layout::ShardSpan{} : part.shards_of(all);
  for (std::uint32_t shard = span.first; shard <= span.last; ++shard) {
    const FlatRange held = part.held_by(shard);
    if (held.count > 0) take(even ? all : held, used.add(part.number, shard, held.count));
  }
}

void AdamLine::add(const ModelLayout::Part& part, std::uint32_t param, RankLoad& used) {
  for_ends(part, used,
           [&](FlatRange held, std::uint64_t end) { pieces_.push_back({{param, held}, end}); });
}

// The elements of slices lie in one another: one piece, to the last of their ends.
void AdamLine::add_slices(const ModelLayout& shards, std::uint32_t param, RankLoad& used) {
  std::uint64_t last = 0;
  for (std::size_t i = 0; i < shards.parts(param); ++i)
    for_ends(shards.part(param, i), used,
             [&](FlatRange, std::uint64_t end) { last = std::max(last, end); });
  pieces_.push_back({{param, {0, shards.elems(param)}}, last});
}

}  // namespace ebb::libmuon
