// Newton-Schulz as CUDA graphs. A step orthogonalizes the same matrices at the same addresses each
// time: what a stream was given for them becomes a graph at the second time, which is one launch
// from then on. Not at the first: libraries load kernels when they are first used, and a stream
// that is captured must not wait for that.
#pragma once

#include <functional>
#include <map>

#include "plugins/cuda/device.h"

namespace ebb::cuda {

class Graphs {
 public:
  using Give = std::function<Answer(cudaStream_t)>;

  Graphs() = default;
  ~Graphs();
  Graphs(const Graphs&) = delete;
  Graphs& operator=(const Graphs&) = delete;

  // What give() gives a stream, which is the same for the same matrices and workspace.
  Answer run(const libmuon::PlainMatrices& matrices, const void* workspace, cudaStream_t stream,
             Why* why, const Give& give);

 private:
  struct Known {
    libmuon::PlainMatrices matrices;
    const void* workspace = nullptr;
    cudaGraphExec_t graph = nullptr;  // null: not yet
  };

  Known* find(const libmuon::PlainMatrices& matrices, const void* workspace);
  bool capture(Known& known, const Give& give);

  std::multimap<const void*, Known> known_;  // by what they are made of
  cudaStream_t capturing_ = nullptr;         // runs nothing
  bool works_ = true;
};

}  // namespace ebb::cuda
