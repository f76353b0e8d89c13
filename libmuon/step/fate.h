// Fate: what became of an engine's last step that keeps it from making the next one.
//
// Synchronises itself: whoever ends a step says what became of it, and that may be any thread that
// hands in a gradient.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "ebb/formats/core/result.h"
#include "ebb/libswap/sys/mutex.h"

namespace ebb::libmuon {

class Fate {
 public:
  enum Trouble : std::uint8_t {
    broken,       // the ranks could not agree whether to go on: the store is to be opened again
    stopped,      // the step was stopped on some rank by an I/O error
    undelivered,  // the step's weights were not handed out to all
    taking,       // masters have taken a part of the weights that they were to take
    writing,      // a part of a state was written
  };
  void set(Trouble trouble, Error why) {
    const libswap::MutexLock lock(mutex_);
    why_[trouble] = std::move(why);
  }
  void clear(Trouble trouble) {
    const libswap::MutexLock lock(mutex_);
    why_[trouble].reset();
  }
  // Answers why, where the engine is in that trouble.
  Result<> check(Trouble trouble) const {
    const libswap::MutexLock lock(mutex_);
    return why_[trouble] ? Result<>(*why_[trouble]) : Result<>();
  }

 private:
  mutable libswap::Mutex mutex_;
  std::array<std::optional<Error>, 5> why_ EBB_GUARDED_BY(mutex_);
};

}  // namespace ebb::libmuon
