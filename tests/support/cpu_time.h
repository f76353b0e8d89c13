// Processor seconds: what else the machine does takes no part in them. Two of one run are compared:
// machines differ.
#pragma once

#include <algorithm>
#include <ctime>

namespace ebb::test_support {

// Of the calling thread, or of the whole process.
inline double cpu_seconds(clockid_t clock = CLOCK_THREAD_CPUTIME_ID) {
  timespec now{};
  ::clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// The least of some rounds of a work of this thread.
template <typename Work>
double least_cpu_seconds(int rounds, const Work& work) {
  double least = 1e9;
  for (int round = 0; round < rounds; ++round) {
    const double begin = cpu_seconds();
    work();
    least = std::min(least, cpu_seconds() - begin);
  }
  return least;
}

}  // namespace ebb::test_support
