// Newton-Schulz in Q-form on panels fixed by the shape (docs/numerics.md): with A = X X^T,
// Q = aI + bA + cA^2, X <- QX. X lies with its short side as rows, m x n, m <= n. A and Q are
// symmetric: the lower panels are computed and mirrored.
#include <algorithm>
#include <cmath>
#include <new>

#include "ebb/libmuon/kernels/kernels.h"

namespace ebb::libmuon {
namespace {

using formats::align_up;
using formats::div_ceil;

constexpr std::uint64_t kGramPanel = 512;    // columns of X added to A at a time
constexpr std::uint64_t kNormChunk = 65536;  // elements of U whose squares are summed at a time
constexpr std::uint64_t kNormLanes = 16;
constexpr std::uint64_t kTile = 16;       // side of the squares that transposing moves
constexpr std::uint64_t kLdUnit = 16;     // leading dimensions are multiples of this
constexpr std::uint64_t kAlignment = 64;  // bytes; for speed only

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

// Grows, never shrinks; contents are lost when it grows.
class Scratch {
 public:
  Scratch() = default;
  ~Scratch() { release(); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  float* at_least(std::uint64_t bytes) {
    if (bytes > bytes_) {
      release();
      data_ = ::operator new(bytes, std::align_val_t{kAlignment});
      bytes_ = bytes;
    }
    return static_cast<float*>(data_);
  }

 private:
  void release() {
    if (data_ != nullptr) ::operator delete(data_, std::align_val_t{kAlignment});
    data_ = nullptr;
    bytes_ = 0;
  }

  void* data_ = nullptr;
  std::uint64_t bytes_ = 0;
};

// One matrix on its way through the iterations.
class Run {
 public:
  Run(Pool& pool, std::uint64_t m, std::uint64_t n, float* scratch)
      : pool_(pool),
        panels_(m),
        m_(m),
        n_(n),
        x_ld_(leading_dimension(n)),
        a_ld_(leading_dimension(m)),
        x_(scratch),
        y_(x_ + m * x_ld_),
        a_(y_ + m * x_ld_),
        q_(a_ + m * a_ld_) {}

  float* x() { return x_; }
  std::uint64_t x_ld() const { return x_ld_; }
  const Panels& panels() const { return panels_; }

  void iterate(const Coefficients& step) {
    longest_first([&](std::uint64_t panel) { gram(panel); });
    mirror(a_);
    longest_first([&](std::uint64_t panel) { polynomial(step, panel); });
    mirror(q_);
    pool_.run(panels_.count(), [&](std::size_t panel) { product(panel); });
    std::swap(x_, y_);
  }

 private:
  void longest_first(const std::function<void(std::uint64_t)>& job) {
    const std::uint64_t count = panels_.count();
    pool_.run(count, [&](std::size_t index) { job(count - 1 - index); });
  }

  // A's rows of this panel up to the diagonal, over the long side in ascending order.
  void gram(std::uint64_t panel) {
    const std::uint64_t first = panels_.begin(panel), end = panels_.end(panel);
    for (std::uint64_t k = 0; k < n_; k += kGramPanel)
      gemm(end - first, end, std::min(kGramPanel, n_ - k), 1.0f, {x_ + first * x_ld_ + k, x_ld_},
           {x_ + k, x_ld_, Transpose::yes}, k == 0 ? 0.0f : 1.0f, a_ + first * a_ld_, a_ld_);
  }

  void polynomial(const Coefficients& step, std::uint64_t panel) {
    const std::uint64_t first = panels_.begin(panel), end = panels_.end(panel);
    gemm(end - first, end, m_, step.c, {a_ + first * a_ld_, a_ld_}, {a_, a_ld_}, 0.0f,
         q_ + first * a_ld_, a_ld_);
    for (std::uint64_t row = first; row < end; ++row) {
      add_scaled_row(a_ + row * a_ld_, step.b, end, q_ + row * a_ld_);
      q_[row * a_ld_ + row] += step.a;
    }
  }

  void product(std::uint64_t panel) {
    const std::uint64_t first = panels_.begin(panel), end = panels_.end(panel);
    gemm(end - first, n_, m_, 1.0f, {q_ + first * a_ld_, a_ld_}, {x_, x_ld_}, 0.0f,
         y_ + first * x_ld_, x_ld_);
  }

  // Right of the diagonal panels := the transpose of what lies below them.
  void mirror(float* square) {
    pool_.run(panels_.count(), [&](std::size_t panel) {
      const std::uint64_t first = panels_.begin(panel), end = panels_.end(panel);
      transpose(square + end * a_ld_ + first, a_ld_, m_ - end, end - first,
                square + first * a_ld_ + end, a_ld_);
    });
  }

  Pool& pool_;
  Panels panels_;
  std::uint64_t m_, n_, x_ld_, a_ld_;
  float *x_, *y_, *a_, *q_;
};

}  // namespace

struct NewtonSchulz::Impl {
  MuonSpec spec;
  Pool& pool;
  Scratch scratch;

  double norm(std::span<const float> u) {
    std::vector<double> sums(div_ceil(u.size(), kNormChunk));
    pool.run(sums.size(), [&](std::size_t chunk) {
      const std::uint64_t first = chunk * kNormChunk;
      sums[chunk] = sum_of_squares(u.data() + first, std::min(kNormChunk, u.size() - first));
    });
    double total = 0;
    for (const double sum : sums) total += sum;
    return std::sqrt(total);
  }

  double divisor(double norm) const {
    return spec.eps_rule == EpsRule::add ? norm + spec.eps : std::max(norm, spec.eps);
  }
};

NewtonSchulz::NewtonSchulz(const MuonSpec& spec, Pool& pool)
    : impl_(new Impl{.spec = spec, .pool = pool, .scratch = {}}) {}
NewtonSchulz::~NewtonSchulz() = default;

std::uint64_t NewtonSchulz::scratch_bytes(std::uint64_t rows, std::uint64_t cols) {
  const std::uint64_t m = std::min(rows, cols), n = std::max(rows, cols);
  return sizeof(float) * 2 * m * (leading_dimension(n) + leading_dimension(m));
}

void NewtonSchulz::run(std::uint64_t rows, std::uint64_t cols, std::span<const float> u,
                       std::span<float> o) {
  EBB_CHECK(u.size() == rows * cols && o.size() == u.size());
  const double norm = impl_->norm(u);
  if (norm == 0 || !std::isfinite(norm)) {
    std::fill(o.begin(), o.end(), 0.0f);
    return;
  }
  const double factor = 1 / impl_->divisor(norm);
  const bool tall = rows > cols;
  const std::uint64_t m = std::min(rows, cols), n = std::max(rows, cols);
  Run run(impl_->pool, m, n, impl_->scratch.at_least(scratch_bytes(rows, cols)));

  // Cut along the short side: a panel of X is a panel of rows, or of columns, of U.
  const auto for_panels = [&](const std::function<void(std::uint64_t, std::uint64_t)>& job) {
    const Panels& panels = run.panels();
    impl_->pool.run(panels.count(),
                    [&](std::size_t panel) { job(panels.begin(panel), panels.end(panel)); });
  };
  for_panels([&](std::uint64_t first, std::uint64_t end) {
    float* const x = run.x() + first * run.x_ld();
    if (tall) transpose(u.data() + first, cols, n, end - first, x, run.x_ld());
    for (std::uint64_t row = 0; row < end - first; ++row) {
      if (!tall) std::copy_n(u.data() + (first + row) * cols, n, x + row * run.x_ld());
      scale_row(factor, n, x + row * run.x_ld());
    }
  });
  for (const Coefficients& step : impl_->spec.iterations) run.iterate(step);
  for_panels([&](std::uint64_t first, std::uint64_t end) {
    const float* const x = run.x() + first * run.x_ld();
    if (tall) return transpose(x, run.x_ld(), end - first, n, o.data() + first, cols);
    for (std::uint64_t row = 0; row < end - first; ++row)
      std::copy_n(x + row * run.x_ld(), n, o.data() + (first + row) * cols);
  });
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
