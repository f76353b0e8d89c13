// Newton-Schulz by the textbook, in fp64.
#pragma once

#include <algorithm>
#include <cmath>
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

inline std::vector<double> oracle(const MuonSpec& spec, std::size_t rows, std::size_t cols,
                                  const std::vector<float>& u) {
  std::vector<double> x(u.begin(), u.end());
  if (rows > cols) x = transposed(rows, cols, x);
  const std::size_t m = std::min(rows, cols), n = std::max(rows, cols);
  double norm = 0;
  for (const double value : x) norm += value * value;
  norm = std::sqrt(norm) * spec.norm_factor;
  norm = spec.eps_rule == EpsRule::add ? norm + spec.eps : std::max(norm, spec.eps);
  for (double& value : x) value /= norm;
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

}  // namespace ebb::libmuon::testing
