#include "ebb/libmuon/comm/together.h"

#include "ebb/libswap/sys/mutex.h"
#include "ebb/libswap/sys/thread.h"
#include "ebb/libswap/sys/when_memory.h"

namespace ebb::libmuon {
namespace {

using Clock = std::chrono::steady_clock;

class Finished {
 public:
  void set() {
    const libswap::MutexLock lock(mutex_);
    set_ = true;
    changed_.notify_all();
  }
  // Whether it is set, after waiting for that so long at most.
  bool within(std::chrono::nanoseconds limit) {
    const libswap::MutexLock lock(mutex_);
    const auto end = Clock::now() + limit;
    while (!set_ && Clock::now() < end) changed_.wait_for(mutex_, end - Clock::now());
    return set_;
  }

 private:
  libswap::Mutex mutex_;
  libswap::Condition changed_;
  bool set_ EBB_GUARDED_BY(mutex_) = false;
};

// Meets the others until all have finished.
Result<> meet_until(Communicator& ranks, Finished& finished) {
  for (;;) {
    const bool mine = finished.within(ranks.limit() / 4);
    EBB_TRY_ASSIGN(const std::int64_t all, ranks.agree(mine ? 1 : 0));
    if (all == 1) return {};
  }
}

}  // namespace

Result<> together(Communicator& ranks, std::string_view doing,
                  const std::function<Result<>()>& work) {
  if (ranks.limit().count() == 0) return libswap::agree_all(ranks, work(), doing);
  Finished finished;
  return together(
      ranks, doing, work,
      {.meet = [&] { return meet_until(ranks, finished); }, .ended = [&] { finished.set(); }});
}

Result<> together(Communicator& ranks, std::string_view doing,
                  const std::function<Result<>()>& work, const Meanwhile& meanwhile) {
  if (ranks.world() == 1) return libswap::agree_all(ranks, work(), doing);
  Result<> mine;
  auto thread = libswap::start_thread([&] {
    mine = libswap::or_no_memory(work);
    meanwhile.ended();
  });
  if (!thread) meanwhile.ended();
  const Result<> met = meanwhile.meet();
  if (thread)
    thread->join();
  else
    mine = std::move(thread).error();
  EBB_TRY(met);
  return libswap::agree_all(ranks, mine, doing);
}

}  // namespace ebb::libmuon
