// Symmetric products by Hopper's tensor cores (PTX ISA, "wgmma"): only tiles that touch the lower
// triangle are computed, and each is written twice. Two warpgroups share a tile; copies of the next
// stages run beside the products of this one.
//
// Each element is the sum over k in steps of 16, in ascending order, whatever tile it lies in: how
// many matrices there are, and how they are cut, changes no bit.
#include "plugins/cuda/elements.cuh"
#include "plugins/cuda/precision.cuh"

namespace ebb::cuda {
namespace {

using libmuon::Precision;

constexpr unsigned kDepth = 64;           // of k, a stage: rows of 128 bytes
constexpr unsigned kWide = 128;           // columns of a tile, and of one product
constexpr unsigned kGroups = 2;           // warpgroups
constexpr unsigned kGroup = 128;          // threads of one
constexpr unsigned kHigh = 64;            // rows of one product
constexpr std::uint64_t kPattern = 1024;  // bytes behind which the swizzle repeats

// `kBlocks`: products that a warpgroup has, one below the other.
template <unsigned kBlocks>
struct Tile {
  static constexpr unsigned kRows = kGroups * kBlocks * kHigh;
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

constexpr unsigned kPiece = 8;                      // numbers that are copied at once: 16 bytes
constexpr unsigned kPieces = kDepth / kPiece;       // of a row
constexpr unsigned kSums = kHigh * kWide / kGroup;  // of one product, a thread
constexpr unsigned kPadded = kWide + kPiece;        // of a row of results in shared memory

// 16 bytes to shared memory, of which `bytes` come and the others are zeros.
__device__ void copy_piece(std::uint32_t to, const void* from, unsigned bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
               : "memory");
}
__device__ void end_stage() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <unsigned kLeft>
__device__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
}

__device__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ void end_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <unsigned kLeft>
__device__ void wait_for_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kLeft) : "memory");
}
// What threads wrote, tensor cores may read.
__device__ void show_copies() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Of rows of 128 bytes, eight of them 1,024 apart from the next eight, swizzled over 128.
__device__ std::uint64_t described(std::uint32_t address) {
  constexpr std::uint64_t kUnit = 16, kSwizzled = std::uint64_t{1} << 62;
  return (address & 0x3ffffu) / kUnit | std::uint64_t{1} << 16 | kPattern / kUnit << 32 | kSwizzled;
}

#define EBB_EIGHT(sums, i)                                                                   \
  "+f"(sums[i]), "+f"(sums[i + 1]), "+f"(sums[i + 2]), "+f"(sums[i + 3]), "+f"(sums[i + 4]), \
      "+f"(sums[i + 5]), "+f"(sums[i + 6]), "+f"(sums[i + 7])
#define EBB_PRODUCT(type, sums, left, right)                                                     \
  asm volatile(                                                                                  \
      "{\n.reg .pred adds;\nsetp.ne.b32 adds, 1, 0;\n"                                           \
      "wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type                               \
      " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, "  \
      "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, "    \
      "%36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, "    \
      "%53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, %64, %65, adds, 1, 1, 0, 0;\n}\n" \
      : EBB_EIGHT(sums, 0), EBB_EIGHT(sums, 8), EBB_EIGHT(sums, 16), EBB_EIGHT(sums, 24),        \
        EBB_EIGHT(sums, 32), EBB_EIGHT(sums, 40), EBB_EIGHT(sums, 48), EBB_EIGHT(sums, 56)       \
      : "l"(left), "l"(right))

template <Precision kPrecision>
__device__ void multiply(float (&sums)[kSums], std::uint64_t left, std::uint64_t right) {
  if constexpr (kPrecision == Precision::bf16)
    EBB_PRODUCT("bf16", sums, left, right);
  else
    EBB_PRODUCT("f16", sums, left, right);
}

#undef EBB_PRODUCT
#undef EBB_EIGHT

// Where a tile's copies come from and go to, as one thread sees it: it has one piece of every 32nd
// row.
class Copies {
 public:
  static constexpr unsigned kStride = kGroups * kGroup / kPieces;

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
                       std::uint32_t shared, float (&sums)[kBlocks][kSums]) {
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
    end_stage();  // an empty one, too: they are counted
  };
  for (unsigned stage = 0; stage < kAhead; ++stage) bring(stage);
  const unsigned mine = threadIdx.x / kGroup * kBlocks * kHigh * kDepth * 2;
  for (std::uint64_t stage = 0; stage < stages; ++stage) {
    wait_for_copies<kAhead - 1>();
    show_copies();
    // Behind it all has come, and nobody multiplies the stage before the last any more.
    __syncthreads();
    const std::uint32_t here =
        shared + static_cast<std::uint32_t>(stage % Its::kStages) * Its::kStageBytes;
    begin_products();
#pragma unroll
    for (unsigned k = 0; k < kDepth / 16; ++k)
#pragma unroll
      for (unsigned block = 0; block < kBlocks; ++block)
        multiply<kPrecision>(sums[block],
                             described(here + mine + block * kHigh * kDepth * 2 + k * 32),
                             described(here + kRowsBytes + k * 32));
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
                       const float (&sums)[kBlocks][kSums], std::uint16_t* results) {
  const auto* const from = static_cast<const std::uint16_t*>(work.from.data) +
                           (work.beta != 0 ? matrix * work.from.step : 0);
  const unsigned group = threadIdx.x / kGroup, warp = threadIdx.x % kGroup / 32;
  const unsigned lane = threadIdx.x % 32;
#pragma unroll
  for (unsigned block = 0; block < kBlocks; ++block)
#pragma unroll
    for (unsigned i = 0; i < kSums; ++i) {
      const unsigned row =
          (group * kBlocks + block) * kHigh + warp * 16 + lane / 4 + (i % 4 < 2 ? 0 : 8);
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
    alignas(16) std::uint16_t values[16];
#pragma unroll
    for (unsigned i = 0; i < 16; ++i) values[i] = from[i * stride];
    auto* const wide = reinterpret_cast<uint4*>(to);
    wide[0] = reinterpret_cast<const uint4*>(values)[0];
    wide[1] = reinterpret_cast<const uint4*>(values)[1];
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
  for (unsigned i = threadIdx.x; i < Its::kRows * (kWide / 16); i += kGroups * kGroup) {
    const unsigned row = i / (kWide / 16), col = i % (kWide / 16) * 16;
    const std::uint64_t r = tile.row + row, c = tile.col + col;
    if (r < rows && c <= r)
      put_sixteen(results + row * kPadded + col, 1, to + r * work.to.ld + c, 0, r + 1 - c);
  }
  // Neighbouring threads have neighbouring columns: they read shared memory side by side.
  for (unsigned i = threadIdx.x; i < Its::kRows / 16 * kWide; i += kGroups * kGroup) {
    const unsigned row = i / kWide * 16, col = i % kWide;
    const std::uint64_t r = tile.row + row, c = tile.col + col;
    const std::uint64_t first = c < r ? 0 : c + 1 - r;
    if (r < rows && c < rows && first < 16)
      put_sixteen(results + row * kPadded + col, kPadded, to + c * work.to.ld + r, first, rows - r);
  }
}

template <Precision kPrecision, unsigned kBlocks>
__global__ void __launch_bounds__(kGroups* kGroup, 1) symmetric_kernel(Symmetric work) {
  extern __shared__ std::byte room[];
  const std::uint64_t tiles = Tile<kBlocks>::count(work.to.rows);
  const std::uint64_t matrix = blockIdx.x / tiles;
  const Corner tile = corner_of<kBlocks>(blockIdx.x % tiles);
  if (tile.col >= work.to.rows) return;  // the last row of tiles may be higher than the matrix
  const auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(room));
  const auto aligned = static_cast<std::uint32_t>((address + kPattern - 1) / kPattern * kPattern);
  float sums[kBlocks][kSums] = {};
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
  const auto kernel = symmetric_kernel<kPrecision, kBlocks>;
  if (const auto error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                              static_cast<int>(Its::kBytes));
      error != cudaSuccess)
    return error;
  const std::uint64_t tiles = Its::count(work.to.rows) * work.to.count;
  kernel<<<static_cast<unsigned>(tiles), kGroups * kGroup, Its::kBytes, stream>>>(work);
  return cudaGetLastError();
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
