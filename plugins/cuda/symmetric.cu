// Symmetric products by Hopper's tensor cores (PTX ISA, "wgmma"): only tiles that touch the lower
// triangle are computed, and each is written twice. Two warpgroups share a tile; copies of the next
// stages run beside the products of this one.
//
// Each element is the sum over k in steps of 16, in ascending order, whatever tile it lies in: how
// many matrices there are, and how they are cut, changes no bit.
#include "plugins/cuda/elements.cuh"
#include "plugins/cuda/hopper.cuh"

namespace ebb::cuda {
namespace {

using libmuon::Precision;

constexpr unsigned kDepth = 64;           // of k, a stage: rows of 128 bytes
constexpr unsigned kWide = kProductCols;  // of a tile
constexpr unsigned kGroups = 2;           // warpgroups
constexpr unsigned kTeam = kGroups * kWarpgroup;

// `kBlocks`: products that a warpgroup has, one below the other.
template <unsigned kBlocks>
struct Tile {
  static constexpr unsigned kRows = kGroups * kBlocks * kProductRows;
  static constexpr unsigned kStages = kBlocks == 1 ? 6 : 4;
  static constexpr unsigned kStageBytes = (kRows + kWide) * kDepth * 2;
  static constexpr unsigned kBytes = kStages * kStageBytes + kPattern;
  static constexpr unsigned kColsARow = kRows / kWide;  // tiles of a row's diagonal

  // Of one matrix' lower triangle, row of tiles by row of tiles.
  static __host__ __device__ std::uint64_t count(std::uint64_t rows) {
    const std::uint64_t high = (rows + kRows - 1) / kRows;
    return kColsARow * high * (high + 1) / 2;
  }
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

constexpr unsigned kPiece = 8;                 // numbers that are copied at once: 16 bytes
constexpr unsigned kPieces = kDepth / kPiece;  // of a row
constexpr unsigned kPadded = kWide + kPiece;   // of a row of results in shared memory

// Where a tile's copies come from and go to, as one thread sees it: it has one piece of every 32nd
// row.
class Copies {
 public:
  static constexpr unsigned kStride = kTeam / kPieces;

  __device__ Copies(const Batch& of, std::uint64_t matrix, std::uint32_t shared)
      : of_(of),
        data_(static_cast<const std::uint16_t*>(of.data) + matrix * of.step),
        shared_(shared) {}
  // Rows [first, first + kRows) of the stage's part of k, zeros where there is none.
  template <unsigned kRows>
  __device__ void bring(std::uint64_t first, std::uint64_t k, std::uint32_t offset) const {
    const unsigned piece = threadIdx.x % kPieces, row = threadIdx.x / kPieces;
    const std::uint64_t col = k + piece * kPiece;
    const std::uint64_t left = col < of_.cols ? of_.cols - col : 0;
    const unsigned bytes = left < kPiece ? 2 * static_cast<unsigned>(left) : 2 * kPiece;
    const unsigned place = row * kDepth * 2 + (piece ^ row % 8) * kPiece * 2;
#pragma unroll
    for (unsigned i = 0; i < kRows / kStride; ++i) {
      const std::uint64_t at = first + row + i * kStride;
      const bool there = at < of_.rows && bytes > 0;
      copy_piece(shared_ + offset + place + i * kStride * kDepth * 2,
                 there ? data_ + at * of_.ld + col : data_, there ? bytes : 0);
    }
  }

 private:
  const Batch& of_;
  const std::uint16_t* data_;
  std::uint32_t shared_;
};

struct Corner {
  std::uint64_t row, col;
};

// The number-th tile of a lower triangle.
template <unsigned kBlocks>
__device__ Corner corner_of(std::uint64_t number) {
  using Its = Tile<kBlocks>;
  auto row = static_cast<std::uint64_t>(
      (sqrt(8.0 * static_cast<double>(number / Its::kColsARow) + 1) - 1) / 2);
  while (Its::count((row + 1) * Its::kRows) <= number) ++row;
  while (Its::count(row * Its::kRows) > number) --row;
  return {row * Its::kRows, (number - Its::count(row * Its::kRows)) * kWide};
}

// Sums of the warpgroup's part of a tile.
template <Precision kPrecision, unsigned kBlocks>
__device__ void sum_up(const Symmetric& work, std::uint64_t matrix, Corner tile,
                       std::uint32_t shared, float (&sums)[kBlocks][kProductSums]) {
  using Its = Tile<kBlocks>;
  constexpr unsigned kAhead = Its::kStages - 2;  // the two others are being multiplied
  constexpr unsigned kRowsBytes = Its::kRows * kDepth * 2;
  const Copies copies(work.left, matrix, shared);
  const std::uint64_t stages = (work.left.cols + kDepth - 1) / kDepth;
  const auto bring = [&](std::uint64_t stage) {
    const auto offset = static_cast<std::uint32_t>(stage % Its::kStages) * Its::kStageBytes;
    if (stage < stages) {
      copies.bring<Its::kRows>(tile.row, stage * kDepth, offset);
      copies.bring<kWide>(tile.col, stage * kDepth, offset + kRowsBytes);
    }
    end_copies();  // an empty one, too: they are counted
  };
  for (unsigned stage = 0; stage < kAhead; ++stage) bring(stage);
  const unsigned mine = threadIdx.x / kWarpgroup * kBlocks * kProductRows * kDepth * 2;
  for (std::uint64_t stage = 0; stage < stages; ++stage) {
    wait_for_copies<kAhead - 1>();
    show_copies();
    // Behind it all has come, and nobody multiplies the stage before the last any more.
    __syncthreads();
    const std::uint32_t here =
        shared + static_cast<std::uint32_t>(stage % Its::kStages) * Its::kStageBytes;
    begin_products();
#pragma unroll
    for (unsigned k = 0; k < kDepth / kProductDepth; ++k)
#pragma unroll
      for (unsigned block = 0; block < kBlocks; ++block)
        multiply<kPrecision>(
            sums[block],
            described(here + mine + block * kProductRows * kDepth * 2 + k * kProductDepth * 2),
            described(here + kRowsBytes + k * kProductDepth * 2));
    end_products();
    wait_for_products<1>();
    bring(stage + kAhead);
  }
  wait_for_products<0>();
  wait_for_copies<0>();
  __syncthreads();
}

// Results of the tile, rounded, to shared memory.
template <Precision kPrecision, unsigned kBlocks>
__device__ void settle(const Symmetric& work, std::uint64_t matrix, Corner tile,
                       const float (&sums)[kBlocks][kProductSums], std::uint16_t* results) {
  const auto* const from = static_cast<const std::uint16_t*>(work.from.data) +
                           (work.beta != 0 ? matrix * work.from.step : 0);
  const unsigned group = threadIdx.x / kWarpgroup, warp = threadIdx.x % kWarpgroup / 32;
  const unsigned lane = threadIdx.x % 32;
#pragma unroll
  for (unsigned block = 0; block < kBlocks; ++block)
#pragma unroll
    for (unsigned i = 0; i < kProductSums; ++i) {
      const unsigned row =
          (group * kBlocks + block) * kProductRows + warp * 16 + lane / 4 + (i % 4 < 2 ? 0 : 8);
      const unsigned col = i / 4 * 8 + lane % 4 * 2 + i % 2;
      const std::uint64_t r = tile.row + row, c = tile.col + col;
      float value = work.alpha * sums[block][i];
      if (work.beta != 0 && r < work.from.rows && c <= r)
        value += work.beta * Stored<kPrecision>::widen(from[r * work.from.ld + c]);
      results[row * kPadded + col] =
          Stored<kPrecision>::narrow(libmuon::rounded<kPrecision>(value));
    }
  __syncthreads();
}

// Neighbours in shared memory, `stride` apart, to neighbours at `to`: those of [first, end) of 16.
__device__ void put_sixteen(const std::uint16_t* from, unsigned stride, std::uint16_t* to,
                            std::uint64_t first, std::uint64_t end) {
  if (first == 0 && end >= 16) {
    std::uint16_t values[16];
#pragma unroll
    for (unsigned i = 0; i < 16; ++i) values[i] = from[i * stride];
    uint4 wide[2];
    memcpy(wide, values, sizeof(wide));
    reinterpret_cast<uint4*>(to)[0] = wide[0];
    reinterpret_cast<uint4*>(to)[1] = wide[1];
    return;
  }
  for (std::uint64_t i = first; i < end && i < 16; ++i)
    to[i] = from[static_cast<unsigned>(i) * stride];
}

// Twice: below the diagonal as it is, above it by columns.
template <unsigned kBlocks>
__device__ void put_tile(const Symmetric& work, std::uint64_t matrix, Corner tile,
                         const std::uint16_t* results) {
  using Its = Tile<kBlocks>;
  auto* const to = static_cast<std::uint16_t*>(work.to.data) + matrix * work.to.step;
  const std::uint64_t rows = work.to.rows;
  for (unsigned i = threadIdx.x; i < Its::kRows * (kWide / 16); i += kTeam) {
    const unsigned row = i / (kWide / 16), col = i % (kWide / 16) * 16;
    const std::uint64_t r = tile.row + row, c = tile.col + col;
    if (r < rows && c <= r)
      put_sixteen(results + row * kPadded + col, 1, to + r * work.to.ld + c, 0, r + 1 - c);
  }
  // Neighbouring threads have neighbouring columns: they read shared memory side by side.
  for (unsigned i = threadIdx.x; i < Its::kRows / 16 * kWide; i += kTeam) {
    const unsigned row = i / kWide * 16, col = i % kWide;
    const std::uint64_t r = tile.row + row, c = tile.col + col;
    const std::uint64_t first = c < r ? 0 : c + 1 - r;
    if (r < rows && c < rows && first < 16)
      put_sixteen(results + row * kPadded + col, kPadded, to + c * work.to.ld + r, first, rows - r);
  }
}

template <Precision kPrecision, unsigned kBlocks>
__global__ void __launch_bounds__(kTeam, 1) symmetric_kernel(Symmetric work) {
  std::byte* const room = shared_room();
  const std::uint64_t tiles = Tile<kBlocks>::count(work.to.rows);
  const std::uint64_t matrix = blockIdx.x / tiles;
  const Corner tile = corner_of<kBlocks>(blockIdx.x % tiles);
  if (tile.col >= work.to.rows) return;  // the last row of tiles may be higher than the matrix
  const std::uint32_t address = shared_address(room);
  const auto aligned = static_cast<std::uint32_t>((address + kPattern - 1) / kPattern * kPattern);
  float sums[kBlocks][kProductSums] = {};
  sum_up<kPrecision>(work, matrix, tile, aligned, sums);
  auto* const results = reinterpret_cast<std::uint16_t*>(room + (aligned - address));
  settle<kPrecision>(work, matrix, tile, sums, results);
  put_tile<kBlocks>(work, matrix, tile, results);
}

#else

template <Precision kPrecision, unsigned kBlocks>
__global__ void symmetric_kernel(Symmetric) {
  __trap();  // is asked for on Hopper alone
}

#endif

template <Precision kPrecision, unsigned kBlocks>
cudaError_t launch(const Symmetric& work, cudaStream_t stream) {
  using Its = Tile<kBlocks>;
  const std::uint64_t tiles = Its::count(work.to.rows) * work.to.count;
  return start(symmetric_kernel<kPrecision, kBlocks>, static_cast<unsigned>(tiles), kTeam,
               Its::kBytes, stream, work);
}

// Rounds of tiles that all processors compute at once, in rows of 128.
template <unsigned kBlocks>
double rounds(const Batch& to, unsigned processors) {
  const std::uint64_t tiles = Tile<kBlocks>::count(to.rows) * to.count;
  return static_cast<double>((tiles + processors - 1) / processors * kBlocks);
}

template <Precision kPrecision>
cudaError_t launch(const Symmetric& work, unsigned processors, cudaStream_t stream) {
  // A small tile is copied more than a large one for what is computed of it, but fewer processors
  // wait for the last.
  constexpr double kCopied = 1.25;
  const bool small = kCopied * rounds<1>(work.to, processors) < rounds<2>(work.to, processors);
  return small ? launch<kPrecision, 1>(work, stream) : launch<kPrecision, 2>(work, stream);
}

}  // namespace

cudaError_t launch_symmetric(const Symmetric& product, unsigned processors, cudaStream_t stream) {
  if (product.to.precision == Precision::bf16)
    return launch<Precision::bf16>(product, processors, stream);
  return launch<Precision::fp16>(product, processors, stream);
}

}  // namespace ebb::cuda
