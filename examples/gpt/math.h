// The few operations the two passes share: products of small matrices and sums of a fixed order.
#pragma once

#include <cstdint>

#include "ebb/libmuon/kernels/kernels.h"

namespace ebb::gpt {

template <typename Real>
struct Matrix {  // row-major, borrowed
  const Real* data;
  std::uint64_t ld;  // elements from one row to the next
  libmuon::Transpose transpose = libmuon::Transpose::no;
};
template <typename Real>
Matrix<Real> transposed(const Real* data, std::uint64_t ld) {
  return {data, ld, libmuon::Transpose::yes};
}

struct Sizes {
  std::uint64_t m, n, k;
};

// C (m x n) = alpha * op(A) (m x k) * op(B) (k x n) + beta * C
inline void multiply(Sizes size, float alpha, Matrix<float> a, Matrix<float> b, float beta,
                     float* c, std::uint64_t ldc) {
  libmuon::gemm(size.m, size.n, size.k, alpha, {a.data, a.ld, a.transpose},
                {b.data, b.ld, b.transpose}, beta, c, ldc);
}
// In double, for the tests of the gradient only: the plain sum.
inline void multiply(Sizes size, double alpha, Matrix<double> a, Matrix<double> b, double beta,
                     double* c, std::uint64_t ldc) {
  const auto at = [](const Matrix<double>& x, std::uint64_t row, std::uint64_t column) {
    return x.transpose == libmuon::Transpose::yes ? x.data[column * x.ld + row]
                                                  : x.data[row * x.ld + column];
  };
  for (std::uint64_t i = 0; i < size.m; ++i)
    for (std::uint64_t j = 0; j < size.n; ++j) {
      double sum = 0;
      for (std::uint64_t l = 0; l < size.k; ++l) sum += at(a, i, l) * at(b, l, j);
      c[i * ldc + j] = alpha * sum + (beta == 0 ? 0.0 : beta * c[i * ldc + j]);
    }
}

// Sum of a[i] * b[i] over eight fixed lanes: the compiler may use vectors without changing a bit.
template <typename Real>
Real dot(const Real* a, const Real* b, std::uint64_t count) {
  Real lane[8] = {};
  std::uint64_t i = 0;
  for (; i + 8 <= count; i += 8)
    for (std::uint64_t j = 0; j < 8; ++j) lane[j] += a[i + j] * b[i + j];
  for (; i < count; ++i) lane[i % 8] += a[i] * b[i];
  return ((lane[0] + lane[4]) + (lane[1] + lane[5])) + ((lane[2] + lane[6]) + (lane[3] + lane[7]));
}

}  // namespace ebb::gpt
