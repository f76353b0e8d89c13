// Staging: room for the gradients or new weights of one chunk that the trainer's own buffers do not
// hold. Allocated once.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ebb/libmuon/plan/chunks.h"
#include "ebb/libswap/sys/aligned_buffer.h"

namespace ebb::libmuon {

class Staging {
 public:
  // `trainer`: the layout of the trainer's buffers. Both are borrowed.
  static Result<Staging> make(const StatePlan& plan, const Layout& trainer, std::uint64_t elems);

  // The chunk that follows: of its ranges those that this rank owns and `trainer` does not hold.
  void begin(std::span<const Transit> transits);
  // REQUIRES: inside a range of this chunk that is staged.
  std::span<float> at(const Transit& transit);

 private:
  struct Place {
    FlatRange range;
    std::uint64_t first = 0;  // in `memory_`, in elements
  };
  Staging(const StatePlan& plan, const Layout& trainer);

  const StatePlan* plan_;
  const Layout* trainer_;
  std::vector<Place> places_;  // by parameter, of the present chunk
  libswap::AlignedBuffer memory_;
};

}  // namespace ebb::libmuon
