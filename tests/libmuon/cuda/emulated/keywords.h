// The plugin's kernels compiled for the host, and run there as a GPU would: blocks one after the
// other, their threads as fibers that meet at barriers and in warps. Included before all else into
// each .cu, where it says what the keywords and functions of CUDA mean; beside it are start.cuh and
// hopper.cuh, in the place of the plugin's.
//
// What a GPU may do early or late is done at one end or the other, at random: which thread goes
// first, when copies come, when products read. So code that only happens to work is found out.
#pragma once

#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>

#undef __global__
#undef __device__
#undef __host__
#undef __shared__
#undef __launch_bounds__
#define __global__
#define __device__
#define __host__
#define __shared__ static  // blocks come one after the other
#define __launch_bounds__(...)

namespace ebb::emulated {

// Of the thread that runs.
const uint3& thread();
const uint3& block();
const dim3& blocks();
const dim3& threads();

void run(dim3 blocks, dim3 threads, std::size_t bytes, const std::function<void()>& body);

// __syncthreads().
void sync();
// Gives the warp a number, and takes those of all its lanes; this lane's.
using Lanes = std::array<std::uint64_t, 32>;
const Lanes& meet(std::uint64_t number);
unsigned lane();

template <typename T>
std::uint64_t bits_of(T value) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8);
  if constexpr (sizeof(T) == 4) return std::bit_cast<std::uint32_t>(value);
  if constexpr (sizeof(T) == 8) return std::bit_cast<std::uint64_t>(value);
}
template <typename T>
T value_of(std::uint64_t bits) {
  if constexpr (sizeof(T) == 4) return std::bit_cast<T>(static_cast<std::uint32_t>(bits));
  if constexpr (sizeof(T) == 8) return std::bit_cast<T>(bits);
}

}  // namespace ebb::emulated

#define threadIdx (ebb::emulated::thread())
#define blockIdx (ebb::emulated::block())
#define gridDim (ebb::emulated::blocks())
#define blockDim (ebb::emulated::threads())

inline void __syncthreads() { ebb::emulated::sync(); }

template <typename T>
T __shfl_sync(unsigned, T value, unsigned from, unsigned width = 32) {
  const auto& all = ebb::emulated::meet(ebb::emulated::bits_of(value));
  const unsigned base = ebb::emulated::lane() / width * width;
  return ebb::emulated::value_of<T>(all[base + from % width]);
}
template <typename T>
T __shfl_xor_sync(unsigned, T value, unsigned other) {
  const auto& all = ebb::emulated::meet(ebb::emulated::bits_of(value));
  return ebb::emulated::value_of<T>(all[ebb::emulated::lane() ^ other]);
}
inline unsigned __reduce_max_sync(unsigned, unsigned value) {
  unsigned most = 0;
  for (const std::uint64_t one : ebb::emulated::meet(value))
    most = std::max(most, static_cast<unsigned>(one));
  return most;
}
inline int __any_sync(unsigned, int value) {
  for (const std::uint64_t one : ebb::emulated::meet(value != 0 ? 1 : 0))
    if (one != 0) return 1;
  return 0;
}

// Threads of a block take turns, and blocks too.
template <typename T>
T atomicAdd(T* to, T value) {
  const T before = *to;
  *to += value;
  return before;
}
template <typename T>
T atomicMax(T* to, T value) {
  const T before = *to;
  *to = std::max(before, value);
  return before;
}

inline double __longlong_as_double(long long bits) { return std::bit_cast<double>(bits); }
inline long long __double_as_longlong(double value) { return std::bit_cast<long long>(value); }
inline unsigned __float_as_uint(float value) { return std::bit_cast<unsigned>(value); }
inline float __uint_as_float(unsigned bits) { return std::bit_cast<float>(bits); }

namespace ebb::cuda {

using std::isfinite;
using std::max;
using std::sqrt;

}  // namespace ebb::cuda
