// RingPipe: a BytePipe through memory that two processes of one machine share: a ring each way.
#pragma once

#include <cstdint>
#include <memory>

#include "ebb/libswap/sys/byte_pipe.h"
#include "ebb/libswap/sys/unique.h"

namespace ebb::libswap {

class RingPipe : public BytePipe {
 public:
  // Of the two processes, the one that makes the memory, and the one that is given it.
  enum class End : std::uint8_t { maker, guest };

  // Memory of its own, without a name, that nobody can make smaller: two rings of this size, a
  // power of two.
  static Result<Descriptor> make_memory(std::uint64_t ring_bytes);
  // Maps it; the descriptor can be closed then.
  static Result<std::unique_ptr<RingPipe>> open(const Descriptor& memory, End end);
  ~RingPipe() override;
  RingPipe(const RingPipe&) = delete;
  RingPipe& operator=(const RingPipe&) = delete;

  Result<std::size_t> write(ByteView bytes) override;
  Result<std::size_t> read(std::span<std::byte> into) override;

 private:
  struct Counts;
  struct Ring {
    Counts* counts = nullptr;
    std::byte* bytes = nullptr;
  };
  RingPipe(std::byte* memory, std::uint64_t ring_bytes, End end);
  Result<std::uint64_t> held(const Ring& ring) const;

  std::byte* const memory_;
  const std::uint64_t size_;  // of a ring
  Ring out_, in_;
};

}  // namespace ebb::libswap
