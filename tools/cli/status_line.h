// How far a program is, on stderr: one line on a terminal; elsewhere a JSON document a line for
// programs (--json), nothing for people.
#pragma once

#include <chrono>
#include <cstdint>
#include <string_view>

#include "tools/cli/console.h"

namespace ebb::tools {

class StatusLine {
 public:
  explicit StatusLine(Console& console);

  // Whether to say something: where somebody reads it, and at most ten times a second.
  bool due();
  void say(std::string_view what);  // to people
  // To programs: {"schema": "ebb.progress/1", "doing": "writing", "bytes": 1, "of": 2}.
  void tell(std::string_view doing, std::uint64_t bytes, std::uint64_t of);

 private:
  using Clock = std::chrono::steady_clock;

  enum class Reader : std::uint8_t { nobody, person, program };

  Console& console_;
  const Reader reader_;
  Clock::time_point last_;
};

}  // namespace ebb::tools
