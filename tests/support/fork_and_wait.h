// fork_and_wait(): a child made by fork() that does something and ends.
//
// gcc's address sanitizer has locks of its own, which a fork copies as they are: where another
// thread held one, the child waits for it for ever, in whatever allocates first. That is no fault
// of the program, and the same test runs without the sanitizer, too: there a child that hangs is
// the end, here it is tried again.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>

namespace ebb::test_support {

// More than one with that sanitizer.
int tries_of_a_child();

// `body` answers the exit status of the child; an alarm ends one that hangs for so many seconds.
// How it ended, as waitpid() says. An alarm of this process waits meanwhile. Allocates nothing.
template <typename Body>
int fork_and_wait(const Body& body, unsigned seconds) {
  const unsigned left = ::alarm(0);
  int status = 0;
  for (int i = 0; i < tries_of_a_child(); ++i) {
    if (i > 0) std::fprintf(stderr, "a child hung, maybe in the sanitizer: another one\n");
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(seconds);
      ::_exit(body());
    }
    ::waitpid(child, &status, 0);
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGALRM) break;
  }
  ::alarm(left);
  return status;
}

}  // namespace ebb::test_support
