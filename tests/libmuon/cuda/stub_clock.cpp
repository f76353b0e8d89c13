// The clock that products take time by, and what a test says of symmetric ones.
#include <mutex>

#include "tests/libmuon/cuda/stub.h"
#include "tests/libmuon/cuda/stub_control.h"

namespace ebb::stub {
namespace {

std::mutex mutex;
SymmetricProducts products;
double time_spent = 0;

}  // namespace

SymmetricProducts symmetric() {
  const std::lock_guard lock(mutex);
  return products;
}
double clock() {
  const std::lock_guard lock(mutex);
  return time_spent;
}
void spend(double time) {
  const std::lock_guard lock(mutex);
  time_spent += time;
}
bool too_large(std::uint64_t multiplications) { return multiplications > 1u << 26; }

}  // namespace ebb::stub

extern "C" void ebb_stub_symmetric(std::uint64_t faster_from, std::uint32_t wrong) {
  const std::lock_guard lock(ebb::stub::mutex);
  ebb::stub::products = {faster_from, wrong != 0};
}
