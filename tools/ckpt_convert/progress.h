// One line on a terminal that says how far the writing is; nothing anywhere else.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "tools/cli/console.h"

namespace tools::convert {

class ProgressLine {
 public:
  explicit ProgressLine(const Console& console);

  void show(std::uint64_t done, std::uint64_t total);  // at most ten times a second
  void say(std::string_view what);
  void clear();

 private:
  using Clock = std::chrono::steady_clock;
  void put(const std::string& line);

  bool visible_ = false;
  bool drawn_ = false;
  Clock::time_point start_;
  Clock::time_point last_;
};

}  // namespace tools::convert
