// Unique<Traits>: sole owner of a handle that is a number, as unique_ptr is of a pointer.
// Traits: `Handle`, `static constexpr Handle kNone`, `static void release(Handle)`.
#pragma once

#include <unistd.h>

#include <utility>

namespace ebb::libswap {

template <typename Traits>
class Unique {
 public:
  using Handle = typename Traits::Handle;

  Unique() = default;
  explicit Unique(Handle handle) : handle_(handle) {}
  Unique(Unique&& other) noexcept : handle_(std::exchange(other.handle_, Traits::kNone)) {}
  Unique& operator=(Unique&& other) noexcept {
    if (this != &other) {
      reset();
      handle_ = std::exchange(other.handle_, Traits::kNone);
    }
    return *this;
  }
  ~Unique() { reset(); }

  Handle get() const { return handle_; }
  explicit operator bool() const { return handle_ != Traits::kNone; }
  void reset() {
    if (handle_ != Traits::kNone) Traits::release(std::exchange(handle_, Traits::kNone));
  }

 private:
  Handle handle_ = Traits::kNone;
};

struct DescriptorTraits {
  using Handle = int;
  static constexpr int kNone = -1;
  static void release(int descriptor) { ::close(descriptor); }
};
using Descriptor = Unique<DescriptorTraits>;

}  // namespace ebb::libswap
