// Ranks as threads of a test; their agreement is a barrier.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "ebb/libswap/store/agreement.h"

namespace ebb::libswap {

// The agreement of `world` threads. A rank that leaves (its thread ended, or it "crashed") makes
// every agreement of the others fail with Code::peer, now and later.
class ThreadAgreement {
 public:
  explicit ThreadAgreement(std::uint32_t world) : world_(world) {}

  Result<std::int64_t> agree(std::int64_t mine) {
    std::unique_lock lock(mutex_);
    if (gone_) return peer();
    lowest_ = arrived_ == 0 ? mine : std::min(lowest_, mine);
    if (++arrived_ == world_) {
      arrived_ = 0;
      answer_ = lowest_;
      ++round_;
      changed_.notify_all();
      return answer_;
    }
    const std::uint64_t round = round_;
    changed_.wait(lock, [&] { return gone_ || round_ != round; });
    // An answer that is complete counts, even if somebody left since.
    return round_ != round ? Result<std::int64_t>(answer_) : peer();
  }
  void leave() {
    const std::lock_guard lock(mutex_);
    gone_ = true;
    changed_.notify_all();
  }

 private:
  static Error peer() { return {Code::peer, "another rank is gone"}; }

  const std::uint32_t world_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint32_t arrived_ = 0;
  std::uint64_t round_ = 0;
  std::int64_t lowest_ = 0;
  std::int64_t answer_ = 0;
  bool gone_ = false;
};

class RankAgreement : public Agreement {
 public:
  explicit RankAgreement(ThreadAgreement& all) : all_(all) {}
  Result<std::int64_t> agree(std::int64_t mine) override { return all_.agree(mine); }

 private:
  ThreadAgreement& all_;
};

// Runs `body(rank, agreement)` on one thread a rank and waits for all.
inline void run_ranks(std::uint32_t world,
                      const std::function<void(std::uint32_t, Agreement&)>& body) {
  ThreadAgreement all(world);
  std::vector<std::thread> threads;
  for (std::uint32_t rank = 0; rank < world; ++rank)
    threads.emplace_back([&, rank] {
      RankAgreement agreement(all);
      body(rank, agreement);
      all.leave();
    });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace ebb::libswap
