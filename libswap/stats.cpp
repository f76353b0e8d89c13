#include "ebb/libswap/stats.h"

#include <array>
#include <charconv>
#include <map>

#include "ebb/formats/core/compose.h"

namespace ebb::libswap {
namespace {

// The shortest that reads back as the same number.
std::string text_of(const std::variant<std::uint64_t, double>& value) {
  if (const auto* count = std::get_if<std::uint64_t>(&value)) return std::to_string(*count);
  std::array<char, 32> text{};
  const auto written =
      std::to_chars(text.data(), text.data() + text.size(), std::get<double>(value));
  return {text.data(), written.ptr};
}

}  // namespace

std::string stats_line(double seconds, const RankStats& stats) {
  std::string line =
      compose("{},\"seconds\":{},\"rank\":{}", kStatsLine, text_of(seconds),
              stats.rank ? std::to_string(index_of(*stats.rank)) : std::string("null"));
  for (const Stat& stat : stats.stats)
    line += compose(",\"{}\":{}", stat.name, text_of(stat.value));
  return line + "}\n";
}

std::string stats_text(std::span<const RankStats> all) {
  std::vector<std::string_view> order;
  std::map<std::string_view, std::string> metrics;
  for (const RankStats& one : all)
    for (const Stat& stat : one.stats) {
      const bool counter = stat.kind == StatKind::counter;
      const std::string name = compose("ebb_{}{}", stat.name, counter ? "_total" : "");
      std::string& text = metrics[stat.name];
      if (text.empty()) {
        order.push_back(stat.name);
        text = compose("# HELP {} {}\n# TYPE {} {}\n", name, stat.help, name,
                       counter ? "counter" : "gauge");
      }
      const std::string label =
          one.rank ? compose("{rank=\"{}\"}", index_of(*one.rank)) : std::string();
      text += compose("{}{} {}\n", name, label, text_of(stat.value));
    }
  std::string text;
  for (const std::string_view name : order) text += metrics[name];
  return text;
}

}  // namespace ebb::libswap
