#include "tests/bindings/c/failing_new.h"

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace ebb::c {
namespace {

thread_local std::uint64_t here = 0;
std::atomic<std::uint64_t> anywhere = 0;

bool fails() {
  if (here > 0 && --here == 0) return true;
  std::uint64_t left = anywhere.load(std::memory_order_relaxed);
  while (left > 0 && !anywhere.compare_exchange_weak(left, left - 1)) {
  }
  return left == 1;
}

void* allocate(std::size_t bytes, std::size_t alignment) {
  const std::size_t whole = (bytes + alignment - 1) / alignment * alignment;
  return fails() ? nullptr : std::aligned_alloc(alignment, whole == 0 ? alignment : whole);
}

void* or_bad_alloc(void* place) {
  if (place == nullptr) throw std::bad_alloc();  // NOLINT: what operator new does
  return place;
}

}  // namespace

void fail_allocation(std::uint64_t k, Of of) {
  here = of == Of::this_thread ? k : 0;
  anywhere = of == Of::all_threads ? k : 0;
}

std::uint64_t allocations_left() { return here + anywhere; }

}  // namespace ebb::c

constexpr std::size_t kUsual = alignof(std::max_align_t);

void* operator new(std::size_t bytes) {
  return ebb::c::or_bad_alloc(ebb::c::allocate(bytes, kUsual));
}
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return ebb::c::or_bad_alloc(ebb::c::allocate(bytes, static_cast<std::size_t>(alignment)));
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return ebb::c::allocate(bytes, kUsual);
}
void operator delete(void* place) noexcept { std::free(place); }
void operator delete(void* place, std::size_t) noexcept { std::free(place); }
void operator delete(void* place, std::align_val_t) noexcept { std::free(place); }
void operator delete(void* place, std::size_t, std::align_val_t) noexcept { std::free(place); }
void operator delete(void* place, const std::nothrow_t&) noexcept { std::free(place); }
