#include "tests/support/in_child.h"

#include <sys/wait.h>
#include <unistd.h>

#include <array>

namespace ebb::test_support {
namespace {

constexpr unsigned kMostSeconds = 20;  // of a child; one that waits for a thread waits for ever

}  // namespace

std::string in_child(const std::function<std::string()>& body) {
  std::array<int, 2> ends{};
  if (::pipe(ends.data()) != 0) return "there is no pipe";
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(kMostSeconds);
    const std::string said = body();
    const bool written =
        ::write(ends[1], said.data(), said.size()) == static_cast<ssize_t>(said.size());
    ::_exit(written ? 0 : 1);
  }
  ::close(ends[1]);
  std::string said;
  std::array<char, 4096> some{};
  for (ssize_t size = 0; (size = ::read(ends[0], some.data(), some.size())) > 0;)
    said.append(some.data(), static_cast<std::size_t>(size));
  ::close(ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  if (WIFSIGNALED(status)) said += "ended by signal " + std::to_string(WTERMSIG(status));
  return said;
}

}  // namespace ebb::test_support
