// One line on a terminal that says how far the writing is; nothing anywhere else.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "ebb/libswap/write/write_checkpoint.h"
#include "tools/cli/console.h"

namespace ebb::tools::convert {

class ProgressLine {
 public:
  explicit ProgressLine(const Console& console);

  // At most ten times a second. The rate is of what this run has written.
  void show(const libswap::WriteProgress& now);
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

}  // namespace ebb::tools::convert
