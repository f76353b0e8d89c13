// Rings when some time is over, by a thread of its own: on a machine that does other work, too, it
// is as late as what is compared with it. So a test says "sooner than twice the limit".
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

namespace ebb::test_support {

class Alarm {
 public:
  explicit Alarm(std::chrono::milliseconds time)
      : thread_([this, time](const std::stop_token& over) {
          std::mutex mutex;
          std::unique_lock lock(mutex);
          std::condition_variable_any never;
          never.wait_for(lock, over, time, [] { return false; });
          rang_ = !over.stop_requested();
        }) {}
  bool rang() const { return rang_; }

 private:
  std::atomic<bool> rang_ = false;
  std::jthread thread_;  // the last: it is stopped and joined before the rest ends
};

}  // namespace ebb::test_support
