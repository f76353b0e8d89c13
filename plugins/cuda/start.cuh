// How a kernel is given to a stream.
#pragma once

#include <cuda_runtime.h>

namespace ebb::cuda {

// `bytes`: of shared memory, beside what the kernel declares.
template <typename... Parameters, typename... Arguments>
cudaError_t start(void (*kernel)(Parameters...), dim3 blocks, dim3 threads, std::size_t bytes,
                  cudaStream_t stream, const Arguments&... arguments) {
  constexpr std::size_t kUnasked = 48u << 10;  // what every kernel may have
  if (bytes > kUnasked)
    if (const auto error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                static_cast<int>(bytes));
        error != cudaSuccess)
      return error;
  kernel<<<blocks, threads, bytes, stream>>>(arguments...);
  return cudaGetLastError();
}

}  // namespace ebb::cuda
