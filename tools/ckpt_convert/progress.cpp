#include "tools/ckpt_convert/progress.h"

#include <array>
#include <cstdio>

#include "tools/cli/text.h"

namespace tools::convert {

ProgressLine::ProgressLine(const Console& console)
    : visible_(console.errors_are_terminal()), start_(Clock::now()), last_(start_) {}

void ProgressLine::put(const std::string& line) {
  if (!visible_) return;
  std::fprintf(stderr, "\r%s\x1b[K", line.c_str());
  std::fflush(stderr);
  drawn_ = true;
}

void ProgressLine::show(std::uint64_t done, std::uint64_t total) {
  const Clock::time_point now = Clock::now();
  if (!visible_ || total == 0 || now - last_ < std::chrono::milliseconds(100)) return;
  last_ = now;
  const double seconds = std::chrono::duration<double>(now - start_).count();
  const double rate = static_cast<double>(done) / seconds;
  std::array<char, 96> tail{};
  std::snprintf(tail.data(), tail.size(), "  %3.0f %%  %.2f GB/s",
                100.0 * static_cast<double>(done) / static_cast<double>(total), rate / 1e9);
  std::string line = "writing " + bytes_text(done) + " of " + bytes_text(total) + tail.data();
  if (seconds > 2 && rate > 0) {
    const auto left = static_cast<unsigned>(static_cast<double>(total - done) / rate);
    std::snprintf(tail.data(), tail.size(), "  ETA %02u:%02u", left / 60, left % 60);
    line += tail.data();
  }
  put(line);
}

void ProgressLine::say(std::string_view what) { put(std::string(what)); }

void ProgressLine::clear() {
  if (drawn_) put("");
  drawn_ = false;
}

}  // namespace tools::convert
