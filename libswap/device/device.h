// Device: memory beside the host's, with copies and an order of its own. A GPU is one (a plugin's);
// the host is none: its memory is what Buffers without a device lie in.
//
// Copies and kernels are asked for and take place later: an Event passes behind each, and each
// begins behind the events it is given. Every call from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "ebb/formats/core/check.h"
#include "ebb/formats/core/dtype.h"
#include "ebb/formats/core/result.h"
#include "ebb/libswap/device/event.h"

namespace ebb::libswap {

class Device;

// Elements in somebody's memory. Not owned.
struct Buffer {
  std::byte* data = nullptr;
  DType dtype = DType::u8;
  std::uint64_t elems = 0;
  Device* device = nullptr;  // null: the host's memory

  bool empty() const { return elems == 0; }
  std::uint64_t size() const { return elems * formats::bytes_of(dtype); }  // bytes
  // REQUIRES: inside.
  Buffer sub(std::uint64_t first, std::uint64_t count) const;
  // The same bytes as elements of another type. REQUIRES: they are whole ones.
  Buffer as(DType other) const;
  // REQUIRES: the host's memory.
  std::span<std::byte> bytes() const;
  std::span<float> floats() const;         // REQUIRES: f32
  std::span<std::uint16_t> bf16s() const;  // REQUIRES: bf16
  std::span<std::int8_t> int8s() const;    // REQUIRES: i8
  std::span<std::uint16_t> f16s() const;   // REQUIRES: f16
  std::span<std::uint16_t> u16s() const;   // REQUIRES: u16
};
Buffer buffer_of(std::span<std::byte> host);
Buffer buffer_of(std::span<float> host);
// For a copy's source or a kernel's input, which nobody writes through it.
Buffer buffer_of(std::span<const std::byte> host);
Buffer buffer_of(std::span<const float> host);

// Memory of a device, or of the host.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  DeviceMemory(std::shared_ptr<std::byte> data, std::uint64_t bytes, Device* device);
  Buffer buffer() const { return {data_.get(), DType::u8, bytes_, device_}; }

 private:
  std::shared_ptr<std::byte> data_;
  std::uint64_t bytes_ = 0;
  Device* device_ = nullptr;
};

// Memory of the host that a device copies from and to without help, until this goes.
using Pinned = std::shared_ptr<std::byte>;

class Device {
 public:
  virtual ~Device() = default;
  virtual std::string name() const = 0;  // "NVIDIA H200 0"
  // Aligned to 256 bytes at least, zeroed; it goes back when its last owner goes. Code::no_memory.
  virtual Result<DeviceMemory> allocate(std::uint64_t bytes) = 0;
  // Between this device's memory and the host's or another device's of its kind, or inside its own.
  // Copies of one direction take place in the order they are asked for.
  virtual Event copy(const Buffer& from, const Buffer& to, const Event& after) = 0;
  // Makes copies from and to that memory of the host overlap with other work; it may stay as it is.
  virtual Result<Pinned> pin(std::span<std::byte> /*host*/) { return Pinned(); }
  // Why it computes and copies no more, for good: its events pass all the same.
  virtual Result<> status() const { return {}; }
};

// On `device`, or where that is null, on the host (AlignedBuffer).
Result<DeviceMemory> allocate(Device* device, std::uint64_t bytes);
// On the host, pinned for `device` unless that is null.
Result<DeviceMemory> allocate_pinned(Device* device, std::uint64_t bytes);
// REQUIRES: same type and length. Where both are the host's, the call waits for `after`, and
// copies.
Event copy(const Buffer& from, const Buffer& to, const Event& after);

}  // namespace ebb::libswap
