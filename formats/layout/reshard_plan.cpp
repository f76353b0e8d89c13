#include "ebb/formats/layout/reshard_plan.h"

#include <algorithm>
#include <string>

namespace ebb::formats {
namespace {

// One direction of one tensor: self's own pieces against those of every rank it exchanges with.
class TensorMoves {
 public:
  TensorMoves(const Layout& a, const Layout& b, std::uint32_t tensor)
      : a_(a), b_(b), tensor_(tensor) {}

  // Everything `from` hands to `to`, in flat order: both piece lists ascend.
  void append(Rank from, Rank to, std::vector<Move>& out) const {
    const std::vector<Piece> wanted = b_.pieces(tensor_, to);
    for (const Piece& source : a_.pieces(tensor_, from))
      for (const Piece& target : wanted)
        if (auto region = intersect(source.box, target.box))
          out.push_back({tensor_, from, to, source, target, std::move(*region)});
  }

  // The rank that hands shard `shard` of A to `to`: itself if it can, else the first copy's.
  Rank source_for(Rank to, std::uint32_t shard) const {
    const auto place = a_.spec().mesh.place_of(to);
    if (place && (replicated_source() || place->shard == shard)) return to;
    return a_.spec().mesh.rank_of({replicated_source() ? 0 : shard, 0});
  }

  void append_receives(Rank self, ReshardPlan& plan) const {
    if (index_of(self) >= b_.spec().mesh.world()) return;
    const FlatRange wanted = b_.held(tensor_, self);
    if (wanted.count == 0) return;
    Layout::ShardSpan span;
    if (!replicated_source()) span = a_.shards_of(tensor_, wanted);
    for (std::uint32_t shard = span.first; shard <= span.last; ++shard) {
      const Rank from = source_for(self, shard);
      append(from, self, from == self ? plan.keeps : plan.receives);
    }
  }

  void append_sends(Rank self, ReshardPlan& plan) const {
    const auto place = a_.spec().mesh.place_of(self);
    if (!place) return;
    // Ranks above the first copy serve only themselves, which append_receives() has listed.
    const std::uint32_t shard = replicated_source() ? 0 : place->shard;
    if (place->copy != 0 || place->shard != shard) return;
    const FlatRange offered = a_.held(tensor_, self);
    if (offered.count == 0) return;
    for (const Rank to : targets_of(offered))
      if (to != self && source_for(to, shard) == self) append(self, to, plan.sends);
  }

 private:
  bool replicated_source() const { return a_.spec().policy == Policy::replicated; }

  // Ranks of B that hold something of `range`: copy by copy.
  std::vector<Rank> targets_of(FlatRange range) const {
    const Mesh& mesh = b_.spec().mesh;
    Layout::ShardSpan span{0, mesh.shard_world - 1};
    if (b_.spec().policy != Policy::replicated) span = b_.shards_of(tensor_, range);
    std::vector<Rank> ranks;
    for (std::uint32_t copy = 0; copy < mesh.replicas; ++copy)
      for (std::uint32_t shard = span.first; shard <= span.last; ++shard)
        ranks.push_back(mesh.rank_of({shard, copy}));
    return ranks;
  }

  const Layout& a_;
  const Layout& b_;
  std::uint32_t tensor_;
};

Result<> check_same_tensors(const Layout& a, const Layout& b) {
  if (a.tensors().size() != b.tensors().size())
    return Error{Code::layout, compose("one layout has {} tensors, the other has {}",
                                       a.tensors().size(), b.tensors().size())};
  for (std::size_t t = 0; t < a.tensors().size(); ++t)
    if (a.tensors()[t] != b.tensors()[t])
      return Error{Code::layout, compose("tensor {} has shape {} in one layout and {} in the other",
                                         t, to_string(a.tensors()[t]), to_string(b.tensors()[t]))};
  return {};
}

}  // namespace

Result<ReshardPlan> ReshardPlan::between(const Layout& a, const Layout& b, Rank self) {
  EBB_TRY(check_same_tensors(a, b));
  ReshardPlan plan;
  for (std::size_t t = 0; t < a.tensors().size(); ++t) {
    const TensorMoves moves(a, b, static_cast<std::uint32_t>(t));
    moves.append_receives(self, plan);
    moves.append_sends(self, plan);
  }
  return plan;
}

std::uint64_t sent_elems(const ReshardPlan& plan) {
  std::uint64_t elems = 0;
  for (const Move& move : plan.sends) elems += move.elems();
  return elems;
}

}  // namespace ebb::formats
