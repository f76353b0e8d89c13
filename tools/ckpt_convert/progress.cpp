#include "tools/ckpt_convert/progress.h"

#include <array>
#include <cstdio>

#include "ebb/libswap/sys/process.h"
#include "tools/cli/text.h"

namespace ebb::tools::convert {

Progress::Progress(const Console& console)
    : line_(console), start_(std::chrono::steady_clock::now()) {}

void Progress::written(const libswap::WriteProgress& now) {
  total_ = now.bytes_total;
  if (total_ == 0 || !line_.due()) return;
  line_.say(line_of(now));
  line_.tell("writing", now.bytes_done, total_);
}

void Progress::reading_back() {
  line_.say("reading back");
  line_.tell("reading back", 0, total_);
}

std::string Progress::line_of(const libswap::WriteProgress& now) const {
  const double seconds = libswap::seconds_since(start_);
  const double rate = static_cast<double>(now.bytes_done - now.bytes_found) / seconds;
  const auto percent = [this](std::uint64_t bytes) {
    return 100.0 * static_cast<double>(bytes) / static_cast<double>(total_);
  };
  std::array<char, 96> tail{};
  std::snprintf(tail.data(), tail.size(), "  %3.0f %%  %.2f GB/s", percent(now.bytes_done),
                rate / 1e9);
  std::string line =
      compose("writing {} of {}{}", bytes_text(now.bytes_done), bytes_text(total_), tail.data());
  if (seconds > 2 && rate > 0) {
    const auto left = static_cast<unsigned>(static_cast<double>(total_ - now.bytes_done) / rate);
    std::snprintf(tail.data(), tail.size(), "  ETA %02u:%02u", left / 60, left % 60);
    line += tail.data();
  }
  if (now.bytes_found > 0) {
    std::snprintf(tail.data(), tail.size(), "  (went on at %.0f %%)", percent(now.bytes_found));
    line += tail.data();
  }
  return line;
}

}  // namespace ebb::tools::convert
