#include <sys/resource.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <thread>

#include "tests/demo/demo.h"

namespace ebb::demo {
namespace {

double seconds(const timeval& time) {
  return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
}

double processor_time(int whose) {
  rusage usage{};
  ::getrusage(whose, &usage);
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

}  // namespace

// The first line of /proc/stat: "cpu user nice system idle iowait irq softirq steal ...", in ticks
// of 10 ms. What a hypervisor gave to others counts as busy, too.
QuietWatch::Sample QuietWatch::now() {
  Sample sample;
  const auto wall = std::chrono::steady_clock::now().time_since_epoch();
  sample.wall = std::chrono::duration<double>(wall).count();
  sample.ours = processor_time(RUSAGE_SELF) + processor_time(RUSAGE_CHILDREN);
  std::ifstream stat("/proc/stat");
  std::string name;
  stat >> name;
  constexpr int kIdle = 3, kWaits = 4, kSteal = 7;
  double ticks = 0;
  for (int i = 0; i <= kSteal && stat >> ticks; ++i)
    if (i != kIdle && i != kWaits) sample.busy += ticks / 100;
  return sample;
}

QuietWatch::QuietWatch() : begin_(now()) {}

double QuietWatch::share_of_others() const {
  const Sample end = now();
  const double cores = std::max(1u, std::thread::hardware_concurrency());
  const double all = (end.wall - begin_.wall) * cores;
  const double others = (end.busy - begin_.busy) - (end.ours - begin_.ours);
  return all > 0 ? std::max(0.0, others / all) : 0;
}

Line judged(Line line, bool promise_holds, double share_of_others) {
  if (share_of_others > kQuiet) {
    std::array<char, 120> why{};
    std::snprintf(why.data(), why.size(),
                  "; other programs took %.0f %% of the machine (judged below %.0f %%)",
                  100 * share_of_others, 100 * kQuiet);
    line.what += why.data();
    line.verdict = Verdict::not_judged;
  } else if (!promise_holds) {
    line.verdict = Verdict::missed;
  }
  return line;
}

}  // namespace ebb::demo
