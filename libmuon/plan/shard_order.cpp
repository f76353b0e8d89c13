#include "ebb/libmuon/plan/shard_order.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "ebb/libmuon/plan/owners.h"
#include "ebb/libmuon/plan/rank_load.h"

namespace ebb::libmuon {
namespace {

// So many chunks have Newton-Schulz beside what is paged; more only make more rounds.
constexpr std::uint64_t kEnoughChunks = 4;

bool cut_evenly(const ModelLayout::Part& part) {
  const Policy policy = part.layout.spec().policy;
  return policy == Policy::zero3 || policy == Policy::rows || policy == Policy::uneven_rows;
}

// The most that any rank has of some ranges. Those of whole parameters, or of slices of them, that
// are cut evenly are counted once, others where they lie: never ranks times parameters.
class ShardLoad {
 public:
  explicit ShardLoad(const ModelLayout& shards)
      : shards_(&shards), even_(shards), others_(shards) {}

  void add(const Transit& range, std::uint64_t weight) {
    shards_->for_parts(range, [&](const ModelLayout::Part& part) {
      const FlatRange some = part.slice.local(range.range);
      if (cut_evenly(part) && some.count == part.slice.elems) {
        even_.add(part.number, 0, part.largest() * weight);
        return;
      }
      const Layout::ShardSpan span = part.shards_of(some);
      for (std::uint32_t shard = span.first; shard <= span.last; ++shard)
        others_.add(part.number, shard, formats::overlap(part.held_by(shard), some).count * weight);
    });
  }
  std::uint64_t most() const { return even_.most() + others_.most(); }

 private:
  const ModelLayout* shards_;
  RankLoad even_, others_;
};

std::uint32_t owner_of(const ShardOrder::From& from, const Transit& matrix) {
  const ModelLayout::Part run = from.matrices.run_of(matrix);
  return run.layout.spec().owners[run.tensor];
}

struct Widths {
  std::uint64_t gathered = 0, staged = 0;  // bytes of an element
};

// What answers as wide as it came lies in the same place; gradients and weights may be on their way
// beside both.
Widths widths_of(const MuonSpec& spec) {
  const std::uint64_t update = bytes_of(update_dtype(spec)), result = bytes_of(result_dtype(spec));
  const std::uint64_t decay = decays_separately(spec) ? sizeof(float) : 0;
  return {.gathered = update + (result == update ? 0 : result),
          .staged = update + result + decay + 2 * sizeof(float)};
}

// What the ranks gather of some matrices, and what they stage of them.
class ChunkLoad {
 public:
  explicit ChunkLoad(const ShardOrder::From& from) : from_(&from), staged_(from.shards) {}

  void add(std::span<const Transit> bundle) {
    for (const Transit& matrix : bundle) {
      const Widths widths = widths_of(muon_spec(from_->model, matrix.param));
      std::uint64_t& gathered = gathered_[owner_of(*from_, matrix)];
      gathered += matrix.range.count * widths.gathered;
      most_gathered_ = std::max(most_gathered_, gathered);
      staged_.add(matrix, widths.staged);
    }
  }
  std::uint64_t most_gathered() const { return most_gathered_; }
  std::uint64_t most_staged() const { return staged_.most(); }

 private:
  const ShardOrder::From* from_;
  std::map<std::uint32_t, std::uint64_t> gathered_;  // by owner
  std::uint64_t most_gathered_ = 0;
  ShardLoad staged_;
};

// Of what an owner gathers in a chunk: as long as each of them has a matrix in every chunk, there
// are several.
std::uint64_t gathered_at_most(const ShardOrder::From& from,
                               std::span<const std::vector<Transit>> bundles) {
  ChunkLoad all(from);
  std::map<std::uint32_t, std::uint64_t> matrices;  // by owner
  for (const auto& bundle : bundles) {
    all.add(bundle);
    for (const Transit& matrix : bundle) ++matrices[owner_of(from, matrix)];
  }
  std::uint64_t chunks = kEnoughChunks;
  for (const auto& [owner, count] : matrices) chunks = std::min(chunks, count);
  return std::min(from.chunk_bytes, formats::div_ceil(all.most_gathered(), chunks));
}

}  // namespace

bool decays_separately(const MuonSpec& spec) {
  return spec.decay == Decay::l2 && update_dtype(spec) != DType::f32;
}

ShardOrder::ShardOrder(const From& from) {
  pack(from);
  if (!bundles_.empty()) cut(from);
}

void ShardOrder::pack(const From& from) {
  ShardLoad load(from.shards);
  for (std::uint32_t param = 0; param < from.model.params.size(); ++param) {
    if (!is_muon(from.model, param)) continue;
    for (const MatrixRun& whole : matrix_runs_of(from.model, param, from.room.block)) {
      const Transit matrix{param, whole.range};
      load.add(matrix, 1);
      const bool other = !bundles_.empty() && out_of(from.model, bundles_.back().back().param) !=
                                                  out_of(from.model, param);
      if (bundles_.empty() || other || from.room.block > 1 || load.most() > from.room.elems) {
        bundles_.emplace_back();
        load = ShardLoad(from.shards);
        load.add(matrix, 1);
      }
      bundles_.back().push_back(matrix);
    }
  }
}

// Every chunk is to have work for all: for the owners, and where matrices lie whole on few shards,
// for these. Each of them goes through its own in the order of the model.
std::vector<std::size_t> ShardOrder::in_order(const From& from) const {
  std::map<std::pair<std::size_t, std::uint32_t>, std::uint64_t> passed;  // elements, by whom
  const auto who = [&](const Transit& matrix) {
    std::optional<std::pair<std::size_t, std::uint32_t>> first;
    from.shards.for_parts(matrix, [&](const ModelLayout::Part& part) {
      if (first) return;
      first = {0, owner_of(from, matrix)};
      if (!cut_evenly(part))
        first = {1 + part.number, part.shards_of(part.slice.local(matrix.range)).first};
    });
    return *first;
  };
  std::vector<std::uint64_t> before;  // by bundle
  for (const auto& bundle : bundles_) {
    before.push_back(passed[who(bundle.front())]);
    for (const Transit& matrix : bundle) passed[who(matrix)] += matrix.range.count;
  }
  std::vector<std::pair<double, std::size_t>> shares;
  for (std::size_t i = 0; i < bundles_.size(); ++i)
    shares.emplace_back(
        static_cast<double>(before[i]) / static_cast<double>(passed[who(bundles_[i].front())]), i);
  std::ranges::sort(shares);
  std::vector<std::size_t> order;
  for (const auto& [share, bundle] : shares) order.push_back(bundle);
  return order;
}

void ShardOrder::cut(const From& from) {
  const std::uint64_t most_gathered = gathered_at_most(from, bundles_);
  chunk_of_.resize(bundles_.size());
  ChunkLoad load(from);
  for (const std::size_t bundle : in_order(from)) {
    load.add(bundles_[bundle]);
    if (chunks_ == 0 || load.most_gathered() > most_gathered ||
        load.most_staged() > from.chunk_bytes) {
      ++chunks_;
      load = ChunkLoad(from);
      load.add(bundles_[bundle]);
    }
    chunk_of_[bundle] = chunks_ - 1;
  }
}

StepOrder ShardOrder::step_order(std::span<const Item> items,
                                 std::span<const std::size_t> bundles) const {
  StepOrder::Turns order{.momentum = {}, .between = kTurnsBetween, .count = turns()};
  for (const std::size_t bundle : bundles)
    order.momentum.push_back(turn_of(chunk_of_[bundle], TileKind::momentum));
  return StepOrder(items, order);
}

}  // namespace ebb::libmuon
