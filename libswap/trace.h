// Trace: what happened when, as spans in a ring that becomes Chrome trace JSON (loads in Perfetto):
// when it is full, the oldest give way to the newest. One process per rank, lanes for each kind of
// work, each of one thread or of transfers one after another. Times are the machine's steady clock:
// the traces of several processes fit together. Cheap enough to stay on: a span is 64 bytes, and
// costs a lock and a copy.
//
// Every call from any thread.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "ebb/formats/core/units.h"
#include "ebb/libswap/sys/mutex.h"

namespace ebb::libswap {

enum class Lane : std::uint8_t { step, wait, compute, read, write, exchange, commit };
std::string_view name_of(Lane lane);

// What a span moved, where it was a transfer. Transfers overlap each other: each gets a lane where
// it is alone, and how many are under way is a counter.
struct Transfer {
  std::uint64_t tile = 0;
  std::uint64_t bytes = 0;  // 0: no transfer
};

// Steps as numbers; of all ranks together, over the steps of which nothing has left the ring.
struct StepFigures {
  std::uint64_t steps = 0;  // a rank's counts by itself
  double step_s = 0;
  double io_s = 0;          // of that, with a transfer under way
  double overlap_s = 0;     // of that, with computing or exchange at the same time
  double exposed_s = 0;     // of step_s, asleep until a transfer had ended
  double wall_s = 0;        // with a step under way on some rank
  std::uint64_t bytes = 0;  // of transfers that began in a step

  double overlap() const { return io_s > 0 ? overlap_s / io_s : 0; }         // of I/O
  double exposed_io() const { return step_s > 0 ? exposed_s / step_s : 0; }  // of a step
  // Of what the disk gives: `limit` in bytes per second, reads and writes together.
  double share_of(double limit) const {
    return limit > 0 && wall_s > 0 ? static_cast<double>(bytes) / wall_s / limit : 0;
  }
};

class Trace {
 public:
  using Clock = std::chrono::steady_clock;

  enum class Begins : std::uint8_t { now, with_start };
  explicit Trace(std::size_t most_spans = 1u << 18, Begins begins = Begins::now)
      : most_spans_(most_spans), on_(begins == Begins::now) {}

  // Forgets what was, and takes what comes.
  void start();
  // Takes no more; what was stays.
  void stop() { on_.store(false, std::memory_order_relaxed); }

  // `name` must outlive the trace (a literal).
  void add(Rank rank, Lane lane, const char* name, Clock::time_point begin, Clock::time_point end,
           Transfer transfer = {});
  // A span on Lane::step: what begins on that rank while it lasts belongs to step `number`.
  void add_step(Rank rank, const char* name, std::uint64_t number, Clock::time_point begin,
                Clock::time_point end);
  // A number that changes: `value` from now on.
  void count(Rank rank, const char* name, std::uint64_t value);
  // What lies in a rank's tiles, for people.
  void name_tiles(Rank rank, std::vector<std::string> tensors);

  std::string to_chrome_json() const;
  StepFigures step_figures() const;
  std::uint64_t spans() const;  // that were added, those that gave way included

  // The first bytes of its JSON: by them a program knows an earlier trace of its own.
  static constexpr std::string_view kBeginning =
      "{\"displayTimeUnit\":\"ms\",\"otherData\":{\"dropped_spans\":";

  struct Span {
    enum class Kind : std::uint8_t { work, transfer, step, count };
    const char* name = nullptr;
    Clock::time_point begin;
    Clock::time_point end;
    std::thread::id thread;
    std::uint64_t number = 0;  // tile, step, or the value that is counted
    std::uint64_t bytes = 0;
    Rank rank{};
    Lane lane{};
    Kind kind{};
  };

 private:
  void put(const Span& span);
  std::vector<Span> by_begin() const EBB_REQUIRES(mutex_);

  const std::size_t most_spans_;
  std::atomic<bool> on_;
  mutable Mutex mutex_;
  std::vector<Span> ring_ EBB_GUARDED_BY(mutex_);
  std::uint64_t added_ EBB_GUARDED_BY(mutex_) = 0;
  std::map<Rank, std::vector<std::string>> tiles_ EBB_GUARDED_BY(mutex_);
};

// Adds a span from construction to destruction; a null trace costs one branch.
class TraceSpan {
 public:
  TraceSpan(Trace* trace, Rank rank, Lane lane, const char* name)
      : trace_(trace), name_(name), begin_(Trace::Clock::now()), rank_(rank), lane_(lane) {}
  // On Lane::step.
  TraceSpan(Trace* trace, Rank rank, const char* name, std::uint64_t step)
      : TraceSpan(trace, rank, Lane::step, name) {
    step_ = step;
  }
  ~TraceSpan() {
    if (trace_ == nullptr) return;
    if (lane_ == Lane::step)
      trace_->add_step(rank_, name_, step_, begin_, Trace::Clock::now());
    else
      trace_->add(rank_, lane_, name_, begin_, Trace::Clock::now());
  }
  TraceSpan(const TraceSpan&) = delete;
  TraceSpan& operator=(const TraceSpan&) = delete;

 private:
  Trace* trace_;
  const char* name_;
  Trace::Clock::time_point begin_;
  std::uint64_t step_ = 0;
  Rank rank_;
  Lane lane_;
};

}  // namespace ebb::libswap
