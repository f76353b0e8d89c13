// O by its second moments (docs/numerics.md), with the host's sums in the host's order.
#include "plugins/cuda/elements.cuh"
#include "plugins/cuda/precision.cuh"

namespace ebb::cuda {
namespace {

using libmuon::PlainMatrices;
using libmuon::PlainNormalise;

constexpr unsigned kLanes = 16;  // of a row's sum
constexpr unsigned kTogether = 1024;

__host__ __device__ std::uint64_t sides(const PlainNormalise& of) {
  return of.of_rows != 0 ? of.o.rows() : of.o.cols;
}
__device__ float* row_of(const PlainMatrices& of, std::uint64_t matrix, std::uint64_t row) {
  return of.u + matrix * of.span() + place_of(of, row) * of.cols;
}
__device__ float& moment_of(const PlainNormalise& of, std::uint64_t matrix, std::uint64_t i) {
  const std::uint64_t each = of.v.elems / of.o.count;
  return static_cast<float*>(of.v.data)[matrix * each + (of.of_rows != 0 ? place_of(of.o, i) : i)];
}
// What the i-th row or column is multiplied with, by its moment.
__device__ double step_of(const PlainNormalise& of, std::uint64_t matrix, std::uint64_t i) {
  const auto v = static_cast<double>(moment_of(of, matrix, i));
  return libmuon::moment_step(of.factors, sqrt(libmuon::under_root(of.factors, v)));
}
__device__ double square(float value) {
  return static_cast<double>(value) * static_cast<double>(value);
}

// Sixteen threads a row, each every sixteenth element in ascending order; then lane by lane.
__global__ void __launch_bounds__(kThreads) rows_kernel(PlainMatrices of, double* sums) {
  const std::uint64_t thread = std::uint64_t{blockIdx.x} * kThreads + threadIdx.x;
  const std::uint64_t lane = thread % kLanes, number = thread / kLanes;
  const bool there = number < of.rows() * of.count;
  double sum = 0;
  if (there) {
    const float* const row = row_of(of, number / of.rows(), number % of.rows());
#pragma unroll 8
    for (std::uint64_t i = lane; i < of.cols; i += kLanes) sum += square(row[i]);
  }
  double total = 0;
  for (unsigned other = 0; other < kLanes; ++other)
    total += __shfl_sync(0xffffffffu, sum, other, kLanes);
  if (lane == 0 && there) sums[number] = total;
}

// A thread a column, from the first row to the last.
__global__ void __launch_bounds__(kThreads) cols_kernel(PlainMatrices of, double* sums) {
  const std::uint64_t col = std::uint64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (col >= of.cols) return;
  double sum = 0;
#pragma unroll 16
  for (std::uint64_t row = 0; row < of.rows(); ++row)
    sum += square(row_of(of, blockIdx.y, row)[col]);
  sums[blockIdx.y * of.cols + col] = sum;
}

// Both sums of a matrix, in ascending order: two threads add what all have made.
struct Norms {
  double before, behind;
};
__device__ Norms norms_of(const PlainNormalise& of, std::uint64_t matrix, const double* sums) {
  __shared__ double terms[2][kTogether];
  __shared__ double totals[2];
  const unsigned which = threadIdx.x / 32;
  const bool adds = threadIdx.x % 32 == 0 && which < 2;
  double total = 0;
  for (std::uint64_t first = 0; first < sides(of); first += kTogether) {
    const std::uint64_t i = first + threadIdx.x;
    if (i < sides(of)) {
      const double step = step_of(of, matrix, i);
      terms[0][threadIdx.x] = sums[i];
      terms[1][threadIdx.x] = sums[i] * step * step;
    }
    __syncthreads();
    const std::uint64_t left = sides(of) - first;
    const auto count = static_cast<unsigned>(left < kTogether ? left : kTogether);
    if (adds)
      for (unsigned k = 0; k < count; ++k) total += terms[which][k];
    __syncthreads();
  }
  if (adds) totals[which] = total;
  __syncthreads();
  return {totals[0], totals[1]};
}

// The new moments, and what each row or column is multiplied with. A block a matrix.
__global__ void __launch_bounds__(kTogether)
    decide_kernel(PlainNormalise of, const double* all_sums, float* all_factors) {
  const std::uint64_t matrix = blockIdx.x, count = sides(of);
  const double* const sums = all_sums + matrix * count;
  const auto along = static_cast<double>(of.of_rows != 0 ? of.o.cols : of.o.rows());
  for (std::uint64_t i = threadIdx.x; i < count; i += kTogether) {
    float& v = moment_of(of, matrix, i);
    v = libmuon::next_moment(of.factors, sums[i], along, v);
  }
  __syncthreads();
  const Norms norms = norms_of(of, matrix, sums);
  const double ratio = libmuon::kept_norm(of.factors, sqrt(norms.before), sqrt(norms.behind));
  for (std::uint64_t i = threadIdx.x; i < count; i += kTogether)
    all_factors[matrix * count + i] =
        rounded(of.o.spec.precision, static_cast<float>(step_of(of, matrix, i) * ratio));
}

// A matrix by z, its rows by y.
__global__ void __launch_bounds__(kThreads)
    apply_kernel(PlainNormalise of, const float* all_factors) {
  const std::uint64_t matrix = blockIdx.z;
  const float* const factors = all_factors + matrix * sides(of);
  for (std::uint64_t row = blockIdx.y; row < of.o.rows(); row += gridDim.y) {
    float* const o = row_of(of.o, matrix, row);
    for (std::uint64_t col = std::uint64_t{blockIdx.x} * kThreads + threadIdx.x; col < of.o.cols;
         col += std::uint64_t{gridDim.x} * kThreads) {
      const float moved = o[col] * factors[of.of_rows != 0 ? row : col];
      o[col] = rounded(of.o.spec.handed_back, rounded(of.o.spec.precision, moved));
      if (!isfinite(o[col])) tell(of.o, matrix);
    }
  }
}

}  // namespace

std::uint64_t sides_of(const PlainNormalise& range) { return sides(range) * range.o.count; }

cudaError_t launch_normalise(const PlainNormalise& range, double* sums, float* factors,
                             cudaStream_t stream) {
  const auto count = static_cast<unsigned>(range.o.count);
  const unsigned wide = blocks_of(range.o.cols);
  cudaError_t error = range.of_rows != 0
                          ? start(rows_kernel, blocks_of(sides_of(range) * kLanes), kThreads, 0,
                                  stream, range.o, sums)
                          : start(cols_kernel, {wide, count}, kThreads, 0, stream, range.o, sums);
  if (error == cudaSuccess)
    error = start(decide_kernel, count, kTogether, 0, stream, range, sums, factors);
  const auto high = static_cast<unsigned>(range.o.rows() < 1024 ? range.o.rows() : 1024);
  if (error == cudaSuccess)
    error = start(apply_kernel, {wide, high, count}, kThreads, 0, stream, range, factors);
  return error;
}

}  // namespace ebb::cuda
