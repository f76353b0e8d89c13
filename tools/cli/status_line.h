// One line on a terminal that says how far a program is; nothing anywhere else.
#pragma once

#include <chrono>
#include <string_view>

#include "tools/cli/console.h"

namespace ebb::tools {

class StatusLine {
 public:
  explicit StatusLine(const Console& console);

  // Whether to say something: on a terminal, and at most ten times a second.
  bool due();
  void say(std::string_view what);
  void clear();

 private:
  using Clock = std::chrono::steady_clock;

  bool visible_ = false;
  bool drawn_ = false;
  Clock::time_point last_;
};

}  // namespace ebb::tools
