#include "ebb/libswap/read/in_parallel.h"

#include <algorithm>
#include <optional>
#include <thread>
#include <vector>

#include "ebb/libswap/sys/mutex.h"
#include "ebb/libswap/sys/thread.h"
#include "ebb/libswap/sys/when_memory.h"

namespace ebb::libswap {

Result<> in_parallel(std::uint32_t workers,
                     const std::function<Result<>(const std::atomic<bool>& stop)>& work) {
  std::atomic<bool> stop = false;
  Mutex mutex;
  std::optional<Error> failure;
  const auto note = [&](Result<> result) {
    if (result) return;
    const MutexLock lock(mutex);
    if (!failure) failure = std::move(result).error();
    stop.store(true);
  };
  const auto take_part = [&] { note(or_no_memory([&] { return work(stop); })); };
  std::vector<std::thread> threads;
  threads.reserve(workers);  // before there are any, which are to be joined
  while (threads.size() + 1 < workers) {
    auto started = start_thread([&take_part] { take_part(); });
    if (!started) {
      note(std::move(started).error());
      break;
    }
    threads.push_back(*std::move(started));
  }
  take_part();
  for (std::thread& thread : threads) thread.join();
  if (failure) return *failure;
  return {};
}

std::uint32_t workers_or_default(std::uint32_t asked) {
  return asked != 0 ? asked : std::clamp(2 * std::thread::hardware_concurrency(), 1u, 16u);
}

}  // namespace ebb::libswap
