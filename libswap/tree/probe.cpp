#include "ebb/libswap/tree/probe.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <array>
#include <cerrno>

#include "ebb/formats/core/json_text.h"
#include "ebb/libswap/sys/errno_error.h"
#include "ebb/libswap/sys/unique.h"

namespace ebb::libswap {
namespace {

using formats::ByteSource;
using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kMostExcuse = 4096;
constexpr int kNotLoaded =
    127;  // what ld.so, as shells do, ends with when it cannot load a program

class Probe {
 public:
  Probe(const ByteSource& file, const ProbeLimits& limits)
      : file_(file), limits_(limits), end_(Clock::now() + limits.time) {}
  Probe(const Probe&) = delete;
  ~Probe();

  Result<> start(const std::vector<std::string>& command);
  Result<ByteVector> run();

 private:
  enum class Reading : std::uint8_t { bytes, end };

  std::string who() const { return compose("{}: {}", file_.name(), name_); }
  Error broken(const std::string& what) const { return {Code::corrupt, who() + " " + what}; }
  Result<> wait_for(short event);
  Result<Reading> receive(std::span<std::byte> into);
  Result<> send(std::span<const std::byte> bytes);
  template <typename T>
  Result<T> number();
  Result<> answer_read();
  Result<> take_report();
  Result<ByteVector> excuse();  // never has a value
  Result<> check_exit();

  const ByteSource& file_;
  const ProbeLimits& limits_;
  Clock::time_point end_;
  std::string name_;
  pid_t child_ = 0;  // 0: not started, or waited for
  Descriptor socket_;
  ByteVector report_;
};

Probe::~Probe() {
  if (child_ == 0) return;
  ::kill(child_, SIGKILL);
  while (::waitpid(child_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

Result<> Probe::start(const std::vector<std::string>& command) {
  name_ = command[0].substr(command[0].rfind('/') + 1);
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0)
    return errno_error(errno, "socketpair");
  socket_ = Descriptor(ends[0]);
  const Descriptor theirs(ends[1]);
  std::vector<char*> words;
  for (const std::string& word : command) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  std::array<char*, 1> no_environment{nullptr};
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, theirs.get(), 0);
  ::posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
  ::posix_spawn_file_actions_adddup2(&actions, 1, 2);
  pid_t id = 0;
  const int failed =
      ::posix_spawn(&id, words[0], &actions, nullptr, words.data(), no_environment.data());
  ::posix_spawn_file_actions_destroy(&actions);
  if (failed != 0) return errno_error(failed, command[0] + ": cannot be started");
  child_ = id;
  return {};
}

Result<> Probe::wait_for(short event) {
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end_ - Clock::now());
    pollfd waiting{socket_.get(), event, 0};
    const int ready = left.count() <= 0 ? 0 : ::poll(&waiting, 1, static_cast<int>(left.count()));
    if (ready > 0) return {};
    if (ready == 0)
      return Error{Code::limit, compose("{} had not finished after {} ms, the limit: the file "
                                        "makes it run in circles, or the disk is very slow",
                                        who(), limits_.time.count())};
    if (errno != EINTR) return errno_error(errno, "poll");
  }
}

Result<Probe::Reading> Probe::receive(std::span<std::byte> into) {
  const std::size_t wanted = into.size();
  while (!into.empty()) {
    EBB_TRY(wait_for(POLLIN));
    const ssize_t got = ::recv(socket_.get(), into.data(), into.size(), MSG_DONTWAIT);
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (got < 0 && errno != ECONNRESET) return errno_error(errno, "reading from " + name_);
    if (got <= 0) {
      if (into.size() == wanted) return Reading::end;
      return broken("broke off in the middle of what it said");
    }
    into = into.subspan(static_cast<std::size_t>(got));
  }
  return Reading::bytes;
}

Result<> Probe::send(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    EBB_TRY(wait_for(POLLOUT));
    const ssize_t put =
        ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (put < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (put < 0) return {};  // it has gone: the next receive() and its exit say how
    bytes = bytes.subspan(static_cast<std::size_t>(put));
  }
  return {};
}

template <typename T>
Result<T> Probe::number() {
  std::array<std::byte, sizeof(T)> bytes{};
  EBB_TRY_ASSIGN(const Reading reading, receive(bytes));
  if (reading == Reading::end) return broken("broke off in the middle of what it said");
  return formats::load_le<T>(bytes);
}

Result<> Probe::answer_read() {
  EBB_TRY_ASSIGN(const auto offset, number<std::uint64_t>());
  EBB_TRY_ASSIGN(const auto count, number<std::uint32_t>());
  if (count > limits_.one_read || offset > file_.size() || count > file_.size() - offset)
    return broken(compose("asked for {} bytes at {}", count, offset));
  ByteVector bytes(count);
  EBB_TRY(file_.read(offset, bytes));
  return send(bytes);
}

Result<> Probe::take_report() {
  EBB_TRY_ASSIGN(const auto count, number<std::uint32_t>());
  if (count > limits_.report - report_.size())
    return Error{Code::limit,
                 compose("{} reports more than {} bytes, the limit", who(), limits_.report)};
  const std::size_t before = report_.size();
  report_.resize(before + count);
  EBB_TRY_ASSIGN(const Reading reading, receive(std::span(report_).subspan(before)));
  if (reading == Reading::end && count > 0) return broken("broke off in its report");
  return {};
}

Result<ByteVector> Probe::excuse() {
  EBB_TRY_ASSIGN(const auto code, number<std::uint8_t>());
  EBB_TRY_ASSIGN(const auto count, number<std::uint32_t>());
  if (code > static_cast<std::uint8_t>(Code::cancelled) || count > kMostExcuse)
    return broken("has an excuse that makes no sense");
  ByteVector bytes(count);
  EBB_TRY_ASSIGN(const Reading reading, receive(bytes));
  if (reading == Reading::end && count > 0) return broken("broke off in its excuse");
  const std::string why = printable(formats::text_of(bytes), kMostExcuse);
  return Error{static_cast<Code>(code), compose("{}: {}", file_.name(), why)};
}

Result<> Probe::check_exit() {
  // The socket is closed on its side: it is ending, or was killed by the kernel.
  int status = 0;
  pid_t got = 0;
  while ((got = ::waitpid(child_, &status, WNOHANG)) == 0 && Clock::now() < end_)
    ::poll(nullptr, 0, 1);
  if (got < 0 && errno != EINTR) return errno_error(errno, "waitpid");
  if (got <= 0) return broken("closed its report but did not end");
  child_ = 0;
  if (WIFSIGNALED(status))
    return broken(compose(
        "{} (signal {})",
        (WTERMSIG(status) == SIGXCPU ? "was stopped: too much computing" : "crashed on this file"),
        WTERMSIG(status)));
  if (WEXITSTATUS(status) == kNotLoaded)
    return Error{Code::no_memory,
                 who() +
                     " could not be loaded (exit code 127): too little memory for it, or its "
                     "library is missing; the file was not looked at",
                 "ulimit -v"};
  if (WEXITSTATUS(status) != 0)
    return broken(compose("gave up on this file (exit code {})", WEXITSTATUS(status)));
  return {};
}

Result<ByteVector> Probe::run() {
  for (;;) {
    std::array<std::byte, 1> kind{};
    EBB_TRY_ASSIGN(const Reading reading, receive(kind));
    if (reading == Reading::end) {
      EBB_TRY(check_exit());
      return std::move(report_);
    }
    const char what = std::to_integer<char>(kind[0]);
    if (what == 'E') return excuse();
    if (what != 'R' && what != 'D') return broken("said something that is no part of the protocol");
    EBB_TRY(what == 'R' ? answer_read() : take_report());
  }
}

}  // namespace

Result<ByteVector> run_probe(std::vector<std::string> command, const ByteSource& file,
                             const ProbeLimits& limits) {
  EBB_CHECK(!command.empty());
  command.push_back(std::to_string(file.size()));
  Probe probe(file, limits);
  EBB_TRY(probe.start(command));
  return probe.run();
}

}  // namespace ebb::libswap
