#include "tests/support/traced.h"

#include <signal.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>

namespace ebb::test_support {
namespace {

enum class Names : std::uint8_t { descriptor, path, second_path };

struct Known {
  const char* name;
  Names names;
};

const Known* known_call(std::uint64_t number) {
  static const std::map<std::uint64_t, Known> calls = {
      {SYS_fsync, {"fsync", Names::descriptor}},
      {SYS_fdatasync, {"fdatasync", Names::descriptor}},
      {SYS_pwrite64, {"pwrite64", Names::descriptor}},
      {SYS_renameat2, {"renameat2", Names::second_path}},
#ifdef SYS_rename
      {SYS_rename, {"rename", Names::path}},
      {SYS_unlink, {"unlink", Names::path}},
      {SYS_rmdir, {"rmdir", Names::path}},
      {SYS_mkdir, {"mkdir", Names::path}},
#endif
  };
  const auto found = calls.find(number);
  return found == calls.end() ? nullptr : &found->second;
}

std::string path_of(pid_t child, std::uint64_t descriptor) {
  std::error_code failed;
  const auto link = "/proc/" + std::to_string(child) + "/fd/" + std::to_string(descriptor);
  return std::filesystem::read_symlink(link, failed).string();
}

std::string text_of(pid_t child, std::uint64_t address) {
  std::array<char, 4096> text{};
  iovec here{text.data(), text.size() - 1};
  iovec there{reinterpret_cast<void*>(address), text.size() - 1};
  if (::process_vm_readv(child, &here, 1, &there, 1, 0) <= 0) {
    there.iov_len = here.iov_len = 256;  // the page behind may not be there
    if (::process_vm_readv(child, &here, 1, &there, 1, 0) <= 0) return "?";
  }
  return text.data();
}

std::optional<SystemCall> call_of(pid_t thread) {
  __ptrace_syscall_info info{};
  const long size =
      ::ptrace(PTRACE_GET_SYSCALL_INFO, thread, reinterpret_cast<void*>(sizeof(info)), &info);
  if (size <= 0 || info.op != PTRACE_SYSCALL_INFO_ENTRY) return std::nullopt;
  const Known* known = known_call(info.entry.nr);
  if (known == nullptr) return std::nullopt;
  switch (known->names) {
    case Names::descriptor:
      return SystemCall{known->name, path_of(thread, info.entry.args[0])};
    case Names::path:
      return SystemCall{known->name, text_of(thread, info.entry.args[0])};
    case Names::second_path:
      return SystemCall{known->name, text_of(thread, info.entry.args[1])};
  }
  return std::nullopt;
}

}  // namespace

std::size_t SystemCalls::find(std::string_view name, std::string_view path_end,
                              std::size_t from) const {
  for (std::size_t i = from; i < calls.size(); ++i)
    if (calls[i].name == name && calls[i].path.ends_with(path_end)) return i;
  return calls.size();
}

SystemCalls trace(const std::function<int()>& work) {
  SystemCalls seen;
  const pid_t child = ::fork();
  if (child == 0) {
    ::raise(SIGSTOP);
    ::_exit(work());
  }
  int status = 0;
  ::waitpid(child, &status, WUNTRACED);
  constexpr unsigned long kOptions =
      PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACECLONE | PTRACE_O_EXITKILL;
  if (::ptrace(PTRACE_SEIZE, child, nullptr, kOptions) != 0) {
    seen.why_not = std::string("ptrace of an own child: ") + std::strerror(errno);
    ::kill(child, SIGKILL);
    ::waitpid(child, &status, 0);
    return seen;
  }
  ::ptrace(PTRACE_INTERRUPT, child, nullptr, nullptr);
  ::kill(child, SIGCONT);
  for (;;) {
    const pid_t thread = ::waitpid(-1, &status, __WALL);
    if (thread < 0) return seen;
    if (WIFEXITED(status) || WIFSIGNALED(status)) {
      if (thread != child) continue;
      seen.exit = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
      return seen;
    }
    const int event = status >> 16;
    int signal = 0;
    if (WSTOPSIG(status) == (SIGTRAP | 0x80)) {
      if (const auto call = call_of(thread)) seen.calls.push_back(*call);
    } else if (event == 0) {
      signal = WSTOPSIG(status);
    }
    ::ptrace(PTRACE_SYSCALL, thread, nullptr, signal);
  }
}

}  // namespace ebb::test_support
