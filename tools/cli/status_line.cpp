#include "tools/cli/status_line.h"

#include <cstdio>
#include <string>

namespace ebb::tools {

StatusLine::StatusLine(const Console& console)
    : visible_(console.errors_are_terminal()), last_(Clock::now()) {}

bool StatusLine::due() {
  const Clock::time_point now = Clock::now();
  if (!visible_ || now - last_ < std::chrono::milliseconds(100)) return false;
  last_ = now;
  return true;
}

void StatusLine::say(std::string_view what) {
  if (!visible_) return;
  std::fprintf(stderr, "\r%s\x1b[K", std::string(what).c_str());
  std::fflush(stderr);
  drawn_ = true;
}

void StatusLine::clear() {
  if (drawn_) say("");
  drawn_ = false;
}

}  // namespace ebb::tools
