// Newton-Schulz' numbers as they lie in memory: fp32, or the bits of bf16 or fp16.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "ebb/formats/core/bf16.h"
#include "ebb/libmuon/kernels/rounding.h"

namespace ebb::cuda {

// narrow() of a number that the type has: it was rounded before.
template <libmuon::Precision kPrecision>
struct Stored {
  using type = float;
  static __device__ float widen(float value) { return value; }
  static __device__ float narrow(float value) { return value; }
};
template <>
struct Stored<libmuon::Precision::bf16> {
  using type = std::uint16_t;
  static __device__ float widen(std::uint16_t bits) { return formats::bf16_to_f32(bits); }
  static __device__ std::uint16_t narrow(float value) { return formats::f32_to_bf16(value); }
};
template <>
struct Stored<libmuon::Precision::fp16> {
  using type = std::uint16_t;
  static __device__ float widen(std::uint16_t bits) { return __half2float(__ushort_as_half(bits)); }
  static __device__ std::uint16_t narrow(float value) {
    return __half_as_ushort(__float2half_rn(value));
  }
};

template <libmuon::Precision kPrecision>
using Numbers = typename Stored<kPrecision>::type;

// Calls launch(the precision that numbers are kept in, as a constant).
template <typename Launch>
cudaError_t with_precision(libmuon::Precision precision, const Launch& launch) {
  using libmuon::Precision;
  if (precision == Precision::bf16)
    return launch(std::integral_constant<Precision, Precision::bf16>());
  if (precision == Precision::fp16)
    return launch(std::integral_constant<Precision, Precision::fp16>());
  return launch(std::integral_constant<Precision, Precision::fp32>());
}

// As results of the precision are.
inline __device__ float rounded(libmuon::Precision precision, float value) {
  using libmuon::Precision;
  if (precision == Precision::bf16) return libmuon::rounded<Precision::bf16>(value);
  if (precision == Precision::fp16) return libmuon::rounded<Precision::fp16>(value);
  return value;
}

}  // namespace ebb::cuda
