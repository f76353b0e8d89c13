#include "tests/support/cost.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ebb/formats/core/check.h"

namespace ebb::test_support {

Cost cost_of(const std::function<void()>& work) {
  const pid_t child = ::fork();
  EBB_CHECK(child >= 0);
  if (child == 0) {
    const rlimit limit{60, 60};
    ::setrlimit(RLIMIT_CPU, &limit);
    work();
    ::_exit(0);
  }
  int status = 0;
  rusage used{};
  EBB_CHECK(::wait4(child, &status, 0, &used) == child);
  Cost cost;
  cost.returned = WIFEXITED(status) && WEXITSTATUS(status) == 0;
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  cost.seconds = seconds(used.ru_utime) + seconds(used.ru_stime);
  cost.peak_bytes = static_cast<std::uint64_t>(used.ru_maxrss) * 1024;
#endif
  return cost;
}

}  // namespace ebb::test_support
