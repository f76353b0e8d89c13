#include "tools/cli/transfer_line.h"

#include <array>
#include <cstdio>

#include "ebb/libswap/sys/process.h"
#include "tools/cli/text.h"

namespace ebb::tools {

TransferLine::TransferLine(Console& console, std::string_view doing)
    : line_(console), doing_(doing), start_(std::chrono::steady_clock::now()) {}

void TransferLine::now(const Transferred& now) {
  if (now.of == 0 || !line_.due()) return;
  line_.say(text_of(now));
  line_.tell(doing_, now.bytes, now.of);
}

std::string TransferLine::text_of(const Transferred& now) const {
  const double seconds = libswap::seconds_since(start_);
  const double rate = static_cast<double>(now.bytes - now.found) / seconds;
  const auto percent = [&now](std::uint64_t bytes) {
    return 100.0 * static_cast<double>(bytes) / static_cast<double>(now.of);
  };
  std::array<char, 96> tail{};
  std::snprintf(tail.data(), tail.size(), "  %3.0f %%  %.2f GB/s", percent(now.bytes), rate / 1e9);
  std::string line =
      compose("{} {} of {}{}", doing_, bytes_text(now.bytes), bytes_text(now.of), tail.data());
  if (seconds > 2 && rate > 0) {
    const auto left = static_cast<unsigned>(static_cast<double>(now.of - now.bytes) / rate);
    std::snprintf(tail.data(), tail.size(), "  ETA %02u:%02u", left / 60, left % 60);
    line += tail.data();
  }
  if (now.found > 0) {
    std::snprintf(tail.data(), tail.size(), "  (went on at %.0f %%)", percent(now.found));
    line += tail.data();
  }
  return line;
}

}  // namespace ebb::tools
