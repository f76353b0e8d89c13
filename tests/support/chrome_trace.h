// The events of a Chrome trace, as a viewer takes them.
#pragma once

#include <algorithm>
#include <map>
#include <regex>
#include <string>
#include <utility>
#include <vector>

namespace ebb::test_support {

struct ChromeEvent {
  std::string phase, name;
  int process = 0, thread = 0;
  double begin = 0, length = 0;  // microseconds
};

// One event a line, as Trace writes them.
inline std::vector<ChromeEvent> chrome_events(const std::string& json) {
  const std::regex complete(
      "\\{\"ph\":\"X\",\"name\":\"([^\"]*)\",\"pid\":(\\d+),\"tid\":(\\d+),\"ts\":([0-9.]+),"
      "\"dur\":([0-9.]+),.*");
  std::vector<ChromeEvent> events;
  for (std::size_t at = 0, end = 0; at < json.size(); at = end + 1) {
    end = std::min(json.find('\n', at), json.size());
    const std::string line = json.substr(at, end - at);
    std::smatch found;
    if (std::regex_match(line, found, complete))
      events.push_back({"X", found[1], std::stoi(found[2]), std::stoi(found[3]),
                        std::stod(found[4]), std::stod(found[5])});
  }
  return events;
}

// The first two spans of one lane of which neither encloses the other, though they overlap; ""
// where all nest.
inline std::string crossing_spans(const std::string& json) {
  std::map<std::pair<int, int>, std::vector<ChromeEvent>> lanes;
  for (const ChromeEvent& event : chrome_events(json))
    lanes[{event.process, event.thread}].push_back(event);
  constexpr double kRounding = 0.0015;  // of times in thousandths
  for (auto& [lane, events] : lanes) {
    std::ranges::stable_sort(events, [](const ChromeEvent& a, const ChromeEvent& b) {
      return std::pair(a.begin, -a.length) < std::pair(b.begin, -b.length);
    });
    std::vector<ChromeEvent> open;
    for (const ChromeEvent& event : events) {
      const auto end_of = [](const ChromeEvent& one) { return one.begin + one.length; };
      while (!open.empty() && end_of(open.back()) <= event.begin + kRounding) open.pop_back();
      if (!open.empty() && end_of(event) > end_of(open.back()) + kRounding)
        return open.back().name + " and " + event.name;
      open.push_back(event);
    }
  }
  return "";
}

}  // namespace ebb::test_support
