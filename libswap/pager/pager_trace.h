// PagerTrace: what a TileCache tells a trace, if there is one. Any thread.
#pragma once

#include <chrono>
#include <cstdint>

#include "ebb/libswap/trace.h"

namespace ebb::libswap {

class PagerTrace {
 public:
  using Clock = Trace::Clock;

  // `trace` may be null, and is borrowed.
  PagerTrace(Trace* trace, Rank rank, std::uint64_t tile_bytes)
      : trace_(trace), rank_(rank), tile_bytes_(tile_bytes) {}

  TraceSpan span(Lane lane, const char* what) const { return {trace_, rank_, lane, what}; }
  // Until now.
  void slept(const char* what, double seconds) const {
    if (trace_ == nullptr) return;
    const auto end = Clock::now();
    const std::chrono::duration<double> length(seconds);
    trace_->add(rank_, Lane::wait, what, end - std::chrono::duration_cast<Clock::duration>(length),
                end);
  }
  void transferred(Lane lane, std::uint64_t tile, Clock::time_point begin) const {
    if (trace_ != nullptr)
      trace_->add(rank_, lane, lane == Lane::read ? "page-in" : "write-behind", begin, Clock::now(),
                  {tile, tile_bytes_});
  }
  void in_memory(std::uint64_t tiles) const {
    if (trace_ != nullptr) trace_->count(rank_, "bytes of tiles in memory", tiles * tile_bytes_);
  }

 private:
  Trace* const trace_;
  const Rank rank_;
  const std::uint64_t tile_bytes_;
};

}  // namespace ebb::libswap
