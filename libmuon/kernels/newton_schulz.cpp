// Newton-Schulz in Q-form on panels fixed by the shape (docs/numerics.md): with A = X X^T,
// Q = aI + bA + cA^2, X <- QX. X lies with its short side as rows, m x n, m <= n. A and Q are
// symmetric: the lower panels are computed and mirrored.
#include <algorithm>
#include <cmath>
#include <memory>

#include "ebb/libmuon/kernels/kernels.h"

namespace ebb::libmuon {
namespace {

using formats::align_up;
using formats::div_ceil;

constexpr std::uint64_t kGramPanel = 512;    // columns of X added to A at a time
constexpr std::uint64_t kNormChunk = 65536;  // elements of U whose squares are summed at a time
constexpr std::uint64_t kNormLanes = 16;
constexpr std::uint64_t kTile = 16;    // side of the squares that transposing moves
constexpr std::uint64_t kLdUnit = 16;  // leading dimensions are multiples of this
// oneDNN packs a product's operands in blocks of at most this many elements a side, measured on
// AVX-512; AVX2 packs half as deep, and where it packs nothing this is too much.
constexpr std::uint64_t kPackedLong = 9984, kPackedShort = 384, kPackedDepth = 384;

std::uint64_t leading_dimension(std::uint64_t cols) { return align_up(cols, kLdUnit); }

// The rows of an m-row matrix, cut by m alone.
struct Panels {
  std::uint64_t rows;
  std::uint64_t height;

  explicit Panels(std::uint64_t m) : rows(m) {
    const std::uint64_t wanted = m < 256 ? 1 : m <= 2048 ? 4 : 8;
    height = align_up(div_ceil(m, wanted), kLdUnit);
  }
  std::uint64_t count() const { return div_ceil(rows, height); }
  std::uint64_t begin(std::uint64_t panel) const { return panel * height; }
  std::uint64_t end(std::uint64_t panel) const { return std::min(rows, (panel + 1) * height); }
};

// Fixed lanes, so that every vector width adds in the same order.
EBB_CLONES double sum_of_squares(const float* values, std::uint64_t count) {
  double lanes[kNormLanes] = {};
  const std::uint64_t whole = count / kNormLanes * kNormLanes;
  for (std::uint64_t i = 0; i < whole; i += kNormLanes)
    for (std::uint64_t lane = 0; lane < kNormLanes; ++lane) {
      const double value = static_cast<double>(values[i + lane]);
      lanes[lane] += value * value;
    }
  for (std::uint64_t i = whole; i < count; ++i)
    lanes[i - whole] += static_cast<double>(values[i]) * static_cast<double>(values[i]);
  double total = 0;
  for (const double lane : lanes) total += lane;
  return total;
}

// In double: the factor of a tiny matrix does not fit fp32.
EBB_CLONES void scale_row(double factor, std::uint64_t count, float* row) {
  for (std::uint64_t i = 0; i < count; ++i)
    row[i] = static_cast<float>(static_cast<double>(row[i]) * factor);
}

EBB_CLONES void add_scaled_row(const float* __restrict from, float factor, std::uint64_t count,
                               float* __restrict to) {
  for (std::uint64_t i = 0; i < count; ++i) to[i] += factor * from[i];
}

// to(cols x rows) = transposed from(rows x cols). Tiles go through a buffer, so each line of memory
// is touched once: strides are often multiples of 4 KiB.
void transpose(const float* from, std::uint64_t from_ld, std::uint64_t rows, std::uint64_t cols,
               float* to, std::uint64_t to_ld) {
  float tile[kTile][kTile];
  for (std::uint64_t r0 = 0; r0 < rows; r0 += kTile)
    for (std::uint64_t c0 = 0; c0 < cols; c0 += kTile) {
      const std::uint64_t high = std::min(kTile, rows - r0), wide = std::min(kTile, cols - c0);
      for (std::uint64_t r = 0; r < high; ++r)
        std::copy_n(from + (r0 + r) * from_ld + c0, wide, tile[r]);
      for (std::uint64_t c = 0; c < wide; ++c)
        for (std::uint64_t r = 0; r < high; ++r) to[(c0 + c) * to_ld + r0 + r] = tile[r][c];
    }
}

std::uint64_t packed_bytes(std::uint64_t rows, std::uint64_t cols, std::uint64_t depth) {
  return sizeof(float) * std::min(depth, kPackedDepth) *
         (std::min(cols, kPackedLong) + std::min(rows, kPackedShort));
}

// One matrix on its way through the iterations. The stages of its chain share it.
class Run {
 public:
  Run(const MuonSpec& spec, std::uint64_t rows, std::uint64_t cols, std::span<float> u,
      std::span<std::byte> scratch)
      : spec_(spec),
        tall_(rows > cols),
        m_(std::min(rows, cols)),
        n_(std::max(rows, cols)),
        panels_(m_),
        x_ld_(leading_dimension(n_)),
        a_ld_(leading_dimension(m_)),
        u_(u),
        x_(reinterpret_cast<float*>(scratch.data())),
        y_(x_ + m_ * x_ld_),
        a_(y_ + m_ * x_ld_),
        q_(a_ + m_ * a_ld_),
        sums_(div_ceil(u.size(), kNormChunk)) {
    EBB_CHECK(u.size() == rows * cols);
    EBB_CHECK(scratch.size() >= newton_schulz_scratch_bytes(rows, cols));
  }

  std::size_t panels() const { return panels_.count(); }
  std::size_t norm_chunks() const { return sums_.size(); }
  const std::vector<Coefficients>& iterations() const { return spec_.iterations; }
  std::size_t last_first(std::size_t index) const { return panels() - 1 - index; }

  void square(std::size_t chunk) {
    const std::uint64_t first = chunk * kNormChunk;
    sums_[chunk] = sum_of_squares(u_.data() + first, std::min(kNormChunk, u_.size() - first));
  }

  // A matrix of zeros, or one that is not finite, gives zeros.
  void decide() {
    double total = 0;
    for (const double sum : sums_) total += sum;
    const double norm = std::sqrt(total);
    alive_ = norm != 0 && std::isfinite(norm);
    factor_ = 1 / (spec_.eps_rule == EpsRule::add ? norm + spec_.eps : std::max(norm, spec_.eps));
  }

  // Cut along the short side: a panel of X is a panel of rows, or of columns, of U.
  void load(std::size_t panel) {
    if (!alive_) return;
    const std::uint64_t first = panels_.begin(panel), end = panels_.end(panel);
    float* const x = x_ + first * x_ld_;
    if (tall_) transpose(u_.data() + first, m_, n_, end - first, x, x_ld_);
    for (std::uint64_t row = 0; row < end - first; ++row) {
      if (!tall_) std::copy_n(u_.data() + (first + row) * n_, n_, x + row * x_ld_);
      scale_row(factor_, n_, x + row * x_ld_);
    }
  }

  // A's rows of this panel up to the diagonal, over the long side in ascending order.
  void gram(std::size_t panel) {
    if (!alive_) return;
    const std::uint64_t first = panels_.begin(panel), end = panels_.end(panel);
    for (std::uint64_t k = 0; k < n_; k += kGramPanel)
      gemm(end - first, end, std::min(kGramPanel, n_ - k), 1.0f, {x_ + first * x_ld_ + k, x_ld_},
           {x_ + k, x_ld_, Transpose::yes}, k == 0 ? 0.0f : 1.0f, a_ + first * a_ld_, a_ld_);
  }

  void polynomial(const Coefficients& step, std::size_t panel) {
    if (!alive_) return;
    const std::uint64_t first = panels_.begin(panel), end = panels_.end(panel);
    gemm(end - first, end, m_, step.c, {a_ + first * a_ld_, a_ld_}, {a_, a_ld_}, 0.0f,
         q_ + first * a_ld_, a_ld_);
    for (std::uint64_t row = first; row < end; ++row) {
      add_scaled_row(a_ + row * a_ld_, step.b, end, q_ + row * a_ld_);
      q_[row * a_ld_ + row] += step.a;
    }
  }

  void product(std::size_t panel) {
    if (!alive_) return;
    const std::uint64_t first = panels_.begin(panel), end = panels_.end(panel);
    gemm(end - first, n_, m_, 1.0f, {q_ + first * a_ld_, a_ld_}, {x_, x_ld_}, 0.0f,
         y_ + first * x_ld_, x_ld_);
  }

  void mirror_gram(std::size_t panel) { mirror(a_, panel); }
  void mirror_polynomial(std::size_t panel) { mirror(q_, panel); }
  void next() { std::swap(x_, y_); }

  void store(std::size_t panel) {
    const std::uint64_t first = panels_.begin(panel), end = panels_.end(panel);
    if (!alive_) return fill_zeros(first, end);
    const float* const x = x_ + first * x_ld_;
    if (tall_) return transpose(x, x_ld_, end - first, n_, u_.data() + first, m_);
    for (std::uint64_t row = 0; row < end - first; ++row)
      std::copy_n(x + row * x_ld_, n_, u_.data() + (first + row) * n_);
  }

 private:
  // Right of the diagonal panels := the transpose of what lies below them.
  void mirror(float* square, std::size_t panel) {
    if (!alive_) return;
    const std::uint64_t first = panels_.begin(panel), end = panels_.end(panel);
    transpose(square + end * a_ld_ + first, a_ld_, m_ - end, end - first,
              square + first * a_ld_ + end, a_ld_);
  }

  void fill_zeros(std::uint64_t first, std::uint64_t end) {
    if (tall_)
      for (std::uint64_t row = 0; row < n_; ++row)
        std::ranges::fill(u_.subspan(row * m_ + first, end - first), 0.0f);
    else
      std::ranges::fill(u_.subspan(first * n_, (end - first) * n_), 0.0f);
  }

  const MuonSpec spec_;
  const bool tall_;
  const std::uint64_t m_, n_;
  const Panels panels_;
  const std::uint64_t x_ld_, a_ld_;
  const std::span<float> u_;
  float *x_, *y_, *a_, *q_;
  std::vector<double> sums_;
  bool alive_ = false;
  double factor_ = 0;
};

}  // namespace

std::uint64_t newton_schulz_scratch_bytes(std::uint64_t rows, std::uint64_t cols) {
  const std::uint64_t m = std::min(rows, cols), n = std::max(rows, cols);
  return sizeof(float) * 2 * m * (leading_dimension(n) + leading_dimension(m));
}

std::uint64_t newton_schulz_packing_bytes(std::uint64_t rows, std::uint64_t cols) {
  const std::uint64_t m = std::min(rows, cols), n = std::max(rows, cols);
  const std::uint64_t height = Panels(m).height;
  return std::max(packed_bytes(height, n, m), packed_bytes(height, m, std::min(n, kGramPanel)));
}

libswap::Chain newton_schulz(const MuonSpec& spec, std::uint64_t rows, std::uint64_t cols,
                             std::span<float> u, std::span<std::byte> scratch) {
  const auto run = std::make_shared<Run>(spec, rows, cols, u, scratch);
  const std::size_t panels = run->panels();
  libswap::Chain chain;
  chain.push_back({run->norm_chunks(), [run](std::size_t chunk) { run->square(chunk); }});
  chain.push_back({1, [run](std::size_t) { run->decide(); }});
  chain.push_back({panels, [run](std::size_t panel) { run->load(panel); }});
  // The longest panels of a triangle first.
  for (const Coefficients& step : run->iterations()) {
    chain.push_back({panels, [run](std::size_t i) { run->gram(run->last_first(i)); }});
    chain.push_back({panels, [run](std::size_t panel) { run->mirror_gram(panel); }});
    chain.push_back(
        {panels, [run, step](std::size_t i) { run->polynomial(step, run->last_first(i)); }});
    chain.push_back({panels, [run](std::size_t panel) { run->mirror_polynomial(panel); }});
    chain.push_back({panels, [run](std::size_t panel) { run->product(panel); }});
    chain.push_back({1, [run](std::size_t) { run->next(); }});
  }
  chain.push_back({panels, [run](std::size_t panel) { run->store(panel); }});
  return chain;
}

void orthogonalize(const MuonSpec& spec, std::uint64_t rows, std::uint64_t cols, std::span<float> u,
                   libswap::Pool& pool) {
  std::vector<std::byte> scratch(newton_schulz_scratch_bytes(rows, cols));
  const libswap::Event done = pool.begin(newton_schulz(spec, rows, cols, u, scratch));
  pool.help_until(done);
}

double newton_schulz_flops(std::uint64_t rows, std::uint64_t cols, std::size_t iterations) {
  const std::uint64_t m = std::min(rows, cols), n = std::max(rows, cols);
  if (m == 0) return 0;
  const Panels panels(m);
  double lower = 0;  // elements of the panels left of and on the diagonal
  for (std::uint64_t panel = 0; panel < panels.count(); ++panel)
    lower += static_cast<double>((panels.end(panel) - panels.begin(panel)) * panels.end(panel));
  const auto md = static_cast<double>(m), nd = static_cast<double>(n);
  return 2 * (lower * (nd + md) + md * md * nd) * static_cast<double>(iterations);
}

}  // namespace ebb::libmuon
