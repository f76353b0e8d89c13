// Graphs: what a stream was given while it was captured, and is given again at each launch.
#include "ebb/formats/core/check.h"
#include "tests/libmuon/cuda/stub_stream.h"

struct CUgraph_st {
  std::vector<std::function<void()>> works;
};
struct CUgraphExec_st {
  std::vector<std::function<void()>> works;
};

namespace {

cudaError_t answer(const char* function) {
  return ebb::stub::fails(function) ? cudaErrorUnknown : cudaSuccess;
}

}  // namespace

extern "C" {

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  EBB_CHECK(mode == cudaStreamCaptureModeThreadLocal);
  if (const auto error = answer("cudaStreamBeginCapture"); error != cudaSuccess) return error;
  const std::lock_guard lock(stream->mutex);
  EBB_CHECK(!stream->captured);
  stream->captured.emplace();
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  const std::lock_guard lock(stream->mutex);
  EBB_CHECK(stream->captured.has_value());
  *graph = new CUgraph_st{*std::move(stream->captured)};
  stream->captured.reset();
  return answer("cudaStreamEndCapture");
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* made, cudaGraph_t graph, unsigned long long) {
  if (const auto error = answer("cudaGraphInstantiate"); error != cudaSuccess) return error;
  *made = new CUgraphExec_st{graph->works};
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
  if (const auto error = answer("cudaGraphLaunch"); error != cudaSuccess) return error;
  for (const auto& work : graph->works) stream->add(work);
  return cudaSuccess;
}

}  // extern "C"
