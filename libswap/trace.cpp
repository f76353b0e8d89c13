#include "ebb/libswap/trace.h"

#include <set>

namespace ebb::libswap {
namespace {

std::string microseconds(Trace::Clock::duration duration) {
  const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(duration).count();
  std::string fraction = std::to_string(ns % 1000);
  fraction.insert(0, 3 - fraction.size(), '0');
  return std::to_string(ns / 1000) + "." + fraction;
}

std::string lane_name_event(formats::Rank rank, Lane lane) {
  const std::string place = "\"pid\":" + std::to_string(index_of(rank)) +
                            ",\"tid\":" + std::to_string(static_cast<int>(lane));
  return "{\"ph\":\"M\"," + place + ",\"name\":\"thread_name\",\"args\":{\"name\":\"" +
         std::string(name_of(lane)) + "\"}},\n{\"ph\":\"M\"," + place +
         ",\"name\":\"process_name\",\"args\":{\"name\":\"rank " + std::to_string(index_of(rank)) +
         "\"}}";
}

}  // namespace

std::string_view name_of(Lane lane) {
  switch (lane) {
    case Lane::step:
      return "step";
    case Lane::wait:
      return "wait";
    case Lane::compute:
      return "compute";
    case Lane::read:
      return "read";
    case Lane::write:
      return "write";
    case Lane::exchange:
      return "exchange";
    case Lane::commit:
      return "commit";
  }
  return "?";
}

void Trace::add(formats::Rank rank, Lane lane, const char* name, Clock::time_point begin,
                Clock::time_point end) {
  const std::lock_guard lock(mutex_);
  if (spans_.size() < most_spans_)
    spans_.push_back({name, begin, end, rank, lane});
  else
    ++dropped_;
}

std::string Trace::to_chrome_json() const {
  const std::lock_guard lock(mutex_);
  std::string json =
      "{\"displayTimeUnit\":\"ms\",\"otherData\":{\"dropped_spans\":" + std::to_string(dropped_) +
      "},\n\"traceEvents\":[\n";
  std::set<std::pair<formats::Rank, Lane>> lanes;
  for (const Span& span : spans_) lanes.insert({span.rank, span.lane});
  const char* separator = "";
  for (const auto& [rank, lane] : lanes) {
    json += separator + lane_name_event(rank, lane);
    separator = ",\n";
  }
  for (const Span& span : spans_) {
    json += std::string(separator) + "{\"ph\":\"X\",\"name\":\"" + span.name +
            "\",\"pid\":" + std::to_string(index_of(span.rank)) +
            ",\"tid\":" + std::to_string(static_cast<int>(span.lane)) +
            ",\"ts\":" + microseconds(span.begin - start_) +
            ",\"dur\":" + microseconds(span.end - span.begin) + "}";
    separator = ",\n";
  }
  return json + "\n]}\n";
}

}  // namespace ebb::libswap
