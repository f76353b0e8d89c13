#include "tests/support/in_child.h"

#include <unistd.h>

#include <array>

#include "tests/support/fork_and_wait.h"

namespace ebb::test_support {
namespace {

constexpr unsigned kMostSeconds = 20;  // of a child; one that waits for a thread waits for ever

}  // namespace

std::string in_child(const std::function<std::string()>& body) {
  std::array<int, 2> ends{};
  if (::pipe(ends.data()) != 0) return "there is no pipe";
  const auto say = [&] {
    const std::string said = body();  // short: a pipe holds it
    const auto written = ::write(ends[1], said.data(), said.size());
    return written == static_cast<ssize_t>(said.size()) ? 0 : 1;
  };
  const int status = fork_and_wait(say, kMostSeconds);
  ::close(ends[1]);
  std::string said;
  std::array<char, 4096> some{};
  for (ssize_t size = 0; (size = ::read(ends[0], some.data(), some.size())) > 0;)
    said.append(some.data(), static_cast<std::size_t>(size));
  ::close(ends[0]);
  if (WIFSIGNALED(status)) said += "ended by signal " + std::to_string(WTERMSIG(status));
  return said;
}

}  // namespace ebb::test_support
