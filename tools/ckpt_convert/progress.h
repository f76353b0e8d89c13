// The status line of a conversion: how far the writing is.
#pragma once

#include <chrono>
#include <cstdint>
#include <string_view>

#include "ebb/libswap/write/write_checkpoint.h"
#include "tools/cli/status_line.h"

namespace ebb::tools::convert {

class ProgressLine {
 public:
  explicit ProgressLine(const Console& console);

  // The rate is of what this run has written.
  void show(const libswap::WriteProgress& progress);
  void say(std::string_view what) { line_.say(what); }
  void clear() { line_.clear(); }

 private:
  StatusLine line_;
  std::chrono::steady_clock::time_point start_;
};

}  // namespace ebb::tools::convert
