// In the place of the plugin's: a kernel is run by the thread of its stream.
#pragma once

#include "tests/libmuon/cuda/emulated/keywords.h"
#include "tests/libmuon/cuda/stub.h"

namespace ebb::cuda {

template <typename... Parameters, typename... Arguments>
cudaError_t start(void (*kernel)(Parameters...), dim3 blocks, dim3 threads, std::size_t bytes,
                  cudaStream_t stream, const Arguments&... arguments) {
  stub::enqueue(stream,
                [=] { emulated::run(blocks, threads, bytes, [&] { kernel(arguments...); }); });
  return cudaSuccess;
}

}  // namespace ebb::cuda
