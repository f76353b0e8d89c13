// One function a kernel: gives it to a stream and returns.
#pragma once

#include <cuda_runtime_api.h>

#include "ebb/formats/core/units.h"
#include "ebb/libmuon/kernels/plugin_kernels.h"

namespace ebb::cuda {

cudaError_t launch_look(const libmuon::PlainLook& range, libmuon::Look* found, cudaStream_t stream);
cudaError_t launch_add(const libmuon::PlainAdd& range, cudaStream_t stream);
cudaError_t launch_decay(const libmuon::PlainDecay& range, cudaStream_t stream);
cudaError_t launch_prepare(const libmuon::PlainPrepare& range, cudaStream_t stream);
// Of an m in blocks of i8.
cudaError_t launch_prepare_blocks(const libmuon::PlainPrepare& range, cudaStream_t stream);
cudaError_t launch_finish(const libmuon::PlainFinish& range, cudaStream_t stream);
cudaError_t launch_hand_out(const libmuon::PlainOut& range, cudaStream_t stream);
cudaError_t launch_take(const libmuon::PlainTake& range, cudaStream_t stream);
cudaError_t launch_adamw(const libmuon::PlainAdam& range, cudaStream_t stream);
// to <- from, rounded; one of them fp32, the other that, bf16 or fp16.
cudaError_t launch_convert(const libmuon::PlainBuffer& from, const libmuon::PlainBuffer& to,
                           cudaStream_t stream);

// Rows or columns whose moments a range has; `sums` and `factors` have room for one of each. At
// most 65,535 matrices.
std::uint64_t sides_of(const libmuon::PlainNormalise& range);
cudaError_t launch_normalise(const libmuon::PlainNormalise& range, double* sums, float* factors,
                             cudaStream_t stream);

// What a matrix is divided by, as its norm decides. A matrix of zeros, or one that is not finite,
// is not alive and gives zeros.
struct Normalizer {
  double factor = 0;
  std::uint32_t alive = 0;
};

// `count` matrices of one shape in Newton-Schulz' precision: rows x cols elements, `ld` from row to
// row, `step` from matrix to matrix.
struct Batch {
  void* data = nullptr;
  std::uint64_t rows = 0, cols = 0, ld = 0, step = 0, count = 1;
  libmuon::Precision precision = libmuon::Precision::fp32;
};

// Bytes of a number that is kept so.
inline std::uint64_t size_of(libmuon::Precision kept) {
  return kept == libmuon::Precision::fp32 ? 4 : 2;
}
// What rows of so many elements begin apart: it depends on the shape alone.
inline std::uint64_t leading_of(std::uint64_t cols) {
  constexpr std::uint64_t kUnit = 16;  // elements
  return formats::align_up(cols, kUnit);
}

// to <- alpha left left^T + beta from, rounded once; sums in fp32. `from` is symmetric, and so is
// what is made, to the bit. bf16 or fp16 on Hopper alone, which has so many `processors`: they
// change no bit.
struct Symmetric {
  Batch left, from, to;
  float alpha = 1, beta = 0;
};
cudaError_t launch_symmetric(const Symmetric& product, unsigned processors, cudaStream_t stream);

// Sums of the squares of U, a matrix' one behind the other; then what they decide.
cudaError_t launch_norms(const libmuon::PlainMatrices& matrices, double* sums,
                         Normalizer* normalizers, cudaStream_t stream);
std::uint64_t sums_of(const libmuon::PlainMatrices& matrices);
// X <- U divided, its short side as rows; and back: U <- X.
cudaError_t launch_load(const libmuon::PlainMatrices& matrices, const Normalizer* normalizers,
                        const Batch& x, cudaStream_t stream);
cudaError_t launch_store(const libmuon::PlainMatrices& matrices, const Normalizer* normalizers,
                         const Batch& x, cudaStream_t stream);
// to <- factor from, rounded.
cudaError_t launch_scale(const Batch& from, float factor, const Batch& to, cudaStream_t stream);
// to <- to + factor from, product and sum rounded.
cudaError_t launch_add_scaled(const Batch& from, float factor, const Batch& to,
                              cudaStream_t stream);
// to <- from + value I, rounded.
cudaError_t launch_identity(const Batch& from, float value, const Batch& to, cudaStream_t stream);
// What lies above the diagonal <- what lies below.
cudaError_t launch_mirror(const Batch& of, cudaStream_t stream);

}  // namespace ebb::cuda
