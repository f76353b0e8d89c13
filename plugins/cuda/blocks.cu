// Momentum in blocks of int8 (formats/core/int8_blocks.h): a warp has a block, whose scale all of
// its numbers decide. They are made twice rather than kept: a block may be of any length.
#include "ebb/formats/core/int8_blocks.h"
#include "plugins/cuda/elements.cuh"

namespace ebb::cuda {
namespace {

using libmuon::Momentum;

constexpr unsigned kLanes = 32;

template <Momentum kForm, bool kNesterov, typename G>
__global__ void __launch_bounds__(kThreads)
    blocks_kernel(libmuon::MomentumFactors f, std::uint64_t elems, std::uint64_t block,
                  const G* __restrict__ g, std::int8_t* __restrict__ codes,
                  float* __restrict__ scales, const float* decay, Out u) {
  const unsigned lane = threadIdx.x % kLanes;
  const std::uint64_t warps = std::uint64_t{gridDim.x} * kThreads / kLanes;
  const auto gradient = [&](std::uint64_t i) {
    const float scaled = f.scale * gradient_at(g, i);
    return decay != nullptr ? scaled + decay[i] : scaled;
  };
  for (std::uint64_t number = (std::uint64_t{blockIdx.x} * kThreads + threadIdx.x) / kLanes;
       number * block < elems; number += warps) {
    const std::uint64_t first = number * block;
    const std::uint64_t end = first + block < elems ? first + block : elems;
    const float before = scales[number];
    const auto next = [&](std::uint64_t i) {
      return libmuon::next_momentum<kForm>(f, gradient(i), formats::int8_value(codes[i], before));
    };
    std::uint32_t largest = 0;
    for (std::uint64_t i = first + lane; i < end; i += kLanes)
      largest = max(largest, __float_as_uint(next(i)) & 0x7fffffffu);
    largest = __reduce_max_sync(0xffffffffu, largest);
    const float now = formats::int8_scale(__uint_as_float(largest));
    const float inverse = formats::int8_inverse(now);
    for (std::uint64_t i = first + lane; i < end; i += kLanes) {
      const float taken = gradient(i);
      const std::int8_t code = formats::int8_code(next(i), inverse);
      codes[i] = code;
      u.put(i, libmuon::update_of<kForm, kNesterov>(f, taken, formats::int8_value(code, now)));
    }
    if (lane == 0) scales[number] = now;
  }
}

template <Momentum kForm, bool kNesterov>
cudaError_t prepare(const libmuon::PlainPrepare& range, cudaStream_t stream) {
  return as_stored(range.g, [&]<typename G>(G* g) {
    return start(blocks_kernel<kForm, kNesterov, G>, blocks_for(range.m.elems), kThreads, 0, stream,
                 range.factors, range.m.elems, range.block, g,
                 static_cast<std::int8_t*>(range.m.data), static_cast<float*>(range.scales.data),
                 static_cast<float*>(range.decay.data), Out(range.u));
  });
}

}  // namespace

cudaError_t launch_prepare_blocks(const libmuon::PlainPrepare& range, cudaStream_t stream) {
  return in_form(
      range, [&](auto form, auto nesterov) { return prepare<form(), nesterov()>(range, stream); });
}

}  // namespace ebb::cuda
