#include "ebb/libswap/trace.h"

#include <algorithm>
#include <array>
#include <set>
#include <tuple>

#include "ebb/libswap/sys/when_memory.h"

namespace ebb::libswap {
namespace {

using Span = Trace::Span;
using Clock = Trace::Clock;

// Of time, apart from one another and in order.
using Pieces = std::vector<std::pair<Clock::time_point, Clock::time_point>>;

Pieces merged(Pieces pieces) {
  std::ranges::sort(pieces);
  Pieces all;
  for (const auto& [begin, end] : pieces) {
    if (begin >= end) continue;
    if (!all.empty() && begin <= all.back().second)
      all.back().second = std::max(all.back().second, end);
    else
      all.emplace_back(begin, end);
  }
  return all;
}

// What lies in both.
Pieces common(const Pieces& a, const Pieces& b) {
  Pieces both;
  for (std::size_t i = 0, k = 0; i < a.size() && k < b.size();) {
    const auto begin = std::max(a[i].first, b[k].first);
    const auto end = std::min(a[i].second, b[k].second);
    if (begin < end) both.emplace_back(begin, end);
    (a[i].second < b[k].second ? i : k) += 1;
  }
  return both;
}

double seconds(const Pieces& pieces) {
  Clock::duration all{};
  for (const auto& [begin, end] : pieces) all += end - begin;
  return std::chrono::duration<double>(all).count();
}

// One rank's time.
struct RankTime {
  std::uint64_t steps_made = 0;
  Pieces steps, io, work, asleep;
  std::vector<const Span*> transfers;
};

RankTime time_of(const std::vector<Span>& spans, Rank rank, Clock::time_point since) {
  RankTime time;
  for (const Span& span : spans) {
    if (span.rank != rank) continue;
    const auto piece = std::pair(span.begin, span.end);
    if (span.kind == Span::Kind::step && span.begin >= since) {
      time.steps.push_back(piece);
      ++time.steps_made;
    }
    if (span.kind == Span::Kind::transfer) {
      time.io.push_back(piece);
      time.transfers.push_back(&span);
    }
    if (span.lane == Lane::wait) time.asleep.push_back(piece);
    if (span.lane == Lane::compute || span.lane == Lane::exchange) time.work.push_back(piece);
  }
  for (Pieces* pieces : {&time.steps, &time.io, &time.work, &time.asleep})
    *pieces = merged(std::move(*pieces));
  return time;
}

}  // namespace

std::string_view name_of(Lane lane) {
  constexpr std::array<std::string_view, 7> kNames = {"step",  "wait",     "compute", "read",
                                                      "write", "exchange", "commit"};
  return kNames[static_cast<std::size_t>(lane)];
}

void Trace::start() {
  const MutexLock lock(mutex_);
  ring_.clear();
  added_ = 0;
  on_.store(true, std::memory_order_relaxed);
}

// Spans end where nothing may throw: without memory for one more it stops, and what was stays.
void Trace::put(const Span& span) {
  if (!on_.load(std::memory_order_relaxed)) return;
  const MutexLock lock(mutex_);
  if (ring_.size() == most_spans_) {
    ring_[added_ % most_spans_] = span;
  } else if (!or_no_memory([&]() EBB_REQUIRES(mutex_) {
               ring_.push_back(span);
               return Result<>();
             })) {
    stop();
    return;
  }
  ++added_;
}

void Trace::add(Rank rank, Lane lane, const char* name, Clock::time_point begin,
                Clock::time_point end, Transfer transfer) {
  const bool moved = transfer.bytes > 0;
  put({name, begin, end, std::this_thread::get_id(), transfer.tile, transfer.bytes, rank, lane,
       moved ? Span::Kind::transfer : Span::Kind::work});
}

void Trace::add_step(Rank rank, const char* name, std::uint64_t number, Clock::time_point begin,
                     Clock::time_point end) {
  put({name, begin, end, std::this_thread::get_id(), number, 0, rank, Lane::step,
       Span::Kind::step});
}

void Trace::count(Rank rank, const char* name, std::uint64_t value) {
  const auto now = Clock::now();
  put({name, now, now, {}, value, 0, rank, Lane::step, Span::Kind::count});
}

void Trace::name_tiles(Rank rank, std::vector<std::string> tensors) {
  const MutexLock lock(mutex_);
  tiles_[rank] = std::move(tensors);
}

std::uint64_t Trace::spans() const {
  const MutexLock lock(mutex_);
  return added_;
}

// What encloses another comes before it.
std::vector<Span> Trace::by_begin() const {
  std::vector<Span> spans = ring_;
  std::ranges::stable_sort(spans, [](const Span& a, const Span& b) {
    return std::tuple(a.begin, b.end) < std::tuple(b.begin, a.end);
  });
  return spans;
}

StepFigures Trace::step_figures() const {
  std::vector<Span> spans;
  // Spans are put when they end: none that ended later than the first one left is missing.
  Clock::time_point since{};
  {
    const MutexLock lock(mutex_);
    spans = by_begin();
    if (added_ > ring_.size()) since = ring_[added_ % most_spans_].end;
  }
  std::set<Rank> ranks;
  for (const Span& span : spans) ranks.insert(span.rank);
  StepFigures all;
  Pieces wall;
  for (const Rank rank : ranks) {
    const RankTime time = time_of(spans, rank, since);
    const Pieces io = common(time.steps, time.io);
    all.steps += time.steps_made;
    all.step_s += seconds(time.steps);
    all.io_s += seconds(io);
    all.overlap_s += seconds(common(io, time.work));
    all.exposed_s += seconds(common(time.steps, time.asleep));
    wall.insert(wall.end(), time.steps.begin(), time.steps.end());
    for (const Span* span : time.transfers) {
      const auto after = std::ranges::upper_bound(time.steps, span->begin, {},
                                                  [](const auto& step) { return step.first; });
      if (after != time.steps.begin() && span->begin < std::prev(after)->second)
        all.bytes += span->bytes;
    }
  }
  all.wall_s = seconds(merged(std::move(wall)));
  return all;
}

}  // namespace ebb::libswap
