// Newton-Schulz on panels fixed by the shape (docs/numerics.md). X lies with its short side as
// rows, m x n, m <= n; X X^T and its polynomials are symmetric: their lower panels are computed and
// mirrored.
#include <algorithm>
#include <memory>

#include "ebb/libmuon/kernels/forms.h"
#include "ebb/libmuon/kernels/kernels.h"
#include "ebb/libmuon/kernels/stages.h"

namespace ebb::libmuon {

std::uint64_t newton_schulz_scratch_bytes(const MuonSpec& spec, std::uint64_t rows,
                                          std::uint64_t cols) {
  return Run::scratch_bytes(spec, rows, cols);
}

libswap::Chain newton_schulz(const MuonSpec& spec, Bf16 bf16, const Block& block,
                             std::span<float> u, std::span<std::byte> scratch,
                             NonFinite non_finite) {
  const auto run = std::make_shared<Run>(spec, bf16, block, u, scratch, non_finite);
  Stages stages(run);
  stages.norm();
  stages.load();
  if (run->gram_form())
    gram_form(run->spec(), stages);
  else
    standard_form(run->spec(), stages);
  stages.store();
  return stages.chain();
}

void orthogonalize(const MuonSpec& spec, Bf16 bf16, const Block& block, std::span<float> u,
                   libswap::Pool& pool) {
  std::vector<std::byte> scratch(newton_schulz_scratch_bytes(spec, block.rows(), block.cols));
  const libswap::Event done = pool.begin(newton_schulz(spec, bf16, block, u, scratch));
  pool.help_until(done);
}

double newton_schulz_flops(const MuonSpec& spec, std::uint64_t rows, std::uint64_t cols) {
  const std::uint64_t m = std::min(rows, cols), n = std::max(rows, cols);
  if (m == 0) return 0;
  const Panels panels(m);
  double lower = 0;  // elements of the panels left of and on the diagonal
  for (std::uint64_t panel = 0; panel < panels.count(); ++panel)
    lower += static_cast<double>((panels.end(panel) - panels.begin(panel)) * panels.end(panel));
  const auto md = static_cast<double>(m), nd = static_cast<double>(n);
  const double square = (spec.precision == Precision::fp32 ? lower : md * md) * md;
  const auto steps = static_cast<double>(spec.iterations.size());
  if (!takes_gram_form(spec, rows, cols)) {
    const auto skipped = static_cast<double>(std::ranges::count_if(
        spec.iterations, [&](const Coefficients& step) { return skips_square(spec, step); }));
    return 2 * ((lower * nd + md * md * nd) * steps + square * (steps - skipped));
  }
  const auto parts = static_cast<double>(spec.restarts.size() + 1);
  // Of an iteration Z, Q and twice R; the first of a part has no Q to go on with, the last no R.
  return 2 * (parts * (lower * nd + md * md * nd) + (4 * steps - 3 * parts) * square);
}

}  // namespace ebb::libmuon
