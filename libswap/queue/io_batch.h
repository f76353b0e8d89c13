// IoBatch: requests that are in flight together, and the first failure among them. One thread adds
// and waits; it must wait for all before the batch goes.
#pragma once

#include <functional>

#include "ebb/formats/core/result.h"
#include "ebb/libswap/sys/mutex.h"

namespace ebb::libswap {

class IoBatch {
 public:
  // One more: what the request is to call when it is done.
  std::function<void(Result<>)> add() {
    const MutexLock lock(mutex_);
    ++in_flight_;
    return [this](Result<> result) {
      const MutexLock inside(mutex_);  // to the end: who waits ends this object
      --in_flight_;
      if (!result && outcome_) outcome_ = std::move(result);
      changed_.notify_all();
    };
  }
  // Waits until fewer than `most` are in flight. False: one has failed, add no more.
  bool wait_below(std::uint32_t most) {
    const MutexLock lock(mutex_);
    while (in_flight_ >= most) changed_.wait(mutex_);
    return outcome_.has_value();
  }
  Result<> wait() {
    wait_below(1);
    const MutexLock lock(mutex_);
    return outcome_;
  }

 private:
  Mutex mutex_;
  Condition changed_;
  std::uint32_t in_flight_ EBB_GUARDED_BY(mutex_) = 0;
  Result<> outcome_ EBB_GUARDED_BY(mutex_);
};

}  // namespace ebb::libswap
