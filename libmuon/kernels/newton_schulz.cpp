// Newton-Schulz on panels fixed by the shape (docs/numerics.md). X lies with its short side as
// rows, m x n, m <= n; X X^T and its polynomials are symmetric: their lower panels are computed and
// mirrored.
#include "ebb/libmuon/kernels/newton_schulz_run.h"

#include <algorithm>
#include <memory>

#include "ebb/libmuon/kernels/forms.h"
#include "ebb/libmuon/kernels/kernels.h"

namespace ebb::libmuon {
namespace {

// Stages of one run, in the order in which they are asked for.
class Stages {
 public:
  explicit Stages(std::shared_ptr<Run> run) : run_(std::move(run)) {
    chain_.push_back({run_->norm_chunks(), [run = run_](std::size_t i) { run->square(i); }});
    chain_.push_back({1, [run = run_](std::size_t) { run->decide(); }});
    panels(&Run::load);
  }

  libswap::Chain done() {
    panels(&Run::store);
    return std::move(chain_);
  }

  void gram() {
    chain_.push_back({run_->transposed_slices(),
                      [run = run_](std::size_t slice) { run->pack_transposed(slice); }});
    triangle([run = run_](std::size_t panel) { run->make_gram(panel); });
    mirror(Part::gram);
  }
  void square(const Sum& sum) {
    pack(sum.right);
    triangle([run = run_, sum](std::size_t panel) { run->add(sum, panel); });
  }
  void symmetric(const Sum& sum) {
    square(sum);
    if (run_->mirrors()) mirror(sum.to);
  }
  void mirror(Part part) {
    panels([run = run_, part](std::size_t panel) { run->mirror(part, panel); });
  }
  void identity(Part to, Part from, float value) {
    panels([run = run_, to, from, value](std::size_t panel) {
      run->add_identity(to, from, value, panel);
    });
  }
  // X = beta X + left X.
  void advance(Part left, float beta) {
    const Part next = run_->next_x();
    pack(Part::x);
    panels([run = run_, next, left, beta](std::size_t panel) {
      run->add({next, 1.0f, left, Part::x, beta, Part::x}, panel);
    });
    if (next != Part::x) swap(Part::x, next);
  }
  void swap(Part a, Part b) {
    chain_.push_back({1, [run = run_, a, b](std::size_t) { run->swap(a, b); }});
  }

 private:
  void pack(Part part) {
    chain_.push_back(
        {run_->slices(), [run = run_, part](std::size_t slice) { run->pack(part, slice); }});
  }
  void panels(void (Run::*work)(std::size_t)) {
    panels([run = run_, work](std::size_t panel) { ((*run).*work)(panel); });
  }
  void panels(std::function<void(std::size_t)> work) {
    chain_.push_back({run_->panels(), std::move(work)});
  }
  // The longest panels first.
  void triangle(std::function<void(std::size_t)> work) {
    panels([work = std::move(work), last = run_->panels() - 1](std::size_t i) { work(last - i); });
  }

  const std::shared_ptr<Run> run_;
  libswap::Chain chain_;
};

}  // namespace

std::uint64_t newton_schulz_scratch_bytes(const MuonSpec& spec, std::uint64_t rows,
                                          std::uint64_t cols) {
  return Run::scratch_bytes(spec, rows, cols);
}

libswap::Chain newton_schulz(const MuonSpec& spec, Bf16 bf16, const Block& block,
                             std::span<float> u, std::span<std::byte> scratch, Spoiled spoiled) {
  const auto run = std::make_shared<Run>(spec, bf16, block, u, scratch, spoiled);
  Stages stages(run);
  if (run->gram_form())
    gram_form(run->spec(), stages);
  else
    standard_form(run->spec(), stages);
  return stages.done();
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
  if (!takes_gram_form(spec, rows, cols)) return 2 * (lower * nd + square + md * md * nd) * steps;
  const auto parts = static_cast<double>(spec.restarts.size() + 1);
  // Of an iteration Z, Q and twice R; the first of a part has no Q to go on with, the last no R.
  return 2 * (parts * (lower * nd + md * md * nd) + (4 * steps - 3 * parts) * square);
}

}  // namespace ebb::libmuon
