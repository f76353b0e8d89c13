// What Newton-Schulz needs beside products: norms to the host's bits, U to X and back, roundings.
#include "plugins/cuda/elements.cuh"
#include "plugins/cuda/precision.cuh"

namespace ebb::cuda {
namespace {

using libmuon::PlainMatrices;
using libmuon::Precision;

constexpr std::uint64_t kNormChunk = 65536;  // as on the host: its order of additions is kept
constexpr unsigned kNormLanes = 16;
constexpr unsigned kSide = 32;  // of the squares that transposing moves
constexpr unsigned kHigh = 8;

__host__ __device__ std::uint64_t chunks_a_run(const PlainMatrices& of) {
  return (of.run * of.cols + kNormChunk - 1) / kNormChunk;
}

// U as Newton-Schulz takes it, before it is divided.
__device__ float taken(const PlainMatrices& of, float value) {
  return rounded(libmuon::norm_precision(of.spec), rounded(of.spec.handed, value));
}

// Sixteen threads a chunk, each every sixteenth element in ascending order; then lane by lane.
__global__ void __launch_bounds__(kThreads) sums_kernel(PlainMatrices of, double* sums) {
  const std::uint64_t thread = std::uint64_t{blockIdx.x} * kThreads + threadIdx.x;
  const std::uint64_t lane = thread % kNormLanes, number = thread / kNormLanes;
  const std::uint64_t per_run = chunks_a_run(of), per_matrix = per_run * of.runs;
  double sum = 0;
  if (number < per_matrix * of.count) {
    const std::uint64_t matrix = number / per_matrix, chunk = number % per_matrix;
    const std::uint64_t first = chunk % per_run * kNormChunk;
    const std::uint64_t left = of.run * of.cols - first;
    const std::uint64_t count = left < kNormChunk ? left : kNormChunk;
    const float* const u =
        of.u + matrix * of.span() + chunk / per_run * of.stride * of.cols + first;
#pragma unroll 8
    for (std::uint64_t i = lane; i < count; i += kNormLanes) {
      const double value = static_cast<double>(taken(of, u[i]));
      sum += value * value;
    }
  }
  double total = 0;
  for (unsigned other = 0; other < kNormLanes; ++other)
    total += __shfl_sync(0xffffffffu, sum, other, kNormLanes);
  if (lane == 0 && number < per_matrix * of.count) sums[number] = total;
}

__global__ void decide_kernel(PlainMatrices of, const double* sums, Normalizer* normalizers) {
  const std::uint64_t matrix = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (matrix >= of.count) return;
  const std::uint64_t per_matrix = chunks_a_run(of) * of.runs;
  double total = 0;
  for (std::uint64_t i = 0; i < per_matrix; ++i) total += sums[matrix * per_matrix + i];
  const double norm = sqrt(total);
  normalizers[matrix] = {libmuon::normalizer(of.spec, norm), norm != 0 && isfinite(norm) ? 1u : 0u};
  if (!isfinite(norm)) tell(of, matrix);
}

struct Place {
  std::uint64_t row, col;
};

__host__ __device__ std::uint64_t squares_of(std::uint64_t side) {
  return (side + kSide - 1) / kSide;
}

// Where the square of this block begins. Squares are numbered by x alone, row by row: y ends at
// 65,535, which a tall matrix passes.
__device__ Place square_of(std::uint64_t cols) {
  const std::uint64_t across = squares_of(cols);
  return {blockIdx.x / across * kSide, blockIdx.x % across * kSide};
}

// Moves squares between U and X, transposed where U is tall, by way of shared memory: both are read
// and written along their rows. load(place) is an element, store(place, element) moves it on.
template <typename Load, typename Store>
__device__ void through_square(Place from, Place rows_cols_of_from, bool transposed,
                               const Load& load, const Store& store) {
  __shared__ float square[kSide][kSide + 1];
  for (unsigned r = threadIdx.y; r < kSide; r += kHigh) {
    const Place at = {from.row + r, from.col + threadIdx.x};
    if (at.row < rows_cols_of_from.row && at.col < rows_cols_of_from.col)
      square[r][threadIdx.x] = load(at);
  }
  __syncthreads();
  for (unsigned r = threadIdx.y; r < kSide; r += kHigh) {
    const unsigned row = transposed ? threadIdx.x : r, col = transposed ? r : threadIdx.x;
    const Place at = {from.row + row, from.col + col};
    if (at.row < rows_cols_of_from.row && at.col < rows_cols_of_from.col)
      store(at, square[row][col]);
  }
}

__device__ std::uint64_t u_index(const PlainMatrices& of, Place at) {
  return blockIdx.z * of.span() + place_of(of, at.row) * of.cols + at.col;
}
// Of X, which has the short side as rows.
__device__ std::uint64_t x_index(const Batch& x, Place at, bool tall) {
  const Place here = tall ? Place{at.col, at.row} : at;
  return blockIdx.z * x.step + here.row * x.ld + here.col;
}

template <Precision kPrecision>
__global__ void load_kernel(PlainMatrices of, const Normalizer* normalizers, Batch x) {
  const bool tall = of.rows() > of.cols;
  const Normalizer by = normalizers[blockIdx.z];
  auto* const to = static_cast<typename Stored<kPrecision>::type*>(x.data);
  through_square(
      square_of(of.cols), {of.rows(), of.cols}, tall,
      [&](Place at) {
        const double value = static_cast<double>(taken(of, of.u[u_index(of, at)]));
        if (by.alive == 0) return 0.0f;
        return rounded(libmuon::norm_precision(of.spec), static_cast<float>(value * by.factor));
      },
      [&](Place at, float value) {
        to[x_index(x, at, tall)] = Stored<kPrecision>::narrow(libmuon::rounded<kPrecision>(value));
      });
}

// From X, so a square of X is read, and written as one of U.
template <Precision kPrecision>
__global__ void store_kernel(PlainMatrices of, const Normalizer* normalizers, Batch x) {
  const bool tall = of.rows() > of.cols;
  const bool alive = normalizers[blockIdx.z].alive != 0;
  const auto* const from = static_cast<const typename Stored<kPrecision>::type*>(x.data);
  through_square(
      square_of(x.cols), {x.rows, x.cols}, tall,
      [&](Place at) {
        const float value =
            Stored<kPrecision>::widen(from[blockIdx.z * x.step + at.row * x.ld + at.col]);
        const float handed = alive ? rounded(of.spec.handed_back, value) : 0.0f;
        if (!isfinite(handed)) tell(of, blockIdx.z);
        return handed;
      },
      [&](Place at, float value) { of.u[u_index(of, tall ? Place{at.col, at.row} : at)] = value; });
}

// Of rows x cols, by (x, y), and a matrix of the batch by z: body(index in `from`, in `to`, place).
template <typename Body>
__device__ void for_places(const Batch& from, const Batch& to, const Body& body) {
  for (std::uint64_t row = blockIdx.y; row < from.rows; row += gridDim.y)
    for (std::uint64_t col = std::uint64_t{blockIdx.x} * kThreads + threadIdx.x; col < from.cols;
         col += std::uint64_t{gridDim.x} * kThreads)
      body(blockIdx.z * from.step + row * from.ld + col, blockIdx.z * to.step + row * to.ld + col,
           Place{row, col});
}

template <Precision kPrecision>
using Type = typename Stored<kPrecision>::type;

template <Precision kPrecision>
__global__ void __launch_bounds__(kThreads) scale_kernel(Batch from, float factor, Batch to) {
  for_places(from, to, [&](std::uint64_t i, std::uint64_t j, Place) {
    const float value = Stored<kPrecision>::widen(static_cast<Type<kPrecision>*>(from.data)[i]);
    static_cast<Type<kPrecision>*>(to.data)[j] =
        Stored<kPrecision>::narrow(libmuon::rounded<kPrecision>(factor * value));
  });
}

template <Precision kPrecision>
__global__ void __launch_bounds__(kThreads) add_scaled_kernel(Batch from, float factor, Batch to) {
  for_places(from, to, [&](std::uint64_t i, std::uint64_t j, Place) {
    auto& sum = static_cast<Type<kPrecision>*>(to.data)[j];
    const float value = Stored<kPrecision>::widen(static_cast<Type<kPrecision>*>(from.data)[i]);
    sum = Stored<kPrecision>::narrow(libmuon::rounded<kPrecision>(
        Stored<kPrecision>::widen(sum) + libmuon::rounded<kPrecision>(factor * value)));
  });
}

template <Precision kPrecision>
__global__ void __launch_bounds__(kThreads) identity_kernel(Batch from, float value, Batch to) {
  for_places(from, to, [&](std::uint64_t i, std::uint64_t j, Place at) {
    Type<kPrecision> element = static_cast<Type<kPrecision>*>(from.data)[i];
    if (at.row == at.col)
      element = Stored<kPrecision>::narrow(
          libmuon::rounded<kPrecision>(Stored<kPrecision>::widen(element) + value));
    static_cast<Type<kPrecision>*>(to.data)[j] = element;
  });
}

// A square below the diagonal becomes its mirror image above; on the diagonal its lower half does.
template <Precision kPrecision>
__global__ void mirror_kernel(Batch of) {
  const Place square = square_of(of.cols);
  if (square.col > square.row) return;
  auto* const data = static_cast<Type<kPrecision>*>(of.data) + blockIdx.z * of.step;
  through_square(
      square, {of.rows, of.cols}, true,
      [&](Place at) { return Stored<kPrecision>::widen(data[at.row * of.ld + at.col]); },
      [&](Place at, float value) {
        if (at.row > at.col) data[at.col * of.ld + at.row] = Stored<kPrecision>::narrow(value);
      });
}

dim3 squares_of(std::uint64_t rows, std::uint64_t cols, std::uint64_t count) {
  return {static_cast<unsigned>(squares_of(rows) * squares_of(cols)), 1,
          static_cast<unsigned>(count)};
}

unsigned blocks_of(std::uint64_t threads, unsigned a_block) {
  return static_cast<unsigned>((threads + a_block - 1) / a_block);
}

dim3 rows_of(const Batch& batch) {
  const std::uint64_t wide = (batch.cols + kThreads - 1) / kThreads;
  const std::uint64_t high = batch.rows < 1024 ? batch.rows : 1024;
  return {static_cast<unsigned>(wide), static_cast<unsigned>(high),
          static_cast<unsigned>(batch.count)};
}

constexpr dim3 kSquare = {kSide, kHigh, 1};

}  // namespace

std::uint64_t sums_of(const PlainMatrices& matrices) {
  return chunks_a_run(matrices) * matrices.runs * matrices.count;
}

cudaError_t launch_norms(const PlainMatrices& matrices, double* sums, Normalizer* normalizers,
                         cudaStream_t stream) {
  const std::uint64_t threads = sums_of(matrices) * kNormLanes;
  constexpr unsigned kDeciders = 32;
  const cudaError_t summed =
      start(sums_kernel, blocks_of(threads, kThreads), kThreads, 0, stream, matrices, sums);
  return summed != cudaSuccess ? summed
                               : start(decide_kernel, blocks_of(matrices.count, kDeciders),
                                       kDeciders, 0, stream, matrices, sums, normalizers);
}

cudaError_t launch_load(const PlainMatrices& matrices, const Normalizer* normalizers,
                        const Batch& x, cudaStream_t stream) {
  return with_precision(x.precision, [&](auto precision) {
    return start(load_kernel<precision()>,
                 squares_of(matrices.rows(), matrices.cols, matrices.count), kSquare, 0, stream,
                 matrices, normalizers, x);
  });
}

cudaError_t launch_store(const PlainMatrices& matrices, const Normalizer* normalizers,
                         const Batch& x, cudaStream_t stream) {
  return with_precision(x.precision, [&](auto precision) {
    return start(store_kernel<precision()>, squares_of(x.rows, x.cols, x.count), kSquare, 0, stream,
                 matrices, normalizers, x);
  });
}

cudaError_t launch_scale(const Batch& from, float factor, const Batch& to, cudaStream_t stream) {
  return with_precision(from.precision, [&](auto precision) {
    return start(scale_kernel<precision()>, rows_of(from), kThreads, 0, stream, from, factor, to);
  });
}

cudaError_t launch_add_scaled(const Batch& from, float factor, const Batch& to,
                              cudaStream_t stream) {
  return with_precision(from.precision, [&](auto precision) {
    return start(add_scaled_kernel<precision()>, rows_of(from), kThreads, 0, stream, from, factor,
                 to);
  });
}

cudaError_t launch_identity(const Batch& from, float value, const Batch& to, cudaStream_t stream) {
  return with_precision(from.precision, [&](auto precision) {
    return start(identity_kernel<precision()>, rows_of(from), kThreads, 0, stream, from, value, to);
  });
}

cudaError_t launch_mirror(const Batch& of, cudaStream_t stream) {
  return with_precision(of.precision, [&](auto precision) {
    return start(mirror_kernel<precision()>, squares_of(of.rows, of.cols, of.count), kSquare, 0,
                 stream, of);
  });
}

}  // namespace ebb::cuda
