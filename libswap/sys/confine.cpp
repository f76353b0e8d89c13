#include "ebb/libswap/sys/confine.h"

#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>

#include "ebb/libswap/sys/errno_error.h"

namespace ebb::libswap {
namespace {

using Filter = std::vector<sock_filter>;

#if defined(__x86_64__)
constexpr std::uint32_t kArchitecture = AUDIT_ARCH_X86_64;
#elif defined(__aarch64__)
constexpr std::uint32_t kArchitecture = AUDIT_ARCH_AARCH64;
#else
constexpr std::uint32_t kArchitecture = 0;  // no filter is known for this machine
#endif

constexpr std::uint32_t kRefuse = SECCOMP_RET_ERRNO | EPERM;

sock_filter statement(std::uint16_t code, std::uint32_t value) { return {code, 0, 0, value}; }
sock_filter jump(std::uint16_t code, std::uint32_t value, std::uint8_t yes, std::uint8_t no) {
  return {code, yes, no, value};
}
// The low half of a call's argument: descriptors and flags fit it.
std::uint32_t argument(int number) {
  return static_cast<std::uint32_t>(offsetof(seccomp_data, args)) +
         static_cast<std::uint32_t>(number) * 8;
}

void load(Filter& filter, std::uint32_t offset) {
  filter.push_back(statement(BPF_LD | BPF_W | BPF_ABS, offset));
}
void answer(Filter& filter, std::uint32_t what) {
  filter.push_back(statement(BPF_RET | BPF_K, what));
}

// REQUIRES: the call's number is loaded, for all of these.
void allow(Filter& filter, long call) {
  filter.push_back(jump(BPF_JMP | BPF_JEQ | BPF_K, static_cast<std::uint32_t>(call), 0, 1));
  answer(filter, SECCOMP_RET_ALLOW);
}
// Where `test` goes on with an argument; it skips one statement where it does not.
void allow_where(Filter& filter, long call, int number, sock_filter test) {
  filter.push_back(jump(BPF_JMP | BPF_JEQ | BPF_K, static_cast<std::uint32_t>(call), 0, 4));
  load(filter, argument(number));
  filter.push_back(test);
  answer(filter, SECCOMP_RET_ALLOW);
  answer(filter, kRefuse);
}
// Memory that is nobody's file and can never be executed.
void allow_anonymous_memory(Filter& filter) {
  filter.push_back(jump(BPF_JMP | BPF_JEQ | BPF_K, SYS_mmap, 0, 6));
  load(filter, argument(3));
  filter.push_back(jump(BPF_JMP | BPF_JSET | BPF_K, MAP_ANONYMOUS, 0, 3));
  load(filter, argument(2));
  filter.push_back(jump(BPF_JMP | BPF_JSET | BPF_K, PROT_EXEC, 1, 0));
  answer(filter, SECCOMP_RET_ALLOW);
  answer(filter, kRefuse);
}

Filter filter_for(const Confinement& confinement) {
  Filter filter;
  load(filter, offsetof(seccomp_data, arch));
  filter.push_back(jump(BPF_JMP | BPF_JEQ | BPF_K, kArchitecture, 1, 0));
  answer(filter, SECCOMP_RET_KILL_PROCESS);
  load(filter, offsetof(seccomp_data, nr));
  const auto descriptor = static_cast<std::uint32_t>(confinement.descriptor);
  for (const long call : {SYS_read, SYS_write})
    allow_where(filter, call, 0, jump(BPF_JMP | BPF_JEQ | BPF_K, descriptor, 0, 1));
  allow_anonymous_memory(filter);
  allow_where(filter, SYS_mprotect, 2, jump(BPF_JMP | BPF_JSET | BPF_K, PROT_EXEC, 1, 0));
  // sigaltstack is what the address sanitizer asks for on its way out.
  constexpr std::array kHarmless = {
      SYS_munmap,        SYS_mremap,         SYS_brk,          SYS_madvise,      SYS_futex,
      SYS_clock_gettime, SYS_gettimeofday,   SYS_getrandom,    SYS_getpid,       SYS_gettid,
      SYS_tgkill,        SYS_rt_sigprocmask, SYS_rt_sigaction, SYS_rt_sigreturn, SYS_sched_yield,
      SYS_exit,          SYS_exit_group,     SYS_sigaltstack};
  for (const long call : kHarmless) allow(filter, call);
  answer(filter, kRefuse);
  return filter;
}

// To `value`, or to what it is limited to already where that is less.
Result<> limit(decltype(RLIMIT_AS) what, std::uint64_t value, const char* name) {
  rlimit both{};
  if (::getrlimit(what, &both) != 0) return errno_error(errno, std::string("getrlimit ") + name);
  both.rlim_max = std::min<rlim_t>(both.rlim_max, value);
  both.rlim_cur = std::min(both.rlim_cur, both.rlim_max);
  if (::setrlimit(what, &both) == 0) return {};
  return errno_error(errno, std::string("setrlimit ") + name);
}

template <typename Call, typename Byte>
bool move_exactly(Call call, int descriptor, Byte* bytes, std::size_t count) {
  while (count > 0) {
    const ssize_t moved = call(descriptor, bytes, count);
    if (moved < 0 && errno == EINTR) continue;
    if (moved <= 0) return false;
    bytes += moved;
    count -= static_cast<std::size_t>(moved);
  }
  return true;
}

}  // namespace

Result<std::vector<std::string>> confine_this_process(const Confinement& confinement) {
  std::vector<std::string> missing;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  missing.push_back("memory is not limited: a sanitizer needs terabytes of address space");
#else
  EBB_TRY(limit(RLIMIT_AS, confinement.memory, "RLIMIT_AS"));
#endif
  EBB_TRY(limit(RLIMIT_CPU, confinement.cpu_seconds, "RLIMIT_CPU"));
  EBB_TRY(limit(RLIMIT_FSIZE, 0, "RLIMIT_FSIZE"));
  EBB_TRY(limit(RLIMIT_NOFILE, 0, "RLIMIT_NOFILE"));
  EBB_TRY(limit(RLIMIT_CORE, 0, "RLIMIT_CORE"));
  Filter filter = filter_for(confinement);
  const sock_fprog program{static_cast<unsigned short>(filter.size()), filter.data()};
  if (kArchitecture == 0 || ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
    missing.push_back("no seccomp here (" +
                      (kArchitecture == 0 ? "no filter for this machine" : errno_text(errno)) +
                      "): only resource limits hold");
  return missing;
}

bool read_exactly(int descriptor, std::byte* into, std::size_t count) {
  return move_exactly(::read, descriptor, into, count);
}

bool write_exactly(int descriptor, const std::byte* from, std::size_t count) {
  return move_exactly(::write, descriptor, from, count);
}

void leave_at_once(int code) { ::_exit(code); }

}  // namespace ebb::libswap
