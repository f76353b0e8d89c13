// A stream of the stub: a thread.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include "tests/libmuon/cuda/stub.h"

struct CUstream_st {
  CUstream_st() : thread([this] { loop(); }) {}
  ~CUstream_st() {
    {
      const std::lock_guard lock(mutex);
      ending = true;
      changed.notify_all();
    }
    thread.join();
  }
  void add(std::function<void()> work) {
    const std::lock_guard lock(mutex);
    if (captured) {
      captured->push_back(std::move(work));
      return;
    }
    queue.push_back(std::move(work));
    changed.notify_all();
  }
  void loop() {
    std::minstd_rand random(ebb::stub::next_seed());
    while (true) {
      std::function<void()> work;
      {
        std::unique_lock lock(mutex);
        changed.wait(lock, [&] { return ending || !queue.empty(); });
        if (queue.empty()) return;
        work = std::move(queue.front());
        queue.pop_front();
      }
      // One time in four: what stands behind it is late, too.
      if (const std::uint32_t late = ebb::stub::late(); late != 0 && random() % 4 == 0)
        std::this_thread::sleep_for(std::chrono::microseconds(random() % late));
      work();
    }
  }

  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> queue;
  std::optional<std::vector<std::function<void()>>> captured;  // instead of being done
  bool ending = false;
  std::thread thread;
};
