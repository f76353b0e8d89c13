// Mutex, MutexLock, MutexUnlock, Condition: std::mutex and what belongs to it, with the words that
// clang's thread safety analysis reads (tests/lint/run). Where a member says EBB_GUARDED_BY(mutex),
// code that reaches it without the mutex does not pass. Other compilers see no attributes.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#ifdef __clang__
#define EBB_THREAD_SAFETY(...) __attribute__((__VA_ARGS__))
#else
#define EBB_THREAD_SAFETY(...)
#endif
#define EBB_GUARDED_BY(mutex) EBB_THREAD_SAFETY(guarded_by(mutex))
#define EBB_REQUIRES(...) EBB_THREAD_SAFETY(requires_capability(__VA_ARGS__))
#define EBB_EXCLUDES(...) EBB_THREAD_SAFETY(locks_excluded(__VA_ARGS__))
// Of a function that calls what it is given, which may require a lock that its caller has.
#define EBB_CALLS_WHAT_IT_IS_GIVEN EBB_THREAD_SAFETY(no_thread_safety_analysis)

namespace ebb::libswap {

class EBB_THREAD_SAFETY(capability("mutex")) Mutex {
 public:
  void lock() EBB_THREAD_SAFETY(acquire_capability()) { mutex_.lock(); }
  void unlock() EBB_THREAD_SAFETY(release_capability()) { mutex_.unlock(); }

 private:
  friend class Condition;
  std::mutex mutex_;
};

// Holds a mutex while it lives.
class EBB_THREAD_SAFETY(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) EBB_THREAD_SAFETY(acquire_capability(mutex)) : mutex_(mutex) {
    mutex_.lock();
  }
  ~MutexLock() EBB_THREAD_SAFETY(release_capability()) { mutex_.unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

// Lets others have a mutex while it lives. Its thread holds the mutex again behind it, whatever was
// thrown: so the MutexLock around it finds what it expects.
class EBB_THREAD_SAFETY(scoped_lockable) MutexUnlock {
 public:
  explicit MutexUnlock(Mutex& mutex) EBB_THREAD_SAFETY(release_capability(mutex)) : mutex_(mutex) {
    mutex_.unlock();
  }
  ~MutexUnlock() EBB_THREAD_SAFETY(release_capability()) { mutex_.lock(); }
  MutexUnlock(const MutexUnlock&) = delete;
  MutexUnlock& operator=(const MutexUnlock&) = delete;

 private:
  Mutex& mutex_;
};

// Predicates stand in a loop, where the analysis sees them: while (!ready) changed.wait(mutex);
class Condition {
 public:
  void wait(Mutex& mutex) EBB_REQUIRES(mutex) {
    std::unique_lock lock(mutex.mutex_, std::adopt_lock);
    condition_.wait(lock);
    lock.release();
  }
  // For so long at most.
  void wait_for(Mutex& mutex, std::chrono::nanoseconds limit) EBB_REQUIRES(mutex) {
    std::unique_lock lock(mutex.mutex_, std::adopt_lock);
    condition_.wait_for(lock, limit);
    lock.release();
  }
  void notify_one() { condition_.notify_one(); }
  void notify_all() { condition_.notify_all(); }

 private:
  std::condition_variable condition_;
};

}  // namespace ebb::libswap
