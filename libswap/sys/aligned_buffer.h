// AlignedBuffer: memory that O_DIRECT accepts, on huge pages where the kernel gives them (from 2
// MiB on: scattered 4 KiB pages halve a disk's rate), never copied by fork (MADV_DONTFORK: pinned
// pages would be copied eagerly), never in a core dump. Zeroed.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "ebb/formats/core/result.h"

namespace ebb::libswap {

// Why buffers get no huge pages in this process; empty where they may.
std::string no_huge_pages();

// How little memory this process may lock (RLIMIT_MEMLOCK); empty where it may lock all it has.
std::string little_locked_memory();

struct Unmapping {
  void operator()(std::byte* data) const;
  std::uint64_t size = 0;
  pid_t owner = 0;  // a forked child has no such mapping and must not unmap what lies there
};

enum class Pages : std::uint8_t {
  huge,
  small,  // to measure what huge ones are worth
};

class AlignedBuffer {
 public:
  // REQUIRES nothing of `bytes`: 0 gives an empty buffer. Aligned to 4096, to 2 MiB from 2 MiB on.
  static Result<AlignedBuffer> allocate(std::uint64_t bytes, Pages pages = Pages::huge);
  AlignedBuffer() = default;

  std::span<std::byte> bytes() { return {data_.get(), size()}; }
  std::span<const std::byte> bytes() const { return {data_.get(), size()}; }
  std::uint64_t size() const { return data_ == nullptr ? 0 : data_.get_deleter().size; }

 private:
  std::unique_ptr<std::byte, Unmapping> data_;
};

}  // namespace ebb::libswap
