// Newton-Schulz by the textbook, in fp64.
#pragma once

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "ebb/libmuon/spec/spec.h"

namespace ebb::libmuon::testing {

// The textbook in fp64: C = A B with A m x k, B k x n, dense.
inline std::vector<double> product(std::size_t m, std::size_t k, std::size_t n,
                                   const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> c(m * n);
  for (std::size_t i = 0; i < m; ++i)
    for (std::size_t l = 0; l < k; ++l)
      for (std::size_t j = 0; j < n; ++j) c[i * n + j] += a[i * k + l] * b[l * n + j];
  return c;
}

template <typename T>
std::vector<T> transposed(std::size_t rows, std::size_t cols, const std::vector<T>& from) {
  std::vector<T> to(from.size());
  for (std::size_t r = 0; r < rows; ++r)
    for (std::size_t c = 0; c < cols; ++c) to[c * rows + r] = from[r * cols + c];
  return to;
}

// X before the first iteration: its short side as rows.
inline std::vector<double> normalised(const MuonSpec& spec, std::size_t rows, std::size_t cols,
                                      const std::vector<float>& u) {
  std::vector<double> x(u.begin(), u.end());
  if (rows > cols) x = transposed(rows, cols, x);
  double norm = 0;
  for (const double value : x) norm += value * value;
  norm = std::sqrt(norm) * spec.norm_factor;
  norm = spec.eps_rule == EpsRule::add ? norm + spec.eps : std::max(norm, spec.eps);
  for (double& value : x) value /= norm;
  return x;
}

inline std::vector<double> oracle(const MuonSpec& spec, std::size_t rows, std::size_t cols,
                                  const std::vector<float>& u) {
  std::vector<double> x = normalised(spec, rows, cols, u);
  const std::size_t m = std::min(rows, cols), n = std::max(rows, cols);
  for (const Coefficients& step : spec.iterations) {
    const auto a = product(m, n, m, x, transposed(m, n, x));
    const auto aa = product(m, m, m, a, a);
    std::vector<double> q(m * m);
    for (std::size_t i = 0; i < q.size(); ++i)
      q[i] = static_cast<double>(step.b) * a[i] + static_cast<double>(step.c) * aa[i];
    for (std::size_t i = 0; i < m; ++i) q[i * m + i] += static_cast<double>(step.a);
    x = product(m, m, n, q, x);
  }
  return rows > cols ? transposed(n == rows ? cols : rows, n, x) : x;
}

// The number of tf32 that is nearest, by arithmetic: 11 significant bits, ties to even.
inline double in_tf32(double value) {
  if (value == 0 || !std::isfinite(value)) return value;
  const double unit = std::ldexp(1.0, std::max(std::ilogb(value), -126) - 10);
  const double near = std::nearbyint(value / unit) * unit;
  return std::abs(near) < 0x1p128 ? near : std::copysign(HUGE_VAL, value);
}

inline std::vector<double> product_of_tf32(std::size_t m, std::size_t k, std::size_t n,
                                           std::vector<double> a, std::vector<double> b) {
  for (double& value : a) value = in_tf32(value);
  for (double& value : b) value = in_tf32(value);
  return product(m, k, n, a, b);
}

// A whole Newton-Schulz with such products, all else in fp64.
class OracleOfTf32 {
 public:
  using Matrix = std::vector<double>;

  OracleOfTf32(const MuonSpec& spec, std::size_t rows, std::size_t cols)
      : spec_(spec), rows_(rows), cols_(cols), m_(std::min(rows, cols)), n_(std::max(rows, cols)) {}

  Matrix of(const std::vector<float>& u) const {
    Matrix x = normalised(spec_, rows_, cols_, u);
    const bool gram = spec_.form == Form::gram && rows_ != cols_;
    x = gram ? gram_form(std::move(x)) : standard_form(std::move(x));
    return rows_ > cols_ ? transposed(cols_, rows_, x) : x;
  }

 private:
  Matrix square(const Matrix& a, const Matrix& b) const {
    return product_of_tf32(m_, m_, m_, a, b);
  }
  Matrix gram_of(const Matrix& x) const {
    return product_of_tf32(m_, n_, m_, x, transposed(m_, n_, x));
  }
  // factor from + alpha made
  static Matrix sum(double factor, const Matrix& from, double alpha, Matrix made) {
    for (std::size_t i = 0; i < made.size(); ++i) made[i] = factor * from[i] + alpha * made[i];
    return made;
  }

  Matrix standard_form(Matrix x) const {
    for (const auto [a, b, c] : spec_.iterations) {
      const Matrix gram = gram_of(x);
      const Matrix q = sum(double{b}, gram, double{c}, square(gram, gram));
      x = sum(double{a}, x, 1, product_of_tf32(m_, m_, n_, q, x));
    }
    return x;
  }
  Matrix gram_form(Matrix x) const {
    Matrix r = gram_of(x), q;
    for (std::uint32_t i = 0; i < spec_.iterations.size(); ++i) {
      const double a{spec_.iterations[i].a}, b{spec_.iterations[i].b}, c{spec_.iterations[i].c};
      if (std::ranges::find(spec_.restarts, i) != spec_.restarts.end()) {
        x = product_of_tf32(m_, m_, n_, q, x);
        r = gram_of(x);
        q.clear();
      }
      const Matrix z = sum(b, r, c, square(r, r));
      if (!q.empty()) {
        q = sum(a, q, 1, square(z, q));
      } else {
        q = z;
        for (std::size_t place = 0; place < q.size(); place += m_ + 1) q[place] += a;
      }
      const Matrix t = sum(a, r, 1, square(z, r));
      r = sum(a, t, 1, square(z, t));
    }
    return product_of_tf32(m_, m_, n_, q, x);
  }

  const MuonSpec& spec_;
  const std::size_t rows_, cols_, m_, n_;
};

}  // namespace ebb::libmuon::testing
