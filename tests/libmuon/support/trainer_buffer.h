// What a trainer hands to an engine: numbers in the memory of a device or of the host.
#pragma once

#include <span>
#include <vector>

#include "ebb/libswap/device/device.h"

namespace ebb::test {

class TrainerBuffer {
 public:
  // Null: the host's. Aborts the test program where there is no memory.
  TrainerBuffer(libswap::Device* device, std::uint64_t elems)
      : values_(elems), device_(device), memory_(make(device, elems)) {}

  ~TrainerBuffer() { sent_.wait(); }
  TrainerBuffer(TrainerBuffer&&) = default;
  TrainerBuffer& operator=(TrainerBuffer&&) = default;

  libswap::Buffer buffer() {
    if (device_ == nullptr) return libswap::buffer_of(std::span(values_));
    return memory_.buffer().as(DType::f32);
  }
  // To be filled; goes where the buffer lies with send(), behind whose event it is there.
  std::span<float> values() { return values_; }
  libswap::Event send() { return sent_ = libswap::copy(host(), buffer(), {}); }
  // What lies in the buffer.
  std::span<const float> fetch() {
    libswap::copy(buffer(), host(), {}).wait();
    return values_;
  }

 private:
  static libswap::DeviceMemory make(libswap::Device* device, std::uint64_t elems) {
    if (device == nullptr) return {};
    auto memory = libswap::allocate(device, elems * sizeof(float));
    EBB_CHECK(memory.has_value());
    return *std::move(memory);
  }
  libswap::Buffer host() { return libswap::buffer_of(std::span(values_)); }

  std::vector<float> values_;
  libswap::Device* device_;
  libswap::DeviceMemory memory_;
  libswap::Event sent_ = {};
};

}  // namespace ebb::test
