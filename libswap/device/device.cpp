#include "ebb/libswap/device/device.h"

#include <algorithm>
#include <utility>

#include "ebb/libswap/sys/aligned_buffer.h"

namespace ebb::libswap {

Buffer Buffer::sub(std::uint64_t first, std::uint64_t count) const {
  EBB_CHECK(first <= elems && count <= elems - first);
  return {data + first * formats::bytes_of(dtype), dtype, count, device};
}

Buffer Buffer::as(DType other) const {
  EBB_CHECK(size() % formats::bytes_of(other) == 0);
  return {data, other, size() / formats::bytes_of(other), device};
}

std::span<std::byte> Buffer::bytes() const {
  EBB_CHECK(device == nullptr);
  return {data, size()};
}

std::span<float> Buffer::floats() const {
  EBB_CHECK(device == nullptr && dtype == DType::f32);
  return {reinterpret_cast<float*>(data), elems};
}

std::span<std::uint16_t> Buffer::bf16s() const {
  EBB_CHECK(device == nullptr && dtype == DType::bf16);
  return {reinterpret_cast<std::uint16_t*>(data), elems};
}

std::span<std::int8_t> Buffer::int8s() const {
  EBB_CHECK(device == nullptr && dtype == DType::i8);
  return {reinterpret_cast<std::int8_t*>(data), elems};
}

std::span<std::uint16_t> Buffer::f16s() const {
  EBB_CHECK(device == nullptr && dtype == DType::f16);
  return {reinterpret_cast<std::uint16_t*>(data), elems};
}

std::span<std::uint16_t> Buffer::u16s() const {
  EBB_CHECK(device == nullptr && dtype == DType::u16);
  return {reinterpret_cast<std::uint16_t*>(data), elems};
}

Buffer buffer_of(std::span<std::byte> host) { return {host.data(), DType::u8, host.size()}; }

Buffer buffer_of(std::span<float> host) {
  return {reinterpret_cast<std::byte*>(host.data()), DType::f32, host.size()};
}

Buffer buffer_of(std::span<const std::byte> host) {
  return buffer_of(std::span(const_cast<std::byte*>(host.data()), host.size()));
}

Buffer buffer_of(std::span<const float> host) {
  return buffer_of(std::span(const_cast<float*>(host.data()), host.size()));
}

DeviceMemory::DeviceMemory(std::shared_ptr<std::byte> data, std::uint64_t bytes, Device* device)
    : data_(std::move(data)), bytes_(bytes), device_(device) {}

Result<DeviceMemory> allocate(Device* device, std::uint64_t bytes) {
  if (bytes == 0) return DeviceMemory();
  if (device != nullptr) return device->allocate(bytes);
  EBB_TRY_ASSIGN(AlignedBuffer buffer, AlignedBuffer::allocate(bytes));
  const auto owner = std::make_shared<AlignedBuffer>(std::move(buffer));
  return DeviceMemory({owner, owner->bytes().data()}, bytes, nullptr);
}

Result<DeviceMemory> allocate_pinned(Device* device, std::uint64_t bytes) {
  EBB_TRY_ASSIGN(DeviceMemory memory, allocate(nullptr, bytes));
  if (device == nullptr || bytes == 0) return memory;
  EBB_TRY_ASSIGN(Pinned pinned, device->pin(memory.buffer().bytes()));
  struct Both {  // no longer pinned when it is freed
    DeviceMemory memory;
    Pinned pinned;
  };
  std::byte* const data = memory.buffer().bytes().data();
  const auto both = std::make_shared<Both>(std::move(memory), std::move(pinned));
  return DeviceMemory({both, data}, bytes, nullptr);
}

Event copy(const Buffer& from, const Buffer& to, const Event& after) {
  EBB_CHECK(from.dtype == to.dtype && from.elems == to.elems);
  Device* const device = from.device != nullptr ? from.device : to.device;
  if (device != nullptr) return device->copy(from, to, after);
  after.wait();
  if (from.data != to.data) std::ranges::copy(from.bytes(), to.data);
  return {};
}

}  // namespace ebb::libswap
