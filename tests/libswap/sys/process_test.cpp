#include "ebb/libswap/sys/process.h"

#include <gtest/gtest.h>

#include <csignal>

namespace ebb::libswap {
namespace {

using Stream = ChildProcess::Stream;

ChildProcess start(const std::string& script, Stream stream = Stream::output) {
  auto child = ChildProcess::start({"/bin/sh", "-c", script}, stream);
  EBB_CHECK(child.has_value());
  return std::move(*child);
}

TEST(ChildProcess, GivesItsOutputLineByLineAndItsExitCode) {
  ChildProcess child = start("echo one; printf 'two\\nthree'; exit 7");
  for (const std::string line : {"one", "two", "three"}) {
    const auto got = child.read_line();
    ASSERT_TRUE(got) << got.error().message;
    EXPECT_EQ(*got, line);
  }
  EXPECT_EQ(*child.read_line(), std::nullopt);
  const auto exit = child.wait();
  ASSERT_TRUE(exit);
  EXPECT_EQ(exit->code, 7);
  EXPECT_EQ(exit->signal, 0);
}

TEST(ChildProcess, CapturesMessagesInstead) {
  ChildProcess child = start("echo message >&2", Stream::messages);
  EXPECT_EQ(*child.read_line(), "message");
}

TEST(ChildProcess, KillEndsItWithASignal) {
  ChildProcess child = start("echo ready; exec sleep 100");
  ASSERT_EQ(*child.read_line(), "ready");
  child.kill();
  const auto exit = child.wait();
  ASSERT_TRUE(exit);
  EXPECT_EQ(exit->signal, SIGKILL);
}

TEST(ChildProcess, DestroyingItEndsIt) {
  std::optional<ChildProcess> child(start("exec sleep 100"));
  const auto id = static_cast<pid_t>(child->id());
  child.reset();
  EXPECT_NE(::kill(id, 0), 0);
}

TEST(ChildProcess, AMissingProgramIsAnErrorThatNamesIt) {
  const auto child = ChildProcess::start({"/nowhere/program"}, Stream::output);
  ASSERT_FALSE(child);
  EXPECT_NE(child.error().message.find("/nowhere/program"), std::string::npos);
}

TEST(ChildProcess, ReadAllRefusesMoreThanTheLimit) {
  ChildProcess small = start("printf 12345");
  EXPECT_EQ(*small.read_all(5), "12345");
  ChildProcess large = start("printf 123456");
  const auto refused = large.read_all(5);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::limit);
}

TEST(Process, PeakMemoryIsAtLeastWhatIsTouched) {
  constexpr std::size_t kBytes = 64u << 20;
  const std::vector<char> touched(kBytes, 1);
  EXPECT_GE(peak_resident_bytes(), kBytes);
  EXPECT_EQ(touched.back(), 1);
}

}  // namespace
}  // namespace ebb::libswap
