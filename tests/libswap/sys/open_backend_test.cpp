#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <fstream>

#include "ebb/libswap/queue/io_queue.h"
#include "tests/libswap/sys/test_files.h"

namespace ebb::libswap {
namespace {

// As Docker does it: io_uring_setup answers `error`, everything else works.
bool forbid_io_uring(unsigned error) {
  std::array<sock_filter, 4> program = {{
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  }};
  const sock_fprog filter{program.size(), program.data()};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

// What open_backend says in a process where io_uring_setup fails so: "<name>: <note>".
std::string chosen_when_forbidden(unsigned error) {
  const TemporaryDirectory directory;
  const fs::path report = directory / "report";
  const pid_t child = ::fork();
  if (child == 0) {
    if (!forbid_io_uring(error)) ::_exit(1);
    const Result<ChosenBackend> chosen = open_backend(BackendChoice::automatic);
    const Result<ChosenBackend> strict = open_backend(BackendChoice::uring);
    if (!chosen || strict) ::_exit(1);
    std::ofstream(report) << chosen->backend->name() << ": " << chosen->note;
    ::_exit(0);
  }
  int status = 1;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  std::string line;
  std::getline(std::ifstream(report), line);
  return line;
}

TEST(OpenBackend, SaysNothingWhenIoUringWorksAndWhyWhenNot) {
  const ChosenBackend chosen = value_of(open_backend(BackendChoice::automatic));
  EXPECT_EQ(chosen.backend->name() == "io_uring", chosen.note.empty());
  const ChosenBackend threads = value_of(open_backend(BackendChoice::threads));
  EXPECT_EQ(threads.backend->name(), "threads");
  EXPECT_EQ(threads.note, "");
}

TEST(OpenBackend, NamesWhoForbidsIoUringAndUsesThreads) {
  const std::string note = chosen_when_forbidden(EPERM);
  EXPECT_TRUE(note.starts_with("threads: io_uring is blocked")) << note;
  EXPECT_TRUE(note.ends_with("; using 8 I/O threads instead")) << note;
}

TEST(OpenBackend, TellsAnOldKernelAndTooLittleLockedMemoryApart) {
  EXPECT_EQ(chosen_when_forbidden(ENOSYS),
            "threads: this kernel has no io_uring; using 8 I/O threads instead");
  EXPECT_EQ(chosen_when_forbidden(ENOMEM),
            "threads: no locked memory is left for an io_uring; using 8 I/O threads instead");
}

}  // namespace
}  // namespace ebb::libswap
