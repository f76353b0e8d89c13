// The exact norm: the limbs of ExactSum (docs/numerics.md), by warps. A warp's 256 squares, exact
// in fp64, are cut into windows from the largest down; what is cut off adds up exactly, first in
// fp64, then as integers; the rests form the next window, until none is left.
#include "plugins/cuda/elements.cuh"

namespace ebb::cuda {
namespace {

constexpr unsigned kLimbs = 20;
constexpr unsigned kLane = 32, kOfLane = 8;  // lanes of a warp, elements of a lane
constexpr std::uint64_t kOfWarp = kLane * kOfLane;
constexpr int kWindowBits = 42;
constexpr int kUnit = -298;  // exponent of a limb's lowest bit
constexpr unsigned kAll = 0xffffffffu;
constexpr std::uint32_t kMagnitude = 0x7fffffffu, kInfinity = 0x7f800000u;

// 2^exponent. REQUIRES: that it is a normal number.
__device__ double power_of_two(int exponent) {
  return __longlong_as_double(static_cast<long long>(exponent + 1023) << 52);
}

__device__ void add_to(unsigned long long* limb, long long value) {
  atomicAdd(limb, static_cast<unsigned long long>(value));
}

// limbs += value * 2^(shift + kUnit), in two's complement. REQUIRES: |value| < 2^63.
__device__ void add_shifted(unsigned long long* limbs, long long value, int shift) {
  const int by = shift % 32;
  const auto low = static_cast<unsigned long long>(value) << by;
  const long long high = (value >> (63 - by)) >> 1;  // what the shift pushed out
  unsigned long long* const first = limbs + shift / 32;
  add_to(first, static_cast<long long>(low & 0xffffffffu));
  add_to(first + 1, static_cast<long long>(low >> 32));
  add_to(first + 2, high);
}

__device__ long long sum_of_warp(long long value) {
#pragma unroll
  for (unsigned lanes = kLane / 2; lanes > 0; lanes /= 2)
    value += __shfl_xor_sync(kAll, value, lanes);
  return value;
}

// Squares of a warp's numbers, of which `largest` has the greatest magnitude; not finite ones count
// as zero.
__device__ void add_squares(unsigned long long* limbs, const float (&values)[kOfLane],
                            std::uint32_t largest) {
  double numbers[kOfLane];
#pragma unroll
  for (unsigned k = 0; k < kOfLane; ++k) {
    const double value = static_cast<double>(values[k]);
    numbers[k] = value * value;
  }
  // Every square is below 2^top.
  const int exponent = static_cast<int>(largest >> 23);
  const int top = 2 * ((exponent > 1 ? exponent : 1) - 126);
  int low = max(top - kWindowBits, kUnit);
  while (true) {
    const double splitter = 1.5 * power_of_two(low + 52);
    double sum = 0;
    bool rest = false;
#pragma unroll
    for (unsigned k = 0; k < kOfLane; ++k) {
      const double high = (numbers[k] + splitter) - splitter;
      numbers[k] -= high;
      sum += high;
      rest |= numbers[k] != 0;
    }
    const auto units = static_cast<long long>(sum * power_of_two(-low));
    const long long all = sum_of_warp(units);
    if (threadIdx.x % kLane == 0) add_shifted(limbs, all, low - kUnit);
    if (!__any_sync(kAll, rest)) return;
    low = max(low - kWindowBits, kUnit);
  }
}

// A lane's of a warp's numbers from `first` on, zeros behind the end: neighbours, where `aligned`
// says that they begin where 16 bytes may be loaded at once. The order of an exact sum is nobody's.
template <typename G>
__device__ void load(const G* __restrict__ g, std::uint64_t elems, std::uint64_t first,
                     bool aligned, float (&values)[kOfLane]) {
  const unsigned lane = threadIdx.x % kLane;
  if (aligned && first + kOfWarp <= elems) {
    constexpr unsigned kPieces = kOfLane * sizeof(G) / sizeof(uint4);
    G numbers[kOfLane];
    uint4 pieces[kPieces];
    const auto* const from = reinterpret_cast<const uint4*>(g + first + lane * kOfLane);
#pragma unroll
    for (unsigned i = 0; i < kPieces; ++i) pieces[i] = from[i];
    memcpy(numbers, pieces, sizeof(numbers));
#pragma unroll
    for (unsigned k = 0; k < kOfLane; ++k) values[k] = libmuon::widened(numbers[k]);
    return;
  }
#pragma unroll
  for (unsigned k = 0; k < kOfLane; ++k) {
    const std::uint64_t i = first + k * kLane + lane;
    values[k] = i < elems ? libmuon::widened(g[i]) : 0.0f;
  }
}

__device__ std::uint32_t largest_of(const float (&values)[kOfLane]) {
  std::uint32_t largest = 0;
#pragma unroll
  for (unsigned k = 0; k < kOfLane; ++k)
    largest = max(largest, __float_as_uint(values[k]) & kMagnitude);
  return largest;
}

// Those that are not finite become zeros; the largest of the others.
__device__ std::uint32_t leave_finite(float (&values)[kOfLane]) {
#pragma unroll
  for (unsigned k = 0; k < kOfLane; ++k)
    if ((__float_as_uint(values[k]) & kMagnitude) >= kInfinity) values[k] = 0;
  return largest_of(values);
}

template <typename G>
__global__ void __launch_bounds__(kThreads)
    look_kernel(std::uint64_t elems, const G* __restrict__ g, double limit, bool in_norm,
                libmuon::Look* found) {
  __shared__ unsigned long long limbs[kLimbs];
  __shared__ std::uint32_t largest;
  if (threadIdx.x < kLimbs) limbs[threadIdx.x] = 0;
  if (threadIdx.x == 0) largest = 0;
  __syncthreads();
  std::uint32_t mine = 0;
  const bool aligned = reinterpret_cast<std::uintptr_t>(g) % sizeof(uint4) == 0;
  const std::uint64_t warps = std::uint64_t{gridDim.x} * kThreads / kLane;
  const std::uint64_t warp = (std::uint64_t{blockIdx.x} * kThreads + threadIdx.x) / kLane;
  for (std::uint64_t first = warp * kOfWarp; first < elems; first += warps * kOfWarp) {
    float values[kOfLane];
    load(g, elems, first, aligned, values);
    const std::uint32_t here = largest_of(values);
    mine = max(mine, here);
    if (!in_norm) continue;
    const std::uint32_t finite =
        __reduce_max_sync(kAll, here < kInfinity ? here : leave_finite(values));
    if (finite != 0) add_squares(limbs, values, finite);
  }
  atomicMax(&largest, mine);
  __syncthreads();
  if (threadIdx.x != 0) return;
  // Carried, so that however many blocks add up without overflow.
  for (unsigned i = 0; i + 1 < kLimbs; ++i) {
    limbs[i + 1] += static_cast<unsigned long long>(static_cast<long long>(limbs[i]) >> 32);
    limbs[i] &= 0xffffffffu;
  }
  auto* const squares = reinterpret_cast<unsigned long long*>(found->squares.data());
  for (unsigned i = 0; i < kLimbs; ++i)
    if (limbs[i] != 0) atomicAdd(squares + i, limbs[i]);
  const double magnitude = largest >= kInfinity
                               ? __longlong_as_double(0x7ff0000000000000ll)
                               : static_cast<double>(__uint_as_float(largest)) / limit;
  // Numbers that are not negative are ordered as their bits are.
  atomicMax(reinterpret_cast<unsigned long long*>(&found->largest),
            static_cast<unsigned long long>(__double_as_longlong(magnitude)));
}

}  // namespace

cudaError_t launch_look(const libmuon::PlainLook& range, libmuon::Look* found,
                        cudaStream_t stream) {
  const std::uint64_t elems = range.g.elems;
  // Few blocks, each with many numbers: what a block found is added once.
  const unsigned blocks = blocks_for(elems) < 1024 ? blocks_for(elems) : 1024;
  return as_stored(range.g, [&]<typename G>(G* g) {
    return start(look_kernel<G>, blocks, kThreads, 0, stream, elems, g, range.limit,
                 range.in_norm != 0, found);
  });
}

}  // namespace ebb::cuda
