// Ranks as processes of one machine that meet in shared memory: what a trainer's ranks are to each
// other, without a launcher.
#pragma once

#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>

#include "ebb/libswap/store/agreement.h"

namespace ebb::bench {

// Made before fork(); each process takes its own rank's end of it. A rank that dies leaves the
// others waiting: whoever starts them ends them.
class Meeting {
 public:
  static constexpr std::uint32_t kMost = 64;

  // Null when there is no memory, or for more than kMost ranks.
  static std::shared_ptr<Meeting> make(std::uint32_t world) {
    if (world == 0 || world > kMost) return nullptr;
    void* const place =
        ::mmap(nullptr, sizeof(Meeting), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (place == MAP_FAILED) return nullptr;
    auto* const meeting = new (place) Meeting(world);
    return {meeting, [](Meeting* shared) { ::munmap(shared, sizeof(Meeting)); }};
  }

  std::int64_t agree(std::uint32_t rank, std::int64_t mine) {
    said_[rank] = mine;
    ::pthread_barrier_wait(&barrier_);
    const std::int64_t least = *std::min_element(said_.begin(), said_.begin() + world_);
    ::pthread_barrier_wait(&barrier_);  // nobody says the next number before all have seen these
    return least;
  }

 private:
  explicit Meeting(std::uint32_t world) : world_(world) {
    pthread_barrierattr_t shared;
    ::pthread_barrierattr_init(&shared);
    ::pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
    ::pthread_barrier_init(&barrier_, &shared, world);
    ::pthread_barrierattr_destroy(&shared);
  }

  std::uint32_t world_;
  pthread_barrier_t barrier_;
  std::array<std::int64_t, kMost> said_{};
};

class ProcessRank : public libswap::Agreement {
 public:
  ProcessRank(std::shared_ptr<Meeting> meeting, std::uint32_t rank)
      : meeting_(std::move(meeting)), rank_(rank) {}
  Result<std::int64_t> agree(std::int64_t mine) override { return meeting_->agree(rank_, mine); }

 private:
  std::shared_ptr<Meeting> meeting_;
  std::uint32_t rank_;
};

}  // namespace ebb::bench
