// NamedStates: states of some parameters, by their names, on their way between a trainer and who
// keeps them: in which portions they travel, together, and where the trainer has them.
// Borrows the plan and the trainer's buffers. Constant after construction; any thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ebb/libmuon/step/exchange.h"
#include "ebb/libmuon/step/state_buffer.h"

namespace ebb::libmuon {

class NamedStates {
 public:
  // One of them, by its number; of parameters that ascend.
  struct One {
    std::uint32_t state = 0;
    std::vector<StateBuffer> buffers;
  };
  // What this rank stages of one state of such parameters, in bytes, where it travels at once.
  static std::uint64_t staged_bytes(const StatePlan& plan, std::span<const StateBuffer> buffers);
  // Of the same parameters, also on all ranks. Portions follow from the layouts and `most_bytes`,
  // of what a rank stages of one state, the same on all ranks. REQUIRES: there is a state.
  // They travel as weights do, by `out`.
  NamedStates(const StatePlan& plan, const Exchange& out, std::span<const One> states,
              std::uint64_t most_bytes);
  static NamedStates none(const StatePlan& plan) { return NamedStates(plan); }

  std::size_t count() const { return states_.size(); }
  std::uint32_t state(std::size_t i) const { return states_[i].state; }
  std::size_t portions() const { return portions_.size(); }
  // What travels with one, ascending.
  std::span<const Transit> portion(std::size_t number) const { return portions_[number]; }
  // Those that have some of a range, ascending; what of the range one of them has.
  std::vector<std::size_t> portions_of(const Transit& range) const;
  std::vector<FlatRange> parts(std::size_t portion, const Transit& range) const;
  // This rank's part of a range of state i, where the trainer has it.
  libswap::Buffer of(std::size_t i, const Transit& transit) const;

 private:
  explicit NamedStates(const StatePlan& plan) : plan_(plan) {}
  struct Piece {
    Transit transit;
    std::size_t portion = 0;
  };
  template <typename Take>
  void for_pieces(const Transit& range, const Take& take) const;

  const StatePlan& plan_;
  struct Kept {
    std::uint32_t state = 0;
    std::vector<libswap::Buffer> buffers;  // by parameter
  };
  std::vector<Kept> states_;
  std::vector<std::vector<Transit>> portions_;
  std::vector<Piece> pieces_;  // of all portions, ascending
};

}  // namespace ebb::libmuon
