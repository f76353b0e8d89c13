// Trace: what happened when, as a list of spans that becomes Chrome trace JSON (loads in Perfetto).
// One process per rank, one lane per kind of work. Cheap enough to stay on: a span is 56 bytes.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ebb/formats/core/units.h"
#include "ebb/libswap/sys/mutex.h"

namespace ebb::libswap {

enum class Lane : std::uint8_t { step, wait, compute, read, write, exchange, commit };
std::string_view name_of(Lane lane);

// What a span moved, where it was a transfer. Transfers overlap each other: they become
// asynchronous events, and the bytes that are under way a counter.
struct Transfer {
  std::uint64_t tile = 0;
  std::uint64_t bytes = 0;  // 0: no transfer
};

class Trace {
 public:
  using Clock = std::chrono::steady_clock;

  explicit Trace(std::size_t most_spans = 1u << 18) : most_spans_(most_spans) {}

  // `name` must outlive the trace (a literal). Spans beyond the limit are counted, not kept.
  void add(Rank rank, Lane lane, const char* name, Clock::time_point begin, Clock::time_point end,
           Transfer transfer = {});
  std::string to_chrome_json() const;
  // Its first bytes: by them a program knows an earlier trace of its own.
  static constexpr std::string_view kBeginning =
      "{\"displayTimeUnit\":\"ms\",\"otherData\":{\"dropped_spans\":";

 private:
  struct Span {
    const char* name;
    Clock::time_point begin;
    Clock::time_point end;
    Rank rank;
    Lane lane;
    Transfer transfer;
  };
  static std::string event_of(const Span& span, Clock::time_point start, std::size_t id);
  void append_counters(std::string& json) const EBB_REQUIRES(mutex_);

  const std::size_t most_spans_;
  const Clock::time_point start_ = Clock::now();
  mutable Mutex mutex_;
  std::vector<Span> spans_ EBB_GUARDED_BY(mutex_);
  std::uint64_t dropped_ EBB_GUARDED_BY(mutex_) = 0;
};

// Adds a span from construction to destruction; a null trace costs one branch.
class TraceSpan {
 public:
  TraceSpan(Trace* trace, Rank rank, Lane lane, const char* name)
      : trace_(trace), name_(name), begin_(Trace::Clock::now()), rank_(rank), lane_(lane) {}
  ~TraceSpan() {
    if (trace_ != nullptr) trace_->add(rank_, lane_, name_, begin_, Trace::Clock::now());
  }
  TraceSpan(const TraceSpan&) = delete;
  TraceSpan& operator=(const TraceSpan&) = delete;

 private:
  Trace* trace_;
  const char* name_;
  Trace::Clock::time_point begin_;
  Rank rank_;
  Lane lane_;
};

}  // namespace ebb::libswap
