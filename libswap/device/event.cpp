#include "ebb/libswap/device/event.h"

#include <utility>
#include <vector>

#include "ebb/formats/core/check.h"
#include "ebb/libswap/sys/mutex.h"

namespace ebb::libswap {

struct Event::State {
  Mutex mutex;
  bool passed EBB_GUARDED_BY(mutex) = false;
  std::vector<std::function<void()>> waiting EBB_GUARDED_BY(mutex);
};

bool Event::passed() const {
  if (state_ == nullptr) return true;
  const MutexLock lock(state_->mutex);
  return state_->passed;
}

void Event::then(std::function<void()> next) const {
  if (state_ != nullptr) {
    const MutexLock lock(state_->mutex);
    if (!state_->passed) return state_->waiting.push_back(std::move(next));
  }
  next();
}

EventSource::EventSource() { event_.state_ = std::make_shared<Event::State>(); }

void EventSource::pass() const {
  std::vector<std::function<void()>> waiting;
  {
    const MutexLock lock(event_.state_->mutex);
    EBB_CHECK(!event_.state_->passed);
    event_.state_->passed = true;
    waiting.swap(event_.state_->waiting);
  }
  for (const auto& next : waiting) next();
}

}  // namespace ebb::libswap
