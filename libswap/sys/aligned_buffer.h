// AlignedBuffer: memory that O_DIRECT accepts, on huge pages where the kernel gives them (from 2
// MiB on: scattered 4 KiB pages halve a disk's rate), never copied by fork (MADV_DONTFORK: pinned
// pages would be copied eagerly), never in a core dump. Zeroed.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "ebb/formats/core/result.h"

namespace ebb::libswap {

class AlignedBuffer {
 public:
  // REQUIRES nothing of `bytes`: 0 gives an empty buffer. Aligned to 4096, to 2 MiB from 2 MiB on.
  static Result<AlignedBuffer> allocate(std::uint64_t bytes);
  AlignedBuffer() = default;
  AlignedBuffer(AlignedBuffer&& other) noexcept;
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept;
  ~AlignedBuffer();

  std::span<std::byte> bytes() { return {data_, size_}; }
  std::span<const std::byte> bytes() const { return {data_, size_}; }
  std::uint64_t size() const { return size_; }

 private:
  AlignedBuffer(std::byte* data, std::uint64_t size, pid_t owner)
      : data_(data), size_(size), owner_(owner) {}
  void release();

  std::byte* data_ = nullptr;
  std::uint64_t size_ = 0;
  pid_t owner_ = 0;  // a forked child has no such mapping and must not unmap what lies there
};

}  // namespace ebb::libswap
