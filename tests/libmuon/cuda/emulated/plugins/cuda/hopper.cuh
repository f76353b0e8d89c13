// In the place of the plugin's, which says what each of these is.
#pragma once

#include <cstddef>
#include <cstdint>

#include "plugins/cuda/precision.cuh"

namespace ebb::emulated {

void wait_for_copies(unsigned last);
void wait_for_products(unsigned last);
// `widen`: a number of the operands, of its bits.
void multiply(float* sums, std::uint64_t left, std::uint64_t right, float (*widen)(std::uint16_t));

}  // namespace ebb::emulated

namespace ebb::cuda {

inline constexpr std::uint64_t kPattern = 1024;
inline constexpr unsigned kProductRows = 64, kProductCols = 128, kProductDepth = 16;
inline constexpr unsigned kWarpgroup = 128, kProductSums = 64;

// As PTX ISA has it: start, leading and stride offsets in units of 16 bytes, the swizzle.
inline std::uint64_t described(std::uint32_t address) {
  return std::uint64_t{address & 0x3ffffu} >> 4 | std::uint64_t{1} << 16 | std::uint64_t{64} << 32 |
         std::uint64_t{1} << 62;
}

std::byte* shared_room();
std::uint32_t shared_address(const std::byte* room);
void copy_piece(std::uint32_t to, const void* from, unsigned bytes);
void end_copies();
void show_copies();
void begin_products();
void end_products();

template <unsigned kLast>
void wait_for_copies() {
  emulated::wait_for_copies(kLast);
}
template <unsigned kLast>
void wait_for_products() {
  emulated::wait_for_products(kLast);
}
template <libmuon::Precision kPrecision>
void multiply(float (&sums)[kProductSums], std::uint64_t left, std::uint64_t right) {
  emulated::multiply(sums, left, right, Stored<kPrecision>::widen);
}

}  // namespace ebb::cuda
