// What a trainer hands to an engine: numbers in the memory of a device or of the host, in fp32 or
// bf16.
#pragma once

#include <bit>
#include <cstdint>
#include <span>
#include <vector>

#include "ebb/libswap/device/device.h"

namespace ebb::test {

class TrainerBuffer {
 public:
  // Null: the host's. Aborts the test program where there is no memory.
  TrainerBuffer(libswap::Device* device, std::uint64_t elems, DType dtype = DType::f32)
      : values_(elems),
        bits_(dtype == DType::bf16 ? elems : 0),
        dtype_(dtype),
        device_(device),
        memory_(make(device, elems * formats::bytes_of(dtype))) {}

  ~TrainerBuffer() { sent_.wait(); }
  TrainerBuffer(TrainerBuffer&&) = default;
  TrainerBuffer& operator=(TrainerBuffer&&) = default;

  libswap::Buffer buffer() {
    if (device_ == nullptr) return host();
    return memory_.buffer().as(dtype_);
  }
  // To be filled; goes where the buffer lies with send(), behind whose event it is there. In bf16
  // what it has no number for is cut off.
  std::span<float> values() { return values_; }
  libswap::Event send() {
    for (std::size_t i = 0; i < bits_.size(); ++i)
      bits_[i] = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(values_[i]) >> 16);
    return sent_ = libswap::copy(host(), buffer(), {});
  }
  // What lies in the buffer.
  std::span<const float> fetch() {
    libswap::copy(buffer(), host(), {}).wait();
    for (std::size_t i = 0; i < bits_.size(); ++i)
      values_[i] = std::bit_cast<float>(std::uint32_t{bits_[i]} << 16);
    return values_;
  }

 private:
  static libswap::DeviceMemory make(libswap::Device* device, std::uint64_t bytes) {
    if (device == nullptr) return {};
    auto memory = libswap::allocate(device, bytes);
    EBB_CHECK(memory.has_value());
    return *std::move(memory);
  }
  libswap::Buffer host() {
    if (dtype_ == DType::f32) return libswap::buffer_of(std::span(values_));
    return libswap::buffer_of(std::as_writable_bytes(std::span(bits_))).as(dtype_);
  }

  std::vector<float> values_;
  std::vector<std::uint16_t> bits_;  // of bf16: what is handed over
  DType dtype_;
  libswap::Device* device_;
  libswap::DeviceMemory memory_;
  libswap::Event sent_ = {};
};

}  // namespace ebb::test
