// Staging: room for gradients and new weights on their way that the trainer's own buffers do not
// hold. AdamW ranges have a place at all times. What travels in chunks shares three regions, whose
// roles go round: while chunk c is swept, one holds its gradients, one takes its weights, and
// through the third the weights of c - 1 leave and then the gradients of c + 1 come. Allocated
// once.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "ebb/libmuon/plan/chunks.h"
#include "ebb/libswap/sys/aligned_buffer.h"

namespace ebb::libmuon {

class Staging {
 public:
  enum class Kind : std::uint8_t { gradients, weights };

  // `lasting`: what has a place at all times. `plan` and `chunks` are borrowed.
  static Result<Staging> make(const StatePlan& plan, const Chunks& chunks,
                              std::span<const Transit> lasting);
  // What that allocates.
  static std::uint64_t bytes(const StatePlan& plan, const Chunks& chunks,
                             std::span<const Transit> lasting);

  // Places for what the chunk stages: what had them, of two chunks before, is gone. Different
  // chunks may be begun and looked at from different threads.
  void begin(Kind kind, std::size_t chunk);
  // REQUIRES: inside a range that has its place here (staged_part).
  std::span<float> at(Kind kind, std::size_t chunk, const Transit& transit);

 private:
  struct Place {
    std::uint32_t param = 0;
    FlatRange range;
    std::uint64_t first = 0;  // in `memory_`, in elements
  };
  using Places = std::vector<Place>;  // parameters ascending
  // By kind.
  template <typename T>
  using Both = std::array<T, 2>;

  Staging(const StatePlan& plan, const Chunks& chunks) : plan_(&plan), chunks_(&chunks) {}
  Places& places(Kind kind, std::size_t chunk) {
    return places_[static_cast<std::size_t>(kind)][chunk % 2];
  }
  // Behind the first `used` elements. Returns how many are used then.
  std::uint64_t lay(Kind kind, std::span<const Transit> transits, std::uint64_t used,
                    Places& places) const;

  const StatePlan* plan_;
  const Chunks* chunks_;
  Both<Places> lasting_;
  Both<std::array<Places, 2>> places_;         // of chunks, even and odd
  std::array<std::uint64_t, 4> borders_ = {};  // of the regions, in elements
  libswap::AlignedBuffer memory_;
};

}  // namespace ebb::libmuon
