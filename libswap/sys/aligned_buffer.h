// AlignedBuffer: memory that O_DIRECT accepts, on huge pages where the kernel gives them, never copied
// by fork (MADV_DONTFORK). Zeroed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "formats/core/result.h"

namespace libswap {

class AlignedBuffer {
 public:
  static formats::Result<AlignedBuffer> allocate(std::uint64_t bytes);
  AlignedBuffer() = default;
  AlignedBuffer(AlignedBuffer&& other) noexcept;
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept;
  ~AlignedBuffer();

  std::span<std::byte> bytes() { return {data_, size_}; }
  std::span<const std::byte> bytes() const { return {data_, size_}; }
  std::uint64_t size() const { return size_; }

 private:
  AlignedBuffer(std::byte* data, std::uint64_t size) : data_(data), size_(size) {}
  std::byte* data_ = nullptr;
  std::uint64_t size_ = 0;
};

}  // namespace libswap
