// Pool: the threads that compute on one rank. Jobs are short, never wait for one another and never
// for a disk. Checksums and work on tiles go before Newton-Schulz panels, so that the disk has work
// while a matrix is computed.
//
// Every call from any thread. With one thread there are no workers: whoever waits does the work.
// A job of run() may find no memory, which its caller hears of; those of post() and begin() may
// not: nobody would.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "ebb/formats/core/result.h"
#include "ebb/libswap/device/event.h"
#include "ebb/libswap/stats.h"

namespace ebb::libswap {

// What is done in parallel: job(0) ... job(count - 1), once each.
struct Stage {
  std::size_t count = 0;
  std::function<void(std::size_t)> job;
};
// Stages one after the other.
using Chain = std::vector<Stage>;

struct PoolStats {
  std::uint64_t jobs = 0;    // run, by workers and by those who waited
  std::uint64_t chains = 0;  // begun
  double slept_s = 0;        // of those who waited, with nothing to do
};
std::vector<Stat> stats_of(const PoolStats& stats);

class Pool {
 public:
  Pool();  // no workers, the caller does all
  // One of these is the caller. Fails where a worker's thread cannot start.
  static Result<std::unique_ptr<Pool>> start(std::uint32_t threads);
  ~Pool();  // REQUIRES: nothing that was posted or started is left
  std::uint32_t threads() const;

  // Returns when all are done; the caller works too. Throws what a job threw, behind the last.
  void run(std::size_t count, const std::function<void(std::size_t)>& job);
  // For some thread, soon; before every chain. Waits for the memory that it needs.
  void post(std::function<void()> job);
  // Begins at once, behind the chains begun before it; the event passes behind its last stage,
  // maybe a moment before those of earlier ones.
  Event begin(Chain chain);

  // Works on what is queued until nothing is, nor under way.
  void help_until_idle();
  // Works on what is queued until `ready` answers true; sleeps while nothing is. What `ready` looks
  // at may change without a word for some milliseconds; wake() says that it did. Returns the
  // seconds slept. REQUIRES: `ready` takes no lock that is held where wake(), post() or begin() are
  // called.
  double help_until(const std::function<bool()>& ready);
  // The same until an event has passed, of whatever device.
  double help_until(const Event& event);
  void wake();

  PoolStats stats() const;

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;  // shared with what is to wake it
};

}  // namespace ebb::libswap
