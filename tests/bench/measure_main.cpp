// ebb-measure: what a disk gives, and what a command takes. For tests/bench/convert.
//   ebb-measure limit DIRECTORY            prints bytes per second: read write mixed
//   ebb-measure run [--address-space BYTES] COMMAND...
//                                          prints: seconds user_s system_s peak_KiB exit_status
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <charconv>
#include <chrono>
#include <cstdio>
#include <string_view>
#include <vector>

#include "ebb/libswap/queue/disk_probe.h"

namespace ebb {

namespace {

int fail(std::string_view why) {
  std::fprintf(stderr, "ebb-measure: %.*s\n", static_cast<int>(why.size()), why.data());
  return 2;
}

Result<libswap::DiskLimit> limit_of(const char* directory) {
  EBB_TRY_ASSIGN(auto backend, libswap::open_backend(libswap::BackendChoice::automatic));
  EBB_TRY_ASSIGN(const auto io, libswap::IoQueue::start(std::move(backend.backend), {}));
  return libswap::measure_disk(*io, directory, {});
}

int print_limit(const char* directory) {
  const auto limit = limit_of(directory);
  if (!limit) return fail(limit.error().message);
  std::printf("%.0f %.0f %.0f\n", limit->read, limit->write, limit->mixed);
  return 0;
}

double seconds(const timeval& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
}

// The command's own output goes to stderr, so that what is printed here stands alone.
int run(char** command, std::uint64_t address_space) {
  const auto start = std::chrono::steady_clock::now();
  const pid_t child = ::fork();
  if (child < 0) return fail("cannot start a process");
  if (child == 0) {
    const rlimit limit{address_space, address_space};
    if (address_space != 0 && ::setrlimit(RLIMIT_AS, &limit) != 0) ::_exit(126);
    ::dup2(STDERR_FILENO, STDOUT_FILENO);
    ::execvp(command[0], command);
    ::_exit(127);
  }
  int status = 0;
  rusage usage{};
  if (::wait4(child, &status, 0, &usage) != child) return fail("cannot wait for the command");
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
  const int exit = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  std::printf("%.3f %.3f %.3f %ld %d\n", taken.count(), seconds(usage.ru_utime),
              seconds(usage.ru_stime), usage.ru_maxrss, exit);
  return exit;
}

}  // namespace

int program_main(int argc, char** argv) {
  const std::vector<std::string_view> words(argv, argv + argc);
  if (argc == 3 && words[1] == "limit") return print_limit(argv[2]);
  if (argc >= 3 && words[1] == "run" && words[2] != "--address-space") return run(argv + 2, 0);
  std::uint64_t bytes = 0;
  if (argc >= 5 && words[1] == "run" &&
      std::from_chars(argv[3], argv[3] + words[3].size(), bytes).ec == std::errc())
    return run(argv + 4, bytes);
  return fail("limit DIRECTORY, or run [--address-space BYTES] COMMAND...");
}

}  // namespace ebb

int main(int argc, char** argv) { return ebb::program_main(argc, argv); }
