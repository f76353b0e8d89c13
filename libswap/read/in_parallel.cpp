#include "ebb/libswap/read/in_parallel.h"

#include <algorithm>
#include <optional>
#include <thread>
#include <vector>

#include "ebb/libswap/sys/mutex.h"
#include "ebb/libswap/sys/thread.h"

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
  std::vector<std::thread> threads;
  while (threads.size() + 1 < workers) {
    auto started = start_thread([&] { note(work(stop)); });
    if (!started) {
      note(std::move(started).error());
      break;
    }
    threads.push_back(*std::move(started));
  }
  note(work(stop));
  for (std::thread& thread : threads) thread.join();
  if (failure) return *failure;
  return {};
}

std::uint32_t workers_or_default(std::uint32_t asked) {
  return asked != 0 ? asked : std::clamp(2 * std::thread::hardware_concurrency(), 1u, 16u);
}

}  // namespace ebb::libswap
