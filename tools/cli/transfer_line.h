// How far a program is with a known number of bytes, on its status line.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "tools/cli/status_line.h"

namespace ebb::tools {

struct Transferred {
  std::uint64_t bytes = 0, of = 0;
  std::uint64_t found = 0;  // of `bytes`, what was there before this run: no part of its rate
};

class TransferLine {
 public:
  // `doing`: "writing", "verifying"; a literal.
  TransferLine(Console& console, std::string_view doing);

  // "writing 1.0 GiB of 4.0 GiB   25 %  1.93 GB/s  ETA 00:02", where it is due.
  void now(const Transferred& now);
  StatusLine& line() { return line_; }

 private:
  std::string text_of(const Transferred& now) const;

  StatusLine line_;
  std::string_view doing_;
  std::chrono::steady_clock::time_point start_;
};

}  // namespace ebb::tools
