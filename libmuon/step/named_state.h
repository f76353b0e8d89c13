// NamedState: one state of some parameters, by its name, on its way between a trainer and who keeps
// it: in which portions it travels, and where the trainer has it.
// Borrows the plan and the trainer's buffers. Constant after construction; any thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ebb/libmuon/step/routes.h"
#include "ebb/libmuon/step/state_buffer.h"

namespace ebb::libmuon {

class NamedState {
 public:
  // What this rank stages of the state of such parameters, in bytes, where it travels at once.
  static std::uint64_t staged_bytes(const StatePlan& plan, std::span<const StateBuffer> buffers);
  // Of parameters that ascend, the same on all ranks. Portions follow from the layouts and
  // `most_bytes`, of what a rank stages of one, the same on all ranks.
  NamedState(const StatePlan& plan, const Routes& routes, std::uint32_t state,
             std::span<const StateBuffer> buffers, std::uint64_t most_bytes);

  std::uint32_t state() const { return state_; }
  std::size_t portions() const { return portions_.size(); }
  // What travels with one: of matrices, or of AdamW's ranges.
  struct Portion {
    bool matrices = true;
    std::vector<Transit> transits;  // ascending
  };
  const Portion& portion(std::size_t number) const { return portions_[number]; }
  // Those that have some of a range, ascending; what of the range one of them has.
  std::vector<std::size_t> portions_of(const Transit& range) const;
  std::vector<FlatRange> parts(std::size_t portion, const Transit& range) const;
  // This rank's part of a range, where the trainer has it.
  libswap::Buffer of(const Transit& transit) const;

 private:
  struct Piece {
    Transit transit;
    std::size_t portion = 0;
  };
  template <typename Take>
  void for_pieces(const Transit& range, const Take& take) const;
  void add(const Exchange& exchange, bool matrices, std::span<const Transit> wholes,
           std::uint64_t most_bytes);

  const StatePlan& plan_;
  const std::uint32_t state_;
  std::vector<libswap::Buffer> buffers_;  // by parameter
  std::vector<Portion> portions_;
  std::vector<Piece> pieces_;  // of all portions, ascending
};

}  // namespace ebb::libmuon
