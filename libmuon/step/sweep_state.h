// SweepState: how far a rank's sweep is through a work of its Flow, and how it ended. For whoever
// has the lock of that Flow.
#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <utility>

#include "ebb/formats/core/result.h"
#include "ebb/libswap/sys/process.h"

namespace ebb::libmuon {

class SweepState {
 public:
  using Clock = std::chrono::steady_clock;

  // Of a new work.
  void begin() {
    swept_ = 0;
    invalid_ = lost_ = false;
  }
  // Work::sweep is called: for a new work, or for the rest of one.
  void start() { running_ = true; }
  void end(Result<> answer) {
    answer_ = std::move(answer);
    rest();
    running_ = false;
  }
  bool running() const { return running_; }
  Result<> take_answer() { return std::exchange(answer_, Result<>()); }

  void turn_to_next() { since_ = Clock::now(); }
  void swept() {
    rest();
    ++swept_;
  }
  std::size_t chunks() const { return swept_; }  // behind it
  // That it has swept chunks, in all works.
  double seconds() const { return seconds_ + (since_ ? libswap::seconds_since(*since_) : 0); }

  // Nobody may go on with what it did; `lose`: because memory was not there.
  void invalidate() { invalid_ = true; }
  void lose() { lost_ = invalid_ = true; }
  bool invalid() const { return invalid_; }
  bool lost() const { return lost_; }

 private:
  void rest() {
    seconds_ = seconds();
    since_.reset();
  }

  bool running_ = false, invalid_ = false, lost_ = false;
  std::size_t swept_ = 0;
  Result<> answer_;
  std::optional<Clock::time_point> since_;
  double seconds_ = 0;
};

}  // namespace ebb::libmuon
