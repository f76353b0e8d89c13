#include "ebb/libmuon/plan/owners.h"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <optional>
#include <queue>
#include <utility>

#include "ebb/libmuon/kernels/kernels.h"

namespace ebb::libmuon {
namespace {

using Part = ModelLayout::Part;

constexpr double kMostOfMean = 1.05;
constexpr double kRounding = 1 + 1e-9;          // of sums of loads
constexpr std::uint64_t kMostLooks = 8u << 20;  // at loads: some ten milliseconds

// Ranks by their load. It grows elsewhere too: a rank that did not have its load of now when it was
// queued is queued again.
class Candidates {
 public:
  void add(std::uint32_t rank) { ranks_.emplace(-1, rank); }
  std::uint32_t least_loaded(const std::vector<double>& loads) {
    for (;;) {
      const auto [seen, rank] = ranks_.top();
      if (seen == loads[rank]) return rank;
      ranks_.pop();
      ranks_.emplace(loads[rank], rank);
    }
  }

 private:
  using Loaded = std::pair<double, std::uint32_t>;  // with how much, which rank
  std::priority_queue<Loaded, std::vector<Loaded>, std::greater<>> ranks_;
};

struct Matrix {
  std::uint32_t param = 0;
  FlatRange range;
  std::uint32_t of = 0;  // whose ranks may have it: the layouts of its gradient, numbered
  double cost = 0;
  bool anywhere = true;  // nobody had a reason to take it
  std::uint32_t owner = 0;
};

// Every shard has as much of the tensor as the next one, or all of it.
bool is_even(const Part& part) {
  const Policy policy = part.layout.spec().policy;
  return policy == Policy::zero3 || policy == Policy::rows || policy == Policy::replicated;
}

class Balance {
 public:
  Balance(const ModelSpec& model, const TrainerLayouts& trainer, std::uint64_t block)
      : model_(model), trainer_(trainer), ranks_(trainer.gradients.layout(0).spec().mesh.world()) {
    double flops = 0, elems = 0;
    matrices_.reserve(model.params.size());
    for (std::uint32_t param = 0; param < model.params.size(); ++param) {
      if (!is_muon(model, param)) continue;
      const std::uint32_t of = number_of(layouts_of(param));
      for (const MatrixRun& whole : matrix_runs_of(model, param, block)) {
        matrices_.push_back({.param = param, .range = whole.range, .of = of, .cost = whole.flops});
        flops += whole.flops;
        elems += static_cast<double>(whole.range.count);
      }
    }
    for (Matrix& matrix : matrices_)
      matrix.cost = std::max(flops == 0 ? 0 : matrix.cost / flops,
                             static_cast<double>(matrix.range.count) / elems);
    by_cost_.resize(matrices_.size());
    std::iota(by_cost_.begin(), by_cost_.end(), std::size_t{0});
    std::ranges::stable_sort(by_cost_, std::greater<>(),
                             [this](std::size_t i) { return matrices_[i].cost; });
    set_limit();
  }

  std::vector<OwnedRun> run() {
    std::vector<Matrix> best;
    double least = 0;
    for (const Way way : {Way::where_they_lie_first, Way::where_they_lie, Way::anywhere}) {
      place_all(way);
      relieve();
      if (most() <= limit_) {
        best.clear();
        break;
      }
      if (best.empty() || most() < least) {
        best = matrices_;
        least = most();
      }
    }
    if (!best.empty()) matrices_ = std::move(best);
    forget();
    put_side_by_side();
    return runs();
  }

 private:
  // 1.05 of the mean, or what no choice undercuts: of the kN + 1 largest some rank has k + 1.
  void set_limit() {
    double all = 0;
    for (const Matrix& matrix : matrices_) all += matrix.cost;
    limit_ = kMostOfMean * all / ranks_;
    for (std::size_t k = 0; k * ranks_ < matrices_.size(); ++k) {
      double least = 0;
      for (std::size_t i = k * ranks_ - k; i <= k * ranks_; ++i)
        least += matrices_[by_cost_[i]].cost;
      limit_ = std::max(limit_, least * kRounding);
    }
  }

  double most() const { return loads_.empty() ? 0 : *std::ranges::max_element(loads_); }

  void forget() {
    by_cost_ = {};
    of_owner_ = {};
    anywhere_.clear();
    of_shards_.clear();
  }

  enum class Way : std::uint8_t {
    where_they_lie_first,  // those that some rank has whole before those that must travel anyway
    where_they_lie,        // the largest first
    anywhere,
  };
  void place_all(Way way) {
    loads_.assign(ranks_, 0);
    anywhere_.clear();
    of_shards_.clear();
    std::vector<std::size_t> others;
    for (const std::size_t i : by_cost_)
      if (way != Way::where_they_lie_first ||
          !place_at_holder(matrices_[i], bytes_of_all(matrices_[i])))
        others.push_back(i);
    for (const std::size_t i : others)
      if (way == Way::anywhere || !place_at_holder(matrices_[i], 1))
        place_at_least_loaded(matrices_[i]);
  }

  void place(Matrix& matrix, std::uint32_t owner) {
    matrix.owner = owner;
    loads_[owner] += matrix.cost;
  }

  // Of those ranks that have at least so many bytes of it, and room for it, the one with the most.
  bool place_at_holder(Matrix& matrix, std::uint64_t least_bytes) {
    std::uint32_t best = 0;
    std::uint64_t most = 0;
    for_holders(matrix, [&](std::uint32_t rank) {
      if (loads_[rank] + matrix.cost > limit_) return;
      const std::uint64_t bytes = bytes_held(matrix, Rank{rank});
      if (bytes < least_bytes || bytes < most) return;
      const bool better =
          bytes > most || std::pair(loads_[rank], rank) < std::pair(loads_[best], best);
      if (better) best = rank;
      most = bytes;
    });
    matrix.anywhere = most == 0;
    if (most > 0) place(matrix, best);
    return most > 0;
  }

  void place_at_least_loaded(Matrix& matrix) {
    matrix.anywhere = true;
    place(matrix, ranks_of(matrix).least_loaded(loads_));
  }

  std::vector<std::uint32_t> layouts_of(std::uint32_t param) const {
    std::vector<std::uint32_t> layouts;
    for (std::size_t i = 0; i < trainer_.gradients.parts(param); ++i)
      layouts.push_back(trainer_.gradients.part(param, i).number);
    return layouts;
  }
  std::uint32_t number_of(std::vector<std::uint32_t> layouts) {
    const auto [found, is_new] = numbers_.try_emplace(std::move(layouts), numbers_.size());
    return static_cast<std::uint32_t>(found->second);
  }

  Candidates& ranks_of(const Matrix& matrix) {
    const auto [found, is_new] = anywhere_.try_emplace(matrix.of);
    if (is_new)
      for (const std::uint32_t layout : layouts_of(matrix.param)) {
        const formats::Mesh spread = trainer_.gradients.layout(layout).spec().mesh.spread();
        for (std::uint32_t i = 0; i < spread.ranks(); ++i)
          found->second.add(index_of(spread.rank_of({i, 0})));
      }
    return found->second;
  }

  // One matrix of the fullest rank for a smaller one of another, or for none, until nobody is above
  // the limit or none makes the fuller of both less full.
  void relieve() {
    if (most() <= limit_) return;
    of_owner_.assign(ranks_, {});
    for (std::size_t i = 0; i < matrices_.size(); ++i) of_owner_[matrices_[i].owner].push_back(i);
    for (std::uint64_t looks = 0; looks < kMostLooks; looks += ranks_) {
      const auto fullest = std::ranges::max_element(loads_);
      if (*fullest <= limit_) return;
      const auto from = static_cast<std::uint32_t>(fullest - loads_.begin());
      const Relief best = best_relief(from, looks);
      if (best.fuller >= *fullest) return;
      move(best.given, best.to);
      if (best.taken) move(*best.taken, from);
    }
  }

  void move(std::size_t number, std::uint32_t owner) {
    Matrix& matrix = matrices_[number];
    loads_[matrix.owner] -= matrix.cost;
    std::erase(of_owner_[matrix.owner], number);
    of_owner_[owner].push_back(number);
    place(matrix, owner);
    matrix.anywhere = false;
  }

  struct Relief {
    std::size_t given = 0;
    std::uint32_t to = 0;
    std::optional<std::size_t> taken = {};
    double fuller = 0;        // of both, behind it
    std::uint64_t elems = 0;  // that change their owner
  };

  Relief best_relief(std::uint32_t from, std::uint64_t& looks) {
    Relief best{.fuller = loads_[from]};
    std::map<double, std::size_t> given;  // one of each cost
    for (const std::size_t i : of_owner_[from]) given.try_emplace(matrices_[i].cost, i);
    const auto consider = [&](Relief next, double more) {
      ++looks;
      next.fuller = std::max(loads_[from] - more, loads_[next.to] + more);
      // Below the limit the fewest elements, above it the most relief.
      const auto rank = [this](const Relief& e) {
        return std::pair(std::max(e.fuller, limit_), e.elems);
      };
      if (next.fuller < loads_[from] && (best.elems == 0 || rank(next) < rank(best))) best = next;
    };
    for (const auto& [cost, i] : given) {
      const Matrix& one = matrices_[i];
      consider({i, ranks_of(one).least_loaded(loads_), {}, 0, one.range.count}, cost);
    }
    if (best.fuller <= limit_) return best;
    for (const auto& [cost, i] : given) {
      const Matrix& one = matrices_[i];
      for (std::size_t j = 0; j < matrices_.size(); ++j) {
        const Matrix& other = matrices_[j];
        if (other.cost >= cost || other.owner == from || other.of != one.of) continue;
        consider({i, other.owner, j, 0, one.range.count + other.range.count}, cost - other.cost);
      }
    }
    return best;
  }

  // Ranks that have more of it than others: of copies the least loaded one.
  template <typename Take>
  void for_holders(const Matrix& matrix, const Take& take) {
    for (const ModelLayout* side : {&trainer_.gradients, &trainer_.weights})
      side->for_parts({matrix.param, matrix.range}, [&](const Part& part) {
        const FlatRange here = part.slice.local(matrix.range);
        if (part.replicated() || (is_even(part) && here.count == part.slice.elems)) return;
        const auto [first, last] = part.shards_of(here);
        for (std::uint32_t shard = first; shard <= last; ++shard)
          take(part.mesh().replicas == 1 ? index_of(part.mesh().rank_of({shard, 0}))
                                         : least_loaded_copy(part, shard));
      });
  }

  std::uint32_t least_loaded_copy(const Part& part, std::uint32_t shard) {
    const auto [found, is_new] = of_shards_.try_emplace({&part.layout, shard});
    if (is_new)
      for (std::uint32_t copy = 0; copy < part.mesh().replicas; ++copy)
        found->second.add(index_of(part.mesh().rank_of({shard, copy})));
    return found->second.least_loaded(loads_);
  }

  // Of gradient and weights, as they would travel.
  std::uint64_t bytes_held(const Matrix& matrix, Rank rank) const {
    std::uint64_t bytes = 0;
    for (const ModelLayout* side : {&trainer_.gradients, &trainer_.weights})
      if (const auto part = side->part_with(matrix.param, rank))
        bytes += overlap(part->held(rank), part->slice.local(matrix.range)).count *
                 formats::bytes_of(side->dtype(matrix.param));
    return bytes;
  }
  std::uint64_t bytes_of_all(const Matrix& matrix) const {
    return matrix.range.count * (formats::bytes_of(trainer_.gradients.dtype(matrix.param)) +
                                 formats::bytes_of(trainer_.weights.dtype(matrix.param)));
  }

  // Which of a parameter's equal matrices an owner has is all the same where nobody holds them:
  // those of one owner follow each other.
  void put_side_by_side() {
    for (std::size_t first = 0, end = 0; first < matrices_.size(); first = end) {
      std::map<std::pair<double, std::uint64_t>, std::vector<std::size_t>> equal;
      for (; end < matrices_.size() && matrices_[end].param == matrices_[first].param; ++end)
        if (const Matrix& one = matrices_[end]; one.anywhere)
          equal[{one.cost, one.range.count}].push_back(end);
      for (const auto& [alike, which] : equal) {
        std::vector<std::uint32_t> owners;
        for (const std::size_t i : which) owners.push_back(matrices_[i].owner);
        std::ranges::sort(owners);
        for (std::size_t i = 0; i < which.size(); ++i) matrices_[which[i]].owner = owners[i];
      }
    }
  }

  std::vector<OwnedRun> runs() const {
    std::vector<OwnedRun> runs;
    runs.reserve(model_.params.size());
    std::size_t next = 0;
    for (std::uint32_t param = 0; param < model_.params.size(); ++param) {
      if (!is_muon(model_, param)) {
        runs.push_back({param, {0, trainer_.gradients.elems(param)}, 0});
        continue;
      }
      for (; next < matrices_.size() && matrices_[next].param == param; ++next) {
        const Matrix& matrix = matrices_[next];
        if (!runs.empty() && runs.back().param == param && runs.back().owner == matrix.owner)
          runs.back().range.count += matrix.range.count;
        else
          runs.push_back({param, matrix.range, matrix.owner});
      }
    }
    return runs;
  }

  const ModelSpec& model_;
  const TrainerLayouts trainer_;
  const std::uint32_t ranks_;
  std::vector<double> loads_;                       // by rank
  std::vector<Matrix> matrices_;                    // in the order of the model
  std::vector<std::size_t> by_cost_;                // the largest first
  std::vector<std::vector<std::size_t>> of_owner_;  // while ranks are relieved
  double limit_ = 0;
  std::map<std::vector<std::uint32_t>, std::size_t> numbers_;  // of layouts
  std::map<std::uint32_t, Candidates> anywhere_;               // by those numbers
  std::map<std::pair<const Layout*, std::uint32_t>, Candidates> of_shards_;
};

}  // namespace

std::vector<MatrixRun> matrix_runs_of(const ModelSpec& model, std::uint32_t param,
                                      std::uint64_t block) {
  const MuonSpec& spec = muon_spec(model, param);
  const Shape& shape = model.params[param].shape;
  std::vector<MatrixRun> runs;
  for (const FlatRange range : matrix_runs_of(spec, shape)) {
    if (runs.empty() || range.first % block == 0)
      runs.push_back({range});
    else
      runs.back().range.count += range.count;
  }
  std::size_t at = 0;
  for (const Block& matrix : blocks_of(spec, shape)) {
    while (matrix.first >= runs[at].range.first + runs[at].range.count) ++at;
    runs[at].flops += newton_schulz_flops(spec, matrix.rows(), matrix.cols);
  }
  return runs;
}

std::vector<OwnedRun> choose_owners(const ModelSpec& model, const TrainerLayouts& trainer,
                                    std::uint64_t block) {
  return Balance(model, trainer, block).run();
}

}  // namespace ebb::libmuon
