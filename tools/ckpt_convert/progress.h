// How far a conversion is, for people and for programs.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "ebb/libswap/write/write_checkpoint.h"
#include "tools/cli/status_line.h"

namespace ebb::tools::convert {

class Progress {
 public:
  explicit Progress(const Console& console);

  // The rate is of what this run has written.
  void written(const libswap::WriteProgress& now);
  void reading_back();
  void clear() { line_.clear(); }

 private:
  std::string line_of(const libswap::WriteProgress& now) const;

  StatusLine line_;
  std::chrono::steady_clock::time_point start_;
  std::uint64_t total_ = 0;  // bytes to write
};

}  // namespace ebb::tools::convert
