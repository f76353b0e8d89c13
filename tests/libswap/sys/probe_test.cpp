#include "ebb/libswap/tree/probe.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ebb/libswap/sys/confine.h"

namespace ebb {

namespace {

using libswap::run_probe;

const formats::MemorySource& file() {
  static const formats::MemorySource kFile("state.h5", ByteVector(100, std::byte{'x'}));
  return kFile;
}

// A shell as the program: its input is the socket, which it may also write to.
Result<ByteVector> run_shell(const std::string& script) {
  return run_probe({"/bin/sh", "-c", script}, file(), {.time = std::chrono::milliseconds(1500)});
}

TEST(Probe, ServesBytesAndTakesTheReport) {
  // Wants 3 bytes at 5, then reports two bytes.
  const auto report = run_shell(
      "printf 'R\\005\\000\\000\\000\\000\\000\\000\\000\\003\\000\\000\\000' >&0; "
      "got=$(head -c 3); [ \"$got\" = xxx ] || exit 9; "
      "printf 'D\\002\\000\\000\\000ab' >&0");
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_EQ(formats::text_of(*report), "ab");
}

TEST(Probe, ACrashIsOneSentence) {
  const auto report = run_shell("kill -SEGV $$");
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code, Code::corrupt);
  EXPECT_EQ(report.error().message, "state.h5: sh crashed on this file (signal 11)");
}

TEST(Probe, AHangEndsAtTheLimit) {
  const auto report = run_probe({"/bin/sleep"}, formats::MemorySource("f", ByteVector(30)),
                                {.time = std::chrono::milliseconds(100)});
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code, Code::limit);
  EXPECT_NE(report.error().message.find("100 ms, the limit"), std::string::npos);
}

TEST(Probe, NonsenseReadsBeyondTheFileAndExitCodesAreRefused) {
  EXPECT_NE(run_shell("printf '?' >&0").error().message.find("no part of the protocol"),
            std::string::npos);
  EXPECT_NE(run_shell("printf 'R\\141\\000\\000\\000\\000\\000\\000\\000\\004\\000\\000\\000' >&0")
                .error()
                .message.find("asked for 4 bytes at 97"),
            std::string::npos);
  EXPECT_NE(run_shell("exit 3").error().message.find("exit code 3"), std::string::npos);
  EXPECT_NE(run_shell("printf 'D\\377\\377\\377\\377' >&0").error().message.find("limit"),
            std::string::npos);
  EXPECT_NE(run_shell("printf 'R\\141' >&0").error().message.find("broke off"), std::string::npos);
}

// The loader's exit code: nothing is known about the file.
TEST(Probe, AProgramThatCannotBeLoadedIsNotTheFilesFault) {
  const auto report = run_shell("exit 127");
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code, Code::no_memory);
  EXPECT_NE(report.error().message.find("could not be loaded"), std::string::npos);
}

TEST(Probe, AnExcuseIsTheError) {
  const auto report = run_shell("printf 'E\\005\\003\\000\\000\\000bad' >&0");
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code, static_cast<Code>(5));
  EXPECT_EQ(report.error().message, "state.h5: bad");
}

// Runs `work` confined in a child; its result is the child's exit code.
int confined(int (*work)()) {
  int ends[2] = {};
  if (::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) return -1;
  const pid_t child = ::fork();
  if (child == 0) {
    const auto missing =
        libswap::confine_this_process({.memory = 2ull << 30, .descriptor = ends[1]});
    ::_exit(missing ? work() : 99);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  ::close(ends[0]);
  ::close(ends[1]);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

TEST(Confinement, OpensNothingStartsNothingAndExecutesNoMemory) {
  EXPECT_EQ(confined([] { return ::open("/etc/passwd", O_RDONLY) < 0 ? 0 : 1; }), 0);
  EXPECT_EQ(confined([] { return ::socket(AF_INET, SOCK_STREAM, 0) < 0 ? 0 : 1; }), 0);
  EXPECT_EQ(confined([] { return ::fork() < 0 ? 0 : 1; }), 0);
  EXPECT_EQ(confined([] { return ::write(2, "x", 1) < 0 ? 0 : 1; }), 0);
  EXPECT_EQ(confined([] {
              void* const code = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE | PROT_EXEC,
                                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
              return code == MAP_FAILED ? 0 : 1;
            }),
            0);
  EXPECT_EQ(confined([] {  // memory for computing is there
              void* const data = ::mmap(nullptr, 1 << 20, PROT_READ | PROT_WRITE,
                                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
              return data == MAP_FAILED ? 1 : 0;
            }),
            0);
}

}  // namespace

}  // namespace ebb
