#include "plugins/cuda/graphs.h"

namespace ebb::cuda {
namespace {

// A model has as many batches as its largest rank; more are not remembered.
constexpr std::size_t kMost = 1024;

}  // namespace

Graphs::~Graphs() {
  for (auto& [address, known] : known_)
    if (known.graph != nullptr) cudaGraphExecDestroy(known.graph);
  if (capturing_ != nullptr) cudaStreamDestroy(capturing_);
}

Graphs::Known* Graphs::find(const libmuon::PlainMatrices& matrices, const void* workspace) {
  const auto [first, end] = known_.equal_range(matrices.u);
  for (auto it = first; it != end; ++it)
    if (it->second.workspace == workspace && it->second.matrices == matrices) return &it->second;
  return nullptr;
}

Answer Graphs::run(const libmuon::PlainMatrices& matrices, const void* workspace,
                   cudaStream_t stream, Why* why, const Give& give) {
  Known* const known = find(matrices, workspace);
  if (known == nullptr && known_.size() < kMost)
    known_.emplace(matrices.u, Known{matrices, workspace});
  if (known == nullptr || !works_) return give(stream);
  if (known->graph == nullptr) works_ = capture(*known, give);
  if (known->graph == nullptr) return give(stream);
  return answer_of(cudaGraphLaunch(known->graph, stream), "cudaGraphLaunch", why);
}

// On a stream of its own: other threads may ask for events of the one that works. What is not taken
// as a graph, for whatever reason, is given plainly from then on, and then says what is wrong.
bool Graphs::capture(Known& known, const Give& give) {
  cudaError_t error = cudaSuccess;
  if (capturing_ == nullptr) error = cudaStreamCreateWithFlags(&capturing_, cudaStreamNonBlocking);
  if (error == cudaSuccess)
    error = cudaStreamBeginCapture(capturing_, cudaStreamCaptureModeThreadLocal);
  cudaGraph_t graph = nullptr;
  if (error == cudaSuccess) {
    const Answer answer = give(capturing_);
    error = cudaStreamEndCapture(capturing_, &graph);
    if (error == cudaSuccess && answer == Answer::done && graph != nullptr)
      error = cudaGraphInstantiate(&known.graph, graph, 0);
  }
  if (graph != nullptr) cudaGraphDestroy(graph);
  if (error != cudaSuccess) known.graph = nullptr;
  static_cast<void>(cudaGetLastError());
  return known.graph != nullptr;
}

}  // namespace ebb::cuda
