#include "tools/ckpt_convert/progress.h"

#include <array>
#include <cstdio>

#include "ebb/libswap/sys/process.h"
#include "tools/cli/text.h"

namespace ebb::tools::convert {

ProgressLine::ProgressLine(const Console& console)
    : line_(console), start_(std::chrono::steady_clock::now()) {}

void ProgressLine::show(const libswap::WriteProgress& progress) {
  const std::uint64_t total = progress.bytes_total;
  if (total == 0 || !line_.due()) return;
  const double seconds = libswap::seconds_since(start_);
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
  line_.say(line);
}

}  // namespace ebb::tools::convert
