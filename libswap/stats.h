// Counters as text: JSON Lines for programs that follow a run, Prometheus text for those that ask.
// What is counted says itself what it is (stats_of of each struct).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "ebb/formats/core/units.h"

namespace ebb::libswap {

enum class StatKind : std::uint8_t {
  counter,  // only grows
  gauge,
};

struct Stat {
  std::string_view name;  // a literal: "io_read_bytes"; seconds end in _seconds
  StatKind kind = StatKind::counter;
  std::string_view help;  // a literal, one line
  std::variant<std::uint64_t, double> value;
};

// Of one rank, or of all that its process has in common.
struct RankStats {
  std::optional<Rank> rank;
  std::vector<Stat> stats;
};

inline constexpr std::string_view kStatsLine = "{\"schema\":\"ebb.stats/1\"";  // its beginning
// One line: schema, seconds since whatever the caller counts from, rank (null: all), then a key for
// each name.
std::string stats_line(double seconds, const RankStats& stats);

inline constexpr std::string_view kStatsText = "# HELP ebb_";  // its beginning
// The whole of it, metric by metric: ebb_NAME, counters with _total behind it, and a label for the
// rank. All ranks have the same stats in the same order.
std::string stats_text(std::span<const RankStats> all);

}  // namespace ebb::libswap
