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
  if (known->graph == nullptr) {
    const Answer answer = capture(*known, give);
    if (answer != Answer::done) return answer;
  }
  if (known->graph == nullptr) return give(stream);
  return answer_of(cudaGraphLaunch(known->graph, stream), "cudaGraphLaunch", why);
}

// On a stream of its own: other threads may ask for events of the one that works. What a driver
// does not take as a graph is given plainly from then on; what give() answers is an error as ever.
Answer Graphs::capture(Known& known, const Give& give) {
  works_ = (capturing_ != nullptr ||
            cudaStreamCreateWithFlags(&capturing_, cudaStreamNonBlocking) == cudaSuccess) &&
           cudaStreamBeginCapture(capturing_, cudaStreamCaptureModeThreadLocal) == cudaSuccess;
  if (!works_) {
    static_cast<void>(cudaGetLastError());
    return Answer::done;
  }
  const Answer answer = give(capturing_);
  cudaGraph_t graph = nullptr;
  works_ = cudaStreamEndCapture(capturing_, &graph) == cudaSuccess && graph != nullptr;
  if (works_ && answer == Answer::done)
    works_ = cudaGraphInstantiate(&known.graph, graph, 0) == cudaSuccess;
  if (graph != nullptr) cudaGraphDestroy(graph);
  if (!works_) {
    known.graph = nullptr;
    static_cast<void>(cudaGetLastError());
  }
  return answer;
}

}  // namespace ebb::cuda
