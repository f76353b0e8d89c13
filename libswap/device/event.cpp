#include "ebb/libswap/device/event.h"

#include <atomic>
#include <utility>
#include <vector>

#include "ebb/formats/core/check.h"
#include "ebb/libswap/sys/mutex.h"
#include "ebb/libswap/sys/when_memory.h"

namespace ebb::libswap {

struct Event::State {
  std::shared_ptr<const EventOrigin> origin;
  Mutex mutex;
  Condition changed;
  bool passed EBB_GUARDED_BY(mutex) = false;
  std::vector<std::function<void()>> waiting EBB_GUARDED_BY(mutex);
};

bool Event::passed() const {
  if (state_ == nullptr) return true;
  const MutexLock lock(state_->mutex);
  return state_->passed;
}

void Event::wait() const {
  if (state_ == nullptr) return;
  const MutexLock lock(state_->mutex);
  while (!state_->passed) state_->changed.wait(state_->mutex);
}

void Event::then(std::function<void()> next) const {
  if (state_ != nullptr) {
    const MutexLock lock(state_->mutex);
    if (!state_->passed) return add_when_memory(state_->waiting, std::move(next));
  }
  next();
}

const EventOrigin* Event::origin() const {
  return state_ == nullptr ? nullptr : state_->origin.get();
}

Event all_of(std::span<const Event> events) {
  const auto left = std::make_shared<std::atomic<std::size_t>>(events.size() + 1);
  const EventSource all;
  const auto one_less = [left, all] {
    if (--*left == 0) all.pass();
  };
  for (const Event& event : events) event.then(one_less);
  one_less();
  return all.event();
}

EventSource::EventSource(std::shared_ptr<const EventOrigin> origin) {
  event_.state_ = std::make_shared<Event::State>();
  event_.state_->origin = std::move(origin);
}

void EventSource::pass() const {
  std::vector<std::function<void()>> waiting;
  {
    const MutexLock lock(event_.state_->mutex);
    EBB_CHECK(!event_.state_->passed);
    event_.state_->passed = true;
    event_.state_->changed.notify_all();
    waiting.swap(event_.state_->waiting);
  }
  for (const auto& next : waiting) next();
}

}  // namespace ebb::libswap
