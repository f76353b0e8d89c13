#include "ebb/libmuon/plan/owners.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <utility>

#include "ebb/libmuon/kernels/kernels.h"

namespace ebb::libmuon {
namespace {

// The ranks of a class by their load. Other classes load them too: a rank that did not have its
// load of now when it was queued is queued again.
class Candidates {
 public:
  explicit Candidates(const formats::Mesh& mesh) {
    const formats::Mesh spread = mesh.spread();
    for (std::uint32_t i = 0; i < spread.ranks(); ++i)
      ranks_.emplace(0, index_of(spread.rank_of({i, 0})));
  }

  // Gives the least loaded rank that much more.
  std::uint32_t load(double more, std::vector<double>& loads) {
    for (;;) {
      const auto [seen, rank] = ranks_.top();
      ranks_.pop();
      const bool is_least = seen == loads[rank];
      if (is_least) loads[rank] += more;
      ranks_.emplace(loads[rank], rank);
      if (is_least) return rank;
    }
  }

 private:
  using Loaded = std::pair<double, std::uint32_t>;  // with how much, which rank
  std::priority_queue<Loaded, std::vector<Loaded>, std::greater<>> ranks_;
};

}  // namespace

double newton_schulz_flops_of(const ModelSpec& model, std::uint32_t param) {
  const MuonSpec& spec = muon_spec(model, param);
  double flops = 0;
  for (const Block& block : blocks_of(spec, model.params[param].shape))
    flops += newton_schulz_flops(spec, block.rows(), block.cols);
  return flops;
}

std::vector<std::uint32_t> choose_owners(const ModelSpec& model,
                                         std::span<const ParamClass> classes) {
  struct Matrix {
    std::uint32_t param = 0;
    double cost = 0;
    std::uint32_t of = 0;  // class
  };
  std::vector<Matrix> matrices;
  std::vector<Candidates> candidates;
  for (std::uint32_t of = 0; of < classes.size(); ++of) {
    candidates.emplace_back(classes[of].gradients.mesh);
    for (const std::uint32_t param : classes[of].params)
      if (is_muon(model, param))
        matrices.push_back({param, newton_schulz_flops_of(model, param), of});
  }
  std::ranges::sort(matrices, [](const Matrix& a, const Matrix& b) {
    return a.cost != b.cost ? a.cost > b.cost : a.param < b.param;
  });
  std::vector<double> loads(classes.front().gradients.mesh.world(), 0);
  std::vector<std::uint32_t> owners(model.params.size(), 0);
  for (const Matrix& matrix : matrices)
    owners[matrix.param] = candidates[matrix.of].load(matrix.cost, loads);
  return owners;
}

}  // namespace ebb::libmuon
