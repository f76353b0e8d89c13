// EarlyPieces: how far a Flow is with what may come between two works, piece by piece. For whoever
// has the lock of that Flow.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "ebb/formats/core/result.h"

namespace ebb::libmuon {

class EarlyPieces {
 public:
  explicit EarlyPieces(std::size_t count) : count_(count) {}

  // The first `pieces` are ready on this rank.
  void ready(std::size_t pieces) { ready_ = pieces; }
  std::size_t came() const { return came_; }
  bool next_is_ready() const { return ready_ > came_; }
  // Whether the next one may come.
  bool due() const { return came_ < count_ && !called_off_ && !error_; }

  void begin() { under_way_ = true; }
  // False: it was called off, as are the others until a work has ended.
  void end(Result<bool> brought) {
    under_way_ = false;
    if (!brought)
      error_ = std::move(brought).error();
    else if (*brought)
      ++came_;
    else
      called_off_ = true;
  }
  bool under_way() const { return under_way_; }
  // Why the ranks cannot meet any more.
  Result<> ranks_meet() const { return error_ ? *error_ : Result<>(); }

  // No more comes, until forget().
  void drop() { dropping_ = true; }
  bool dropping() const { return dropping_; }
  // All are to come again.
  void forget() {
    dropping_ = called_off_ = false;
    ready_ = came_ = 0;
  }
  // What a work that ended whole has left: what came, nothing, or all, and no more is to come.
  enum class Left : std::uint8_t { what_came, none, all };
  void work_ended(Left left) {
    called_off_ = false;
    if (left == Left::none) ready_ = came_ = 0;
    if (left == Left::all) came_ = count_;
  }

 private:
  const std::size_t count_;
  std::size_t ready_ = 0, came_ = 0;  // pieces
  bool under_way_ = false, called_off_ = false, dropping_ = false;
  std::optional<Error> error_;
};

}  // namespace ebb::libmuon
