// Staging: room for gradients and new weights on their way that the trainer's own buffers do not
// hold, as what the trainer has them as. AdamW ranges have a place at all times. What travels in
// chunks shares three regions, whose roles go round: while chunk c is swept, one holds its
// gradients, one takes its weights, and through the third the weights of c - 1 leave and then the
// gradients of c + 1 come. Weights that are masters, or high halves of them, come
// with the gradients, behind them (Kind::bound); AdamW ranges' have their place, which takes the
// new ones, too. The gradients of chunks that come before the step have places of their own.
// Allocated once.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "ebb/libmuon/plan/chunks.h"
#include "ebb/libmuon/step/places.h"
#include "ebb/libswap/device/device.h"

namespace ebb::libmuon {

class Staging {
 public:
  enum class Kind : std::uint8_t { gradients, weights, bound };

  struct Needs {
    const StatePlan& plan;  // borrowed, as the next two
    const Chunks& chunks;
    std::span<const Transit> lasting;  // has a place at all times
    std::size_t early = 0;             // so many of the last chunks' gradients do, too
  };
  // In the memory of `device`; null is the host.
  static Result<Staging> make(const Needs& needs, libswap::Device* device);
  // What that allocates.
  static std::uint64_t bytes(const Needs& needs);

  // Places for what the chunk stages: what had them, of two chunks before, is gone. Different
  // chunks may be begun and looked at from different threads.
  void begin(Kind kind, std::size_t chunk);
  // Between steps portions of a state have the room of what travels in a step instead, in fp32,
  // even ones and odd ones by turns: what one may take of this rank. 0: nothing is staged here.
  std::uint64_t portion_bytes() const;
  // Places for what a portion stages of so many states: what had them two portions before is gone.
  void begin_portion(std::size_t portion, std::span<const Transit> transits, std::size_t states);
  libswap::Buffer in_portion(std::size_t portion, std::size_t state, const Transit& transit);

  // REQUIRES: inside a range that has its place here (staged_parts).
  libswap::Buffer at(Kind kind, std::size_t chunk, const Transit& transit);

 private:
  // By kind.
  template <typename T>
  using Each = std::array<T, 3>;

  explicit Staging(const Needs& needs)
      : plan_(&needs.plan),
        chunks_(&needs.chunks),
        first_early_(needs.chunks.count() - needs.early),
        early_(needs.early) {}
  bool early(Kind kind, std::size_t chunk) const {
    return kind == Kind::gradients && chunk >= first_early_;
  }
  Places& lasting(Kind kind) {
    return lasting_[static_cast<std::size_t>(kind == Kind::bound ? Kind::weights : kind)];
  }
  Places& places(Kind kind, std::size_t chunk) {
    if (early(kind, chunk)) return early_[chunk - first_early_];
    return places_[static_cast<std::size_t>(kind)][chunk % 2];
  }
  FlatRange portion_room() const;  // in bytes of the memory
  // What is staged of a trainer's layout: as this, or as it stages it.
  struct As {
    const ModelLayout& trainer;
    std::optional<DType> dtype = {};
  };
  // Behind the first `used` bytes. Returns how many are used then.
  std::uint64_t lay(const As& as, std::span<const Transit> transits, std::uint64_t used,
                    Places& places) const;

  const StatePlan* plan_;
  const Chunks* chunks_;
  std::size_t first_early_;                      // chunk
  Each<Places> lasting_;                         // of what is bound: those of weights
  std::vector<Places> early_;                    // of gradients, by chunk from that one on
  Each<std::array<Places, 2>> places_;           // of chunks, even and odd
  std::array<std::vector<Places>, 2> portions_;  // likewise, by state
  std::uint64_t lasting_bytes_ = 0;              // at the beginning of the memory
  std::array<std::uint64_t, 4> borders_ = {};    // of the regions, in bytes
  libswap::DeviceMemory memory_;
};

}  // namespace ebb::libmuon
