// A trace as Chrome's JSON: one process per rank, and lanes on which spans never cross one another.
#include "ebb/libswap/trace.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <compare>
#include <tuple>

#include "ebb/formats/core/compose.h"
#include "ebb/formats/core/json_text.h"

namespace ebb::libswap {
namespace {

using Span = Trace::Span;
using Clock = Trace::Clock;

struct TraceContent {
  std::vector<Span> spans;  // by begin, what encloses another before it
  std::uint64_t dropped = 0;
  const std::map<Rank, std::vector<std::string>>& tiles;  // what lies in them
  StepFigures figures;
};

constexpr int kLanesOfAKind = 1000;  // numbers of one kind of lane

std::string microseconds(Clock::duration duration) {
  const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(duration).count();
  std::string fraction = std::to_string(ns % 1000);
  fraction.insert(0, 3 - fraction.size(), '0');
  return compose("{}.{}", ns / 1000, fraction);
}

std::string decimal(double value) {
  std::array<char, 32> text{};
  const auto written =
      std::to_chars(text.data(), text.data() + text.size(), value, std::chars_format::fixed, 6);
  return {text.data(), written.ptr};
}

// Work has a lane for each thread that did it: what a thread does is nested. A transfer takes the
// first lane of its kind that is free.
class Lanes {
 public:
  // REQUIRES: spans come by begin.
  int number_of(const Span& span) {
    const Kind kind{span.rank, span.lane};
    const int first = static_cast<int>(span.lane) * kLanesOfAKind;
    const std::size_t index = span.kind == Span::Kind::transfer ? free_lane(ends_[kind], span)
                                                                : lane_of_thread(kind, span);
    used_[kind] = std::max(used_[kind], index + 1);
    return first + static_cast<int>(index);
  }
  std::string names() const {
    std::string json;
    for (const auto& [kind, count] : used_)
      for (std::size_t i = 0; i < count; ++i) {
        const std::string place =
            compose("\"pid\":{},\"tid\":{}", index_of(kind.first),
                    static_cast<std::size_t>(kind.second) * kLanesOfAKind + i);
        json += compose(
            "{\"ph\":\"M\",{},\"name\":\"process_name\",\"args\":{\"name\":\"rank {}\"}},\n"
            "{\"ph\":\"M\",{},\"name\":\"thread_name\",\"args\":{\"name\":\"{}{}\"}},\n",
            place, index_of(kind.first), place, name_of(kind.second),
            i == 0 ? std::string() : compose(" {}", i + 1));
      }
    return json;
  }

 private:
  using Kind = std::pair<Rank, Lane>;

  static std::size_t free_lane(std::vector<Clock::time_point>& ends, const Span& span) {
    for (std::size_t i = 0; i < ends.size(); ++i)
      if (ends[i] <= span.begin) return ends[i] = span.end, i;
    ends.push_back(span.end);
    return ends.size() - 1;
  }
  std::size_t lane_of_thread(const Kind& kind, const Span& span) {
    auto& threads = threads_[kind];
    const auto known = std::ranges::find(threads, span.thread);
    if (known != threads.end()) return static_cast<std::size_t>(known - threads.begin());
    threads.push_back(span.thread);
    return threads.size() - 1;
  }

  std::map<Kind, std::vector<Clock::time_point>> ends_;
  std::map<Kind, std::vector<std::thread::id>> threads_;
  std::map<Kind, std::size_t> used_;
};

// The step that a span belongs to.
class Steps {
 public:
  explicit Steps(const std::vector<Span>& spans) {
    for (const Span& span : spans)
      if (span.kind == Span::Kind::step) steps_[span.rank].push_back(&span);
  }
  // nullptr: none.
  const Span* of(const Span& span) const {
    const auto mine = steps_.find(span.rank);
    if (mine == steps_.end()) return nullptr;
    const auto after = std::ranges::upper_bound(mine->second, span.begin, {},
                                                [](const Span* step) { return step->begin; });
    if (after == mine->second.begin()) return nullptr;
    const Span* step = *std::prev(after);
    return span.begin < step->end || step == &span ? step : nullptr;
  }

 private:
  std::map<Rank, std::vector<const Span*>> steps_;  // by begin
};

class Writer {
 public:
  explicit Writer(const TraceContent& content) : content_(content), steps_(content.spans) {}

  std::string run() {
    const StepFigures& figures = content_.figures;
    std::string events;
    for (const Span& span : content_.spans)
      if (span.kind != Span::Kind::count) events += event_of(span);
    for (const Span& span : content_.spans)
      if (span.kind == Span::Kind::count)
        events +=
            compose("{\"ph\":\"C\",\"pid\":{},\"name\":\"{}\",\"ts\":{},\"args\":{\"{}\":{}}},\n",
                    index_of(span.rank), span.name, time(span.begin), span.name, span.number);
    events += counters();
    const std::string names = lanes_.names();
    std::string all = names + events;
    if (all.ends_with(",\n")) all.resize(all.size() - 2);
    return compose(
        "{}{},\"steps\":{},\"overlap\":{},\"exposed_io\":{},\"bytes\":{},\"seconds\":{}},\n"
        "\"traceEvents\":[\n{}\n]}\n",
        Trace::kBeginning, content_.dropped, figures.steps, decimal(figures.overlap()),
        decimal(figures.exposed_io()), figures.bytes, decimal(figures.wall_s), all);
  }

 private:
  static std::string time(Clock::time_point at) { return microseconds(at.time_since_epoch()); }

  std::string event_of(const Span& span) {
    std::string args;
    const auto add = [&](std::string_view key, const std::string& value) {
      args += compose("{}\"{}\":{}", args.empty() ? "" : ",", key, value);
    };
    if (const Span* step = steps_.of(span)) add("step", std::to_string(step->number));
    if (span.kind == Span::Kind::transfer) {
      add("tile", std::to_string(span.number));
      if (const std::string* tensors = tensors_of(span)) add("tensor", json_string(*tensors));
      add("bytes", std::to_string(span.bytes));
    }
    return compose(
        "{\"ph\":\"X\",\"name\":\"{}\",\"pid\":{},\"tid\":{},\"ts\":{},\"dur\":{},\"args\":{{}}},"
        "\n",
        span.name, index_of(span.rank), lanes_.number_of(span), time(span.begin),
        microseconds(span.end - span.begin), args);
  }

  const std::string* tensors_of(const Span& span) const {
    const auto tiles = content_.tiles.find(span.rank);
    if (tiles == content_.tiles.end() || span.number >= tiles->second.size()) return nullptr;
    return &tiles->second[span.number];
  }

  // The depth of the queue: how many transfers, and bytes, are under way at each moment.
  std::string counters() const {
    struct Change {
      Rank rank;
      Lane lane;
      Clock::time_point at;
      std::int64_t bytes;
      auto operator<=>(const Change&) const = default;
    };
    std::vector<Change> changes;
    for (const Span& span : content_.spans) {
      if (span.kind != Span::Kind::transfer) continue;
      const auto bytes = static_cast<std::int64_t>(span.bytes);
      changes.push_back({span.rank, span.lane, span.begin, bytes});
      changes.push_back({span.rank, span.lane, span.end, -bytes});
    }
    std::ranges::sort(changes);
    std::string json;
    std::int64_t bytes = 0, depth = 0;
    for (const Change& change : changes) {
      bytes += change.bytes;
      depth += change.bytes > 0 ? 1 : -1;
      json += compose(
          "{\"ph\":\"C\",\"pid\":{},\"name\":\"{}s under "
          "way\",\"ts\":{},\"args\":{\"bytes\":{}}},\n"
          "{\"ph\":\"C\",\"pid\":{},\"name\":\"depth of the {} queue\",\"ts\":{},"
          "\"args\":{\"transfers\":{}}},\n",
          index_of(change.rank), name_of(change.lane), time(change.at), bytes,
          index_of(change.rank), name_of(change.lane), time(change.at), depth);
    }
    return json;
  }

  const TraceContent& content_;
  const Steps steps_;
  Lanes lanes_;
};

}  // namespace

std::string Trace::to_chrome_json() const {
  const StepFigures figures = step_figures();
  const MutexLock lock(mutex_);
  const TraceContent content{by_begin(), added_ - ring_.size(), tiles_, figures};
  return Writer(content).run();
}

}  // namespace ebb::libswap
