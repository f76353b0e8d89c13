#include "tools/ckpt_convert/progress.h"

#include <array>
#include <cstdio>

#include "tools/cli/text.h"

namespace ebb::tools::convert {

ProgressLine::ProgressLine(const Console& console)
    : visible_(console.errors_are_terminal()), start_(Clock::now()), last_(start_) {}

void ProgressLine::put(const std::string& line) {
  if (!visible_) return;
  std::fprintf(stderr, "\r%s\x1b[K", line.c_str());
  std::fflush(stderr);
  drawn_ = true;
}

void ProgressLine::show(const libswap::WriteProgress& progress) {
  const Clock::time_point now = Clock::now();
  const std::uint64_t total = progress.bytes_total;
  if (!visible_ || total == 0 || now - last_ < std::chrono::milliseconds(100)) return;
  last_ = now;
  const double seconds = std::chrono::duration<double>(now - start_).count();
  const double rate = static_cast<double>(progress.bytes_done - progress.bytes_found) / seconds;
  const auto percent = [total](std::uint64_t bytes) {
    return 100.0 * static_cast<double>(bytes) / static_cast<double>(total);
  };
  std::array<char, 96> tail{};
  std::snprintf(tail.data(), tail.size(), "  %3.0f %%  %.2f GB/s", percent(progress.bytes_done),
                rate / 1e9);
  std::string line = compose("writing {} of {}{}", bytes_text(progress.bytes_done),
                             bytes_text(total), tail.data());
  if (seconds > 2 && rate > 0) {
    const auto left =
        static_cast<unsigned>(static_cast<double>(total - progress.bytes_done) / rate);
    std::snprintf(tail.data(), tail.size(), "  ETA %02u:%02u", left / 60, left % 60);
    line += tail.data();
  }
  if (progress.bytes_found > 0) {
    std::snprintf(tail.data(), tail.size(), "  (went on at %.0f %%)",
                  percent(progress.bytes_found));
    line += tail.data();
  }
  put(line);
}

void ProgressLine::say(std::string_view what) { put(std::string(what)); }

void ProgressLine::clear() {
  if (drawn_) put("");
  drawn_ = false;
}

}  // namespace ebb::tools::convert
