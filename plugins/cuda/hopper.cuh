// Instructions of Hopper alone (PTX ISA: "cp.async", "Asynchronous Warpgroup Level Matrix
// Instructions"), one function each.
#pragma once

#include "plugins/cuda/precision.cuh"

namespace ebb::cuda {

// Bytes behind which the swizzle of shared memory repeats.
inline constexpr std::uint64_t kPattern = 1024;
// A product of one warpgroup: 64 rows by 128 columns, of 16 numbers each; a thread has 64 sums.
inline constexpr unsigned kProductRows = 64, kProductCols = 128, kProductDepth = 16;
inline constexpr unsigned kWarpgroup = 128;
inline constexpr unsigned kProductSums = kProductRows * kProductCols / kWarpgroup;

// Of rows of 128 bytes, eight of them 1,024 apart from the next eight, swizzled over 128: each 16
// bytes of a row lie where their number, exclusive or the row's, says.
inline __host__ __device__ std::uint64_t described(std::uint32_t address) {
  constexpr std::uint64_t kUnit = 16, kSwizzled = std::uint64_t{1} << 62;
  return (address & 0x3ffffu) / kUnit | std::uint64_t{1} << 16 | kPattern / kUnit << 32 | kSwizzled;
}

// Shared memory that the launch asked for.
inline __device__ std::byte* shared_room() {
  extern __shared__ std::byte room[];
  return room;
}
inline __device__ std::uint32_t shared_address(const std::byte* room) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(room));
}

// 16 bytes to shared memory, of which `bytes` come and the others are zeros.
inline __device__ void copy_piece(std::uint32_t to, const void* from, unsigned bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
               : "memory");
}
// Ends a group of copies; waits until all groups but the last have come.
inline __device__ void end_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <unsigned kLast>
__device__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLast) : "memory");
}
// What threads wrote, tensor cores may read.
inline __device__ void show_copies() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Products of a warpgroup are begun, ended as a group, and waited for, all but the last groups.
inline __device__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
inline __device__ void end_products() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <unsigned kLast>
__device__ void wait_for_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kLast) : "memory");
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

// sums <- sums + left right^T, both described. A thread's i-th sum is of row (lane / 4 + 8 (i / 2 %
// 2)) of its warp's 16, and of column 8 (i / 4) + 2 (lane % 4) + i % 2.
template <libmuon::Precision kPrecision>
__device__ void multiply(float (&sums)[kProductSums], std::uint64_t left, std::uint64_t right) {
  if constexpr (kPrecision == libmuon::Precision::bf16)
    EBB_PRODUCT("bf16", sums, left, right);
  else
    EBB_PRODUCT("f16", sums, left, right);
}

#undef EBB_PRODUCT
#undef EBB_EIGHT

}  // namespace ebb::cuda
