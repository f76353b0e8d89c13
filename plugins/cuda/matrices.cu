// What Newton-Schulz needs beside products: norms to the host's bits, U to X and back, roundings.
#include "plugins/cuda/elements.cuh"
#include "plugins/cuda/precision.cuh"

namespace ebb::cuda {
namespace {

using libmuon::PlainMatrices;
using libmuon::Precision;

constexpr std::uint64_t kNormChunk = 8192;  // as on the host: its order of additions is kept
constexpr unsigned kNormLanes = 16;
constexpr unsigned kAhead = 32;  // elements of a lane that are under way: only its additions wait
constexpr unsigned kWarp = 32;
constexpr unsigned kSide = 64;  // of the squares that transposing moves
constexpr unsigned kHigh = 4;
constexpr unsigned kOfThread = kSide / kHigh;  // elements of a square

__host__ __device__ std::uint64_t chunks_a_run(const PlainMatrices& of) {
  return (of.run * of.cols + kNormChunk - 1) / kNormChunk;
}

// Once for all of a thread's elements is what they are rounded to decided.
template <unsigned kCount>
__device__ void round_all(Precision precision, float (&values)[kCount]) {
  if (precision == Precision::bf16) {
#pragma unroll
    for (unsigned k = 0; k < kCount; ++k) values[k] = libmuon::rounded<Precision::bf16>(values[k]);
  } else if (precision == Precision::fp16) {
#pragma unroll
    for (unsigned k = 0; k < kCount; ++k) values[k] = libmuon::rounded<Precision::fp16>(values[k]);
  }
}

// U as Newton-Schulz takes it, before it is divided.
template <unsigned kCount>
__device__ void take(const PlainMatrices& of, float (&values)[kCount]) {
  round_all(of.spec.handed, values);
  round_all(libmuon::norm_precision(of.spec), values);
}

// Every sixteenth element from `first` on, zeros behind the end: they change no sum.
__device__ void load_lane(const float* u, std::uint64_t first, std::uint64_t count,
                          float (&values)[kAhead]) {
#pragma unroll
  for (unsigned k = 0; k < kAhead; ++k) {
    const std::uint64_t i = first + k * kNormLanes;
    values[k] = i < count ? u[i] : 0.0f;
  }
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
    float next[kAhead];
    load_lane(u, lane, count, next);
    for (std::uint64_t i = lane; i < count; i += kAhead * kNormLanes) {
      float values[kAhead];
#pragma unroll
      for (unsigned k = 0; k < kAhead; ++k) values[k] = next[k];
      load_lane(u, i + kAhead * kNormLanes, count, next);
      take(of, values);
#pragma unroll
      for (unsigned k = 0; k < kAhead; ++k) {
        const auto value = static_cast<double>(values[k]);
        sum += value * value;
      }
    }
  }
  double total = 0;
  for (unsigned other = 0; other < kNormLanes; ++other)
    total += __shfl_sync(0xffffffffu, sum, other, kNormLanes);
  if (lane == 0 && number < per_matrix * of.count) sums[number] = total;
}

// A warp a matrix: its lanes load side by side what is added in ascending order.
__global__ void decide_kernel(PlainMatrices of, const double* sums, Normalizer* normalizers) {
  const std::uint64_t matrix = blockIdx.x;
  const std::uint64_t per_matrix = chunks_a_run(of) * of.runs;
  double total = 0;
  for (std::uint64_t first = 0; first < per_matrix; first += kWarp) {
    const std::uint64_t i = first + threadIdx.x;
    const double mine = i < per_matrix ? sums[matrix * per_matrix + i] : 0.0;
#pragma unroll
    for (unsigned lane = 0; lane < kWarp; ++lane) total += __shfl_sync(0xffffffffu, mine, lane);
  }
  if (threadIdx.x != 0) return;
  const double norm = sqrt(total);
  normalizers[matrix] = {libmuon::normalizer(of.spec, norm), norm != 0 && isfinite(norm) ? 1u : 0u};
  if (!isfinite(norm)) tell(of, matrix);
}

__host__ __device__ std::uint64_t squares_of(std::uint64_t side) {
  return (side + kSide - 1) / kSide;
}

// A block's square of a matrix: where it begins, and how much of it there is.
struct Square {
  std::uint64_t row, col;
  unsigned rows, cols;
};

// Squares are numbered by x alone, row by row: y ends at 65,535, which a tall matrix passes.
__device__ Square square_of(std::uint64_t rows, std::uint64_t cols) {
  const auto across = static_cast<unsigned>(squares_of(cols));
  const std::uint64_t row = std::uint64_t{blockIdx.x / across} * kSide;
  const std::uint64_t col = std::uint64_t{blockIdx.x % across} * kSide;
  const auto here = [](std::uint64_t left) {
    return static_cast<unsigned>(left < kSide ? left : kSide);
  };
  return {row, col, here(rows - row), here(cols - col)};
}

// Where elements of a square lie, transposed or not.
template <typename T>
struct Lying {
  T* first;
  unsigned row, col;  // from one to the next
  __device__ Lying(T* matrix, std::uint64_t ld, const Square& square, bool transposed)
      : first(matrix + (transposed ? square.col * ld + square.row : square.row * ld + square.col)),
        row(transposed ? 1 : static_cast<unsigned>(ld)),
        col(transposed ? static_cast<unsigned>(ld) : 1) {}
  __device__ T& at(unsigned r, unsigned c) const {
    return first[std::uint64_t{r} * row + std::uint64_t{c} * col];
  }
};

// Moves a square between U and X, transposed where U is tall, by way of shared memory: both are
// read and written along their rows. load(row, column) is an element, change(all of a thread's)
// what becomes of them, store(row, column, element) moves one on. All loads come before the first
// is needed.
template <typename Load, typename Change, typename Store>
__device__ void through(const Square& square, bool transposed, const Load& load,
                        const Change& change, const Store& store) {
  __shared__ float elements[kSide][kSide + 1];
  float values[kOfThread] = {};
#pragma unroll
  for (unsigned k = 0; k < kOfThread; ++k) {
    const unsigned row = threadIdx.y + k * kHigh, col = threadIdx.x;
    if (row < square.rows && col < square.cols) values[k] = load(row, col);
  }
  change(values);
#pragma unroll
  for (unsigned k = 0; k < kOfThread; ++k)
    elements[threadIdx.y + k * kHigh][threadIdx.x] = values[k];
  __syncthreads();
#pragma unroll
  for (unsigned k = 0; k < kOfThread; ++k) {
    const unsigned r = threadIdx.y + k * kHigh;
    const unsigned row = transposed ? threadIdx.x : r, col = transposed ? r : threadIdx.x;
    if (row < square.rows && col < square.cols) store(row, col, elements[row][col]);
  }
}

__device__ float& u_at(const PlainMatrices& of, std::uint64_t row, std::uint64_t col) {
  return of.u[blockIdx.z * of.span() + place_of(of, row) * of.cols + col];
}

template <Precision kPrecision>
using Type = typename Stored<kPrecision>::type;

template <Precision kPrecision>
__global__ void load_kernel(PlainMatrices of, const Normalizer* normalizers, Batch x) {
  const bool tall = of.rows() > of.cols;
  const Normalizer by = normalizers[blockIdx.z];
  const Square square = square_of(of.rows(), of.cols);
  const Lying to(static_cast<Type<kPrecision>*>(x.data) + blockIdx.z * x.step, x.ld, square, tall);
  through(
      square, tall,
      [&](unsigned row, unsigned col) { return u_at(of, square.row + row, square.col + col); },
      [&](float(&values)[kOfThread]) {
        take(of, values);
#pragma unroll
        for (float& value : values)
          value = by.alive != 0 ? static_cast<float>(static_cast<double>(value) * by.factor) : 0.0f;
        round_all(libmuon::norm_precision(of.spec), values);
      },
      [&](unsigned row, unsigned col, float value) {
        to.at(row, col) = Stored<kPrecision>::narrow(libmuon::rounded<kPrecision>(value));
      });
}

// From X, so a square of X is read, and written as one of U.
template <Precision kPrecision>
__global__ void store_kernel(PlainMatrices of, const Normalizer* normalizers, Batch x) {
  const bool tall = of.rows() > of.cols;
  const bool alive = normalizers[blockIdx.z].alive != 0;
  const Square square = square_of(x.rows, x.cols);
  const Lying from(static_cast<const Type<kPrecision>*>(x.data) + blockIdx.z * x.step, x.ld, square,
                   false);
  through(
      square, tall,
      [&](unsigned row, unsigned col) { return Stored<kPrecision>::widen(from.at(row, col)); },
      [&](float(&values)[kOfThread]) {
        round_all(of.spec.handed_back, values);
        bool finite = true;
#pragma unroll
        for (float& value : values) {
          value = alive ? value : 0.0f;
          finite = finite && isfinite(value);
        }
        if (!finite) tell(of, blockIdx.z);
      },
      [&](unsigned row, unsigned col, float value) {
        const std::uint64_t r = square.row + row, c = square.col + col;
        (tall ? u_at(of, c, r) : u_at(of, r, c)) = value;
      });
}

// Of rows x cols, by (x, y), and a matrix of the batch by z: body(index in `from`, in `to`, whether
// it is on the diagonal).
template <typename Body>
__device__ void for_places(const Batch& from, const Batch& to, const Body& body) {
  for (std::uint64_t row = blockIdx.y; row < from.rows; row += gridDim.y)
    for (std::uint64_t col = std::uint64_t{blockIdx.x} * kThreads + threadIdx.x; col < from.cols;
         col += std::uint64_t{gridDim.x} * kThreads)
      body(blockIdx.z * from.step + row * from.ld + col, blockIdx.z * to.step + row * to.ld + col,
           row == col);
}

template <Precision kPrecision>
__global__ void __launch_bounds__(kThreads) scale_kernel(Batch from, float factor, Batch to) {
  for_places(from, to, [&](std::uint64_t i, std::uint64_t j, bool) {
    const float value = Stored<kPrecision>::widen(static_cast<Type<kPrecision>*>(from.data)[i]);
    static_cast<Type<kPrecision>*>(to.data)[j] =
        Stored<kPrecision>::narrow(libmuon::rounded<kPrecision>(factor * value));
  });
}

template <Precision kPrecision>
__global__ void __launch_bounds__(kThreads) add_scaled_kernel(Batch from, float factor, Batch to) {
  for_places(from, to, [&](std::uint64_t i, std::uint64_t j, bool) {
    auto& sum = static_cast<Type<kPrecision>*>(to.data)[j];
    const float value = Stored<kPrecision>::widen(static_cast<Type<kPrecision>*>(from.data)[i]);
    sum = Stored<kPrecision>::narrow(libmuon::rounded<kPrecision>(
        Stored<kPrecision>::widen(sum) + libmuon::rounded<kPrecision>(factor * value)));
  });
}

template <Precision kPrecision>
__global__ void __launch_bounds__(kThreads) identity_kernel(Batch from, float value, Batch to) {
  for_places(from, to, [&](std::uint64_t i, std::uint64_t j, bool diagonal) {
    Type<kPrecision> element = static_cast<Type<kPrecision>*>(from.data)[i];
    if (diagonal)
      element = Stored<kPrecision>::narrow(
          libmuon::rounded<kPrecision>(Stored<kPrecision>::widen(element) + value));
    static_cast<Type<kPrecision>*>(to.data)[j] = element;
  });
}

// A square below the diagonal becomes its mirror image above; on the diagonal its lower half does.
template <Precision kPrecision>
__global__ void mirror_kernel(Batch of) {
  const Square square = square_of(of.rows, of.cols);
  if (square.col > square.row) return;
  auto* const data = static_cast<Type<kPrecision>*>(of.data) + blockIdx.z * of.step;
  const Lying from(data, of.ld, square, false), to(data, of.ld, square, true);
  through(
      square, true,
      [&](unsigned row, unsigned col) { return Stored<kPrecision>::widen(from.at(row, col)); },
      [](const auto&) {},
      [&](unsigned row, unsigned col, float value) {
        if (square.row + row > square.col + col)
          to.at(row, col) = Stored<kPrecision>::narrow(value);
      });
}

dim3 squares_of(std::uint64_t rows, std::uint64_t cols, std::uint64_t count) {
  return {static_cast<unsigned>(squares_of(rows) * squares_of(cols)), 1,
          static_cast<unsigned>(count)};
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
  const cudaError_t summed =
      start(sums_kernel, blocks_of(threads), kThreads, 0, stream, matrices, sums);
  return summed != cudaSuccess ? summed
                               : start(decide_kernel, static_cast<unsigned>(matrices.count), kWarp,
                                       0, stream, matrices, sums, normalizers);
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
