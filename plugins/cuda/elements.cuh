// What the kernels share: how many blocks, and loops over elements. Compiled without contraction:
// each operation of element.h is rounded by itself, as on the host.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "ebb/formats/core/halves.h"
#include "ebb/libmuon/kernels/element.h"
#include "plugins/cuda/launch.h"
#include "plugins/cuda/start.cuh"

namespace ebb::cuda {

constexpr unsigned kThreads = 256;
constexpr unsigned kEach = 4;  // elements a thread has under way
constexpr std::uint64_t kMostBlocks = 1u << 15;

inline unsigned blocks_for(std::uint64_t elems) {
  const std::uint64_t wanted = (elems + kThreads * kEach - 1) / (kThreads * kEach);
  return static_cast<unsigned>(wanted < 1 ? 1 : wanted > kMostBlocks ? kMostBlocks : wanted);
}

// That have so many threads.
inline unsigned blocks_of(std::uint64_t threads) {
  return static_cast<unsigned>((threads + kThreads - 1) / kThreads);
}

// Calls use(i, load(i)) for each i below `elems`, neighbours by neighbouring threads. All loads of
// a thread come before its first use: a store would hold the next load up, for all that the
// compiler knows.
template <typename Load, typename Use>
__device__ void for_each(std::uint64_t elems, const Load& load, const Use& use) {
  constexpr std::uint64_t kTile = kThreads * kEach;
  for (std::uint64_t tile = blockIdx.x * kTile; tile < elems; tile += gridDim.x * kTile) {
    const std::uint64_t first = tile + threadIdx.x;
    decltype(load(first)) loaded[kEach];
    if (tile + kTile <= elems) {
#pragma unroll
      for (unsigned k = 0; k < kEach; ++k) loaded[k] = load(first + k * kThreads);
#pragma unroll
      for (unsigned k = 0; k < kEach; ++k) use(first + k * kThreads, loaded[k]);
      continue;
    }
    for (std::uint64_t i = first; i < elems; i += kThreads) use(i, load(i));
  }
}

// A weight as it is handed out: to one of the two, or to neither.
struct Out {
  explicit Out(const libmuon::PlainBuffer& buffer)
      : wide(buffer.elems != 0 && buffer.dtype == DType::f32 ? static_cast<float*>(buffer.data)
                                                             : nullptr),
        narrow(buffer.elems != 0 && buffer.dtype == DType::bf16
                   ? static_cast<std::uint16_t*>(buffer.data)
                   : nullptr) {}
  __device__ void put(std::uint64_t i, float w) const {
    if (wide != nullptr) wide[i] = w;
    if (narrow != nullptr) libmuon::store(w, narrow[i]);
  }
  float* wide;
  std::uint16_t* narrow;
};

// Weights where they lie: in fp32, or in halves, of which the low ones are kept. Where none are
// kept, they are -0: what they become is added to the trainer's.
struct Weights {
  Weights(const libmuon::PlainBuffer& w, const libmuon::PlainBuffer& highs)
      : wide(w.dtype == DType::u16 ? nullptr : static_cast<float*>(w.data)),
        low(w.dtype == DType::u16 ? static_cast<std::uint16_t*>(w.data) : nullptr),
        high(static_cast<const std::uint16_t*>(highs.data)) {}
  __device__ float at(std::uint64_t i) const {
    if (low != nullptr) return formats::joined(high[i], low[i]);
    return wide != nullptr ? wide[i] : -0.0f;
  }
  // And hands it out. The high half is no rounding to even: joined() needs it as it is.
  __device__ void put(std::uint64_t i, float w, const Out& out) const {
    if (low == nullptr) {
      if (wide != nullptr) wide[i] = w;
      return out.put(i, w);
    }
    low[i] = formats::low_half(w);
    out.narrow[i] = formats::high_half(w);
  }
  float* wide;
  std::uint16_t* low;
  const std::uint16_t* high;
};

// Where there is no gradient, it is zero.
template <typename G>
__device__ float gradient_at(const G* g, std::uint64_t i) {
  return g != nullptr ? libmuon::widened(g[i]) : 0.0f;
}

// Where a row lies, in rows from the first on. Nearly all matrices are of one run, and a division
// costs more than an element.
inline __device__ std::uint64_t place_of(const libmuon::PlainMatrices& of, std::uint64_t row) {
  if (of.runs == 1) return row;
  return row / of.run * of.stride + row % of.run;
}

// A matrix that is not finite; any of several may be the one that is told.
inline __device__ void tell(const libmuon::PlainMatrices& of, std::uint64_t matrix) {
  if (of.non_finite != nullptr)
    *static_cast<volatile std::uint32_t*>(of.non_finite) =
        of.number + static_cast<std::uint32_t>(matrix);
}

// Calls launch(form, whether it is Nesterov's) with both as constants.
template <typename Launch>
cudaError_t in_form(const libmuon::PlainPrepare& range, const Launch& launch) {
  using libmuon::Momentum;
  const auto of = [&](auto form) {
    return range.nesterov != 0 ? launch(form, std::true_type()) : launch(form, std::false_type());
  };
  return range.form == Momentum::ema ? of(std::integral_constant<Momentum, Momentum::ema>())
                                     : of(std::integral_constant<Momentum, Momentum::sum>());
}

// Calls launch(pointer) with the type that the buffer's elements have: fp32, or bits of bf16.
template <typename Launch>
cudaError_t as_stored(const libmuon::PlainBuffer& buffer, const Launch& launch) {
  return buffer.dtype == DType::bf16 ? launch(static_cast<std::uint16_t*>(buffer.data))
                                     : launch(static_cast<float*>(buffer.data));
}

}  // namespace ebb::cuda
