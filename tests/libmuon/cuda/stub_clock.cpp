// The clock that products take time by, and what a test says of symmetric ones.
#include <mutex>

#include "plugins/cuda/launch.h"
#include "tests/libmuon/cuda/stub.h"
#include "tests/libmuon/cuda/stub_control.h"

namespace ebb::stub {
namespace {

std::mutex mutex;
std::uint64_t faster_from = 0;
bool wrong = false;
double time_spent = 0;

}  // namespace

double clock() {
  const std::lock_guard lock(mutex);
  return time_spent;
}
void spend(double time) {
  const std::lock_guard lock(mutex);
  time_spent += time;
}
bool has_symmetric() {
  const std::lock_guard lock(mutex);
  return faster_from != 0;
}
bool too_large(std::uint64_t multiplications) { return multiplications > 1u << 28; }

bool runs(cudaStream_t stream, const cuda::Symmetric& product) {
  const auto& [left, from, to, alpha, beta] = product;
  {
    const std::lock_guard lock(mutex);
    time_spent += to.rows >= faster_from ? 0.5 : 2;
    if (!wrong) return !too_large(to.rows * to.rows * left.cols * to.count);
  }
  static_cast<void>(cudaMemsetAsync(to.data, 1, 2 * to.rows * to.ld, stream));
  return false;
}
bool runs(cudaStream_t, const cuda::Batch& mirrored) {
  return !too_large(mirrored.rows * mirrored.rows * mirrored.cols * mirrored.count);
}

}  // namespace ebb::stub

extern "C" void ebb_stub_symmetric(std::uint64_t faster_from, std::uint32_t wrong) {
  const std::lock_guard lock(ebb::stub::mutex);
  ebb::stub::faster_from = faster_from;
  ebb::stub::wrong = wrong != 0;
}
