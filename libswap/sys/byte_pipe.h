// BytePipe: bytes between this process and another one, in order, both ways. Nothing waits.
#pragma once

#include <cstddef>
#include <span>

#include "ebb/formats/core/bytes.h"
#include "ebb/formats/core/result.h"

namespace ebb::libswap {

class BytePipe {
 public:
  virtual ~BytePipe() = default;
  // How many of these bytes went, or came into this place: 0 where none can now. One thread writes
  // at a time, and one reads.
  virtual Result<std::size_t> write(ByteView bytes) = 0;
  virtual Result<std::size_t> read(std::span<std::byte> into) = 0;
};

}  // namespace ebb::libswap
