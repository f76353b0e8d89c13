#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "ebb/formats/core/number_text.h"
#include "ebb/formats/core/units.h"
#include "tools/cli/arguments.h"

namespace ebb::tools {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

std::optional<std::uint64_t> unit_factor(std::string_view unit) {
  struct Unit {
    std::string_view name;
    std::uint64_t factor;
  };
  constexpr std::uint64_t k = 1000;
  using formats::GiB, formats::KiB, formats::MiB;
  constexpr std::array kUnits = {Unit{"", 1},
                                 Unit{"B", 1},
                                 Unit{"K", KiB},
                                 Unit{"KiB", KiB},
                                 Unit{"KB", k},
                                 Unit{"M", MiB},
                                 Unit{"MiB", MiB},
                                 Unit{"MB", k * k},
                                 Unit{"G", GiB},
                                 Unit{"GiB", GiB},
                                 Unit{"GB", k * k * k},
                                 Unit{"T", 1024 * GiB},
                                 Unit{"TiB", 1024 * GiB},
                                 Unit{"TB", k * k * k * k}};
  for (const Unit& known : kUnits)
    if (known.name == unit) return known.factor;
  return std::nullopt;
}

}  // namespace

std::optional<std::uint64_t> parse_count(std::string_view text) {
  return formats::parse_number<std::uint64_t>(text);
}

std::optional<std::uint64_t> parse_size(std::string_view text) {
  const auto is_number = [](char c) { return is_digit(c) || c == '.'; };
  const auto split = static_cast<std::size_t>(
      std::find_if_not(text.begin(), text.end(), is_number) - text.begin());
  const auto factor = unit_factor(text.substr(split));
  const std::string_view number = text.substr(0, split);
  if (!factor) return std::nullopt;
  if (number.find('.') == std::string_view::npos) {
    const auto whole = parse_count(number);
    return whole ? formats::checked_mul(*whole, *factor) : std::nullopt;
  }
  double value = 0;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), value,
                                            std::chars_format::fixed);
  if (error != std::errc{} || end != number.data() + number.size()) return std::nullopt;
  const double bytes = std::round(value * static_cast<double>(*factor));
  if (bytes >= 9e18) return std::nullopt;
  return static_cast<std::uint64_t>(bytes);
}

}  // namespace ebb::tools
