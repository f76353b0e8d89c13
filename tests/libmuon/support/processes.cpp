#include "tests/libmuon/support/processes.h"

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <string>
#include <utility>

#include "ebb/libmuon/comm/socket_ranks.h"

namespace ebb::test {
namespace {

using libmuon::Communicator;
using libmuon::SocketListener;

[[noreturn]] void be_rank(Rank rank, std::vector<SocketListener> listeners,
                          const std::vector<std::string>& addresses,
                          std::chrono::milliseconds limit,
                          const std::function<int(std::unique_ptr<Communicator>)>& body) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  SocketListener mine = std::move(listeners[index_of(rank)]);
  listeners.clear();
  auto ranks = libmuon::make_socket_ranks(std::move(mine), rank, addresses, limit);
  if (!ranks) std::fprintf(stderr, "%s\n", ranks.error().message.c_str());
  EBB_CHECK(ranks);
  const int answer = body(*std::move(ranks));
  std::fflush(nullptr);
  ::_exit(answer);
}

}  // namespace

std::vector<int> run_processes(std::uint32_t world, std::chrono::milliseconds limit,
                               const std::function<int(std::unique_ptr<Communicator>)>& body,
                               const libmuon::Reach& reach) {
  std::vector<SocketListener> listeners;
  std::vector<std::string> addresses;
  for (std::uint32_t rank = 0; rank < world; ++rank) {
    auto listener = SocketListener::open(reach);
    EBB_CHECK(listener);
    addresses.push_back(listener->address());
    listeners.push_back(*std::move(listener));
  }
  std::fflush(nullptr);
  std::vector<pid_t> children;
  for (std::uint32_t rank = 0; rank < world; ++rank) {
    const pid_t child = ::fork();
    EBB_CHECK(child >= 0);
    if (child == 0) be_rank(Rank{rank}, std::move(listeners), addresses, limit, body);
    children.push_back(child);
  }
  listeners.clear();
  std::vector<int> answers;
  for (const pid_t child : children) {
    int status = 0;
    while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    answers.push_back(WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status));
  }
  return answers;
}

}  // namespace ebb::test
