#include "ebb/libswap/sys/aligned_buffer.h"

#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <limits>
#include <string>

#include "ebb/formats/core/units.h"
#include "ebb/libswap/sys/errno_error.h"

namespace ebb::libswap {
namespace {

constexpr std::uint64_t kPage = 4 * formats::KiB;
constexpr std::uint64_t kHugePage = 2 * formats::MiB;

std::uint64_t alignment_of(std::uint64_t bytes) { return bytes >= kHugePage ? kHugePage : kPage; }
std::uint64_t mapped_size(std::uint64_t bytes) {
  return formats::align_up(bytes, alignment_of(bytes));
}

// Maps `bytes` at a multiple of `alignment` by mapping more and giving back the ends.
std::byte* map_aligned(std::uint64_t bytes, std::uint64_t alignment) {
  const std::uint64_t extra = alignment > kPage ? alignment : 0;
  void* raw =
      ::mmap(nullptr, bytes + extra, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (raw == MAP_FAILED) return nullptr;
  auto* first = static_cast<std::byte*>(raw);
  const std::uint64_t address = reinterpret_cast<std::uintptr_t>(first);
  const std::uint64_t before = formats::align_up(address, alignment) - address;
  if (before > 0) ::munmap(first, before);
  if (extra > before) ::munmap(first + before + bytes, extra - before);
  return first + before;
}

}  // namespace

std::string no_huge_pages() {
  if (::prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0) == 1)
    return "they are switched off for this process (PR_SET_THP_DISABLE)";
  std::ifstream setting("/sys/kernel/mm/transparent_hugepage/enabled");
  std::string words;
  if (!std::getline(setting, words)) return "this kernel has no transparent ones";
  if (words.find("[never]") != words.npos) return "transparent_hugepage/enabled is never";
  return "";
}

std::string little_locked_memory() {
  constexpr std::uint64_t kMayLock = std::uint64_t{1} << 14;  // CAP_IPC_LOCK
  std::ifstream status("/proc/thread-self/status");
  for (std::string word; status >> word;) {
    if (word != "CapEff:") continue;
    std::uint64_t granted = 0;
    if (status >> std::hex >> granted && (granted & kMayLock) != 0) return "";
    break;
  }
  rlimit limit{};
  if (::getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return "";
  return compose("only {} bytes may be locked in memory (ulimit -l)", limit.rlim_cur);
}

Result<AlignedBuffer> AlignedBuffer::allocate(std::uint64_t bytes, Pages pages) {
  if (bytes == 0) return AlignedBuffer();
  const std::string what = compose("cannot map {} bytes of memory", bytes);
  if (bytes > std::numeric_limits<std::uint64_t>::max() / 4) return errno_error(ENOMEM, what);
  const std::uint64_t mapped = mapped_size(bytes);
  std::byte* data = map_aligned(mapped, alignment_of(bytes));
  if (data == nullptr) return errno_error(errno, what);
  AlignedBuffer buffer;
  buffer.data_ = {data, Unmapping{bytes, ::getpid()}};
  if (::madvise(data, mapped, MADV_DONTFORK) != 0)
    return errno_error(errno, "cannot keep a buffer out of forked children (MADV_DONTFORK)");
  // Advice only: a kernel without transparent huge pages or core dumps refuses, and works.
  const int advice = pages == Pages::huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE;
  if (bytes >= kHugePage) static_cast<void>(::madvise(data, mapped, advice));
  static_cast<void>(::madvise(data, mapped, MADV_DONTDUMP));
  return buffer;
}

void Unmapping::operator()(std::byte* data) const {
  if (owner == ::getpid()) ::munmap(data, mapped_size(size));
}

}  // namespace ebb::libswap
