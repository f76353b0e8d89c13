// Staging: room for gradients or new weights on their way that the trainer's own buffers do not
// hold: those of one chunk, and those of AdamW ranges, which last. Allocated once.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ebb/libmuon/plan/chunks.h"
#include "ebb/libswap/sys/aligned_buffer.h"

namespace ebb::libmuon {

class Staging {
 public:
  // `trainer`: the layout of the trainer's buffers. Both are borrowed. `lasting`: what has a place
  // at all times; `chunk_elems`: the most of a chunk.
  static Result<Staging> make(const StatePlan& plan, const Layout& trainer,
                              std::span<const Transit> lasting, std::uint64_t chunk_elems);

  // The chunk that follows, of other parameters than those that last.
  void begin(std::span<const Transit> transits);
  // REQUIRES: inside a range that has its place here (staged_part).
  std::span<float> at(const Transit& transit);

 private:
  struct Place {
    FlatRange range;
    std::uint64_t first = 0;  // in `memory_`, in elements
  };
  Staging(const StatePlan& plan, const Layout& trainer);
  std::uint64_t lay(std::span<const Transit> transits, std::uint64_t used);

  const StatePlan* plan_;
  const Layout* trainer_;
  std::vector<Place> places_;  // by parameter
  std::uint64_t lasting_ = 0;  // elements
  libswap::AlignedBuffer memory_;
};

}  // namespace ebb::libmuon
