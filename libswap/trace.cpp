#include "ebb/libswap/trace.h"

#include <algorithm>
#include <array>
#include <compare>
#include <set>

#include "ebb/formats/core/compose.h"

namespace ebb::libswap {
namespace {

std::string microseconds(Trace::Clock::duration duration) {
  const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(duration).count();
  std::string fraction = std::to_string(ns % 1000);
  fraction.insert(0, 3 - fraction.size(), '0');
  return compose("{}.{}", ns / 1000, fraction);
}

std::string lane_name_event(Rank rank, Lane lane) {
  const std::string place =
      compose("\"pid\":{},\"tid\":{}", index_of(rank), static_cast<int>(lane));
  return compose(
      "{\"ph\":\"M\",{},\"name\":\"thread_name\",\"args\":{\"name\":\"{}\"}},\n{\"ph\":\"M\",{},"
      "\"name\":\"process_name\",\"args\":{\"name\":\"rank {}\"}}",
      place, name_of(lane), place, index_of(rank));
}

}  // namespace

std::string_view name_of(Lane lane) {
  constexpr std::array<std::string_view, 7> kNames = {"step",  "wait",     "compute", "read",
                                                      "write", "exchange", "commit"};
  return kNames[static_cast<std::size_t>(lane)];
}

void Trace::add(Rank rank, Lane lane, const char* name, Clock::time_point begin,
                Clock::time_point end, Transfer transfer) {
  const MutexLock lock(mutex_);
  if (spans_.size() < most_spans_)
    spans_.push_back({name, begin, end, rank, lane, transfer});
  else
    ++dropped_;
}

std::string Trace::event_of(const Span& span, Clock::time_point start, std::size_t id) {
  const std::string place =
      compose(",\"pid\":{},\"tid\":{},\"ts\":", index_of(span.rank), static_cast<int>(span.lane));
  const std::string name = std::string(",\"name\":\"") + span.name + "\"";
  const std::string begin = place + microseconds(span.begin - start);
  if (span.transfer.bytes == 0)
    return compose("{\"ph\":\"X\"{}{},\"dur\":{}}", name, begin,
                   microseconds(span.end - span.begin));
  const std::string same = compose("{},\"cat\":\"{}\",\"id\":{}", name, name_of(span.lane), id);
  return compose("{\"ph\":\"b\"{}{},\"args\":{\"tile\":{},\"bytes\":{}}},\n{\"ph\":\"e\"{}{}{}}",
                 same, begin, span.transfer.tile, span.transfer.bytes, same, place,
                 microseconds(span.end - start));
}

// How many bytes are being read and written at each moment, for each rank.
void Trace::append_counters(std::string& json) const {
  struct Change {
    Rank rank;
    Lane lane;
    Clock::time_point at;
    std::int64_t bytes;
    auto operator<=>(const Change&) const = default;
  };
  std::vector<Change> changes;
  for (const Span& span : spans_) {
    const auto bytes = static_cast<std::int64_t>(span.transfer.bytes);
    if (bytes == 0) continue;
    changes.push_back({span.rank, span.lane, span.begin, bytes});
    changes.push_back({span.rank, span.lane, span.end, -bytes});
  }
  std::ranges::sort(changes);
  std::int64_t under_way = 0;
  for (const Change& change : changes) {
    under_way += change.bytes;
    json += compose(
        ",\n{\"ph\":\"C\",\"pid\":{},\"name\":\"bytes in {}s\",\"ts\":{},\"args\":{\"bytes\":{}}}",
        index_of(change.rank), name_of(change.lane), microseconds(change.at - start_), under_way);
  }
}

std::string Trace::to_chrome_json() const {
  const MutexLock lock(mutex_);
  std::string json = compose("{}{}},\n\"traceEvents\":[\n", kBeginning, dropped_);
  std::set<std::pair<Rank, Lane>> lanes;
  for (const Span& span : spans_) lanes.insert({span.rank, span.lane});
  const char* separator = "";
  for (const auto& [rank, lane] : lanes) {
    json += separator + lane_name_event(rank, lane);
    separator = ",\n";
  }
  for (const Span& span : spans_) {
    json += separator + event_of(span, start_, static_cast<std::size_t>(&span - spans_.data()));
    separator = ",\n";
  }
  append_counters(json);
  return json + "\n]}\n";
}

}  // namespace ebb::libswap
