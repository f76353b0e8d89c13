#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "ebb/libswap/sys/errno_error.h"
#include "ebb/libswap/sys/posix_backend.h"

namespace ebb::libswap {
namespace {

constexpr std::uint32_t kBlock = 4096;

int flags_of(const OpenOptions& options) {
  int flags = O_CLOEXEC | O_NOCTTY | O_NONBLOCK;
  flags |= options.access == Access::read ? O_RDONLY : O_RDWR | O_NOFOLLOW;
  if (options.creation == Creation::create_new) flags |= O_CREAT | O_EXCL;
  if (options.creation == Creation::create_or_open) flags |= O_CREAT | O_NOFOLLOW;
  return flags;
}

// tmpfs accepts O_DIRECT since Linux 6.6, but there is no device to be direct with.
constexpr decltype(statfs::f_type) kTmpfs = 0x01021994;

// What direct I/O on this file needs; 0 when the kernel says that the file cannot do it, 4096 when
// it does not say.
std::uint32_t direct_alignment(int descriptor) {
  if (in_memory(descriptor)) return 0;
  struct statx status{};
  if (::statx(descriptor, "", AT_EMPTY_PATH, STATX_DIOALIGN, &status) != 0) return kBlock;
  if ((status.stx_mask & STATX_DIOALIGN) == 0) return kBlock;
  if (status.stx_dio_offset_align == 0) return 0;
  return std::max({kBlock, status.stx_dio_offset_align, status.stx_dio_mem_align});
}

// Some file systems accept the flag and refuse the first transfer.
bool direct_read_works(int descriptor) {
  alignas(kBlock) std::byte block[kBlock];
  return ::pread(descriptor, block, kBlock, 0) >= 0 || errno != EINVAL;
}

// Switched on after the open, because a file system that refuses O_DIRECT in open() may leave a
// file that O_EXCL then stumbles over.
bool switch_direct_on(OpenFile& file, int flags) {
  const int descriptor = file.descriptor.get();
  const std::uint32_t alignment = direct_alignment(descriptor);
  if (alignment == 0 || ::fcntl(descriptor, F_SETFL, flags | O_DIRECT) != 0) return false;
  if (alignment == kBlock && !direct_read_works(descriptor)) {
    ::fcntl(descriptor, F_SETFL, flags);
    return false;
  }
  file.direct = true;
  file.alignment = alignment;
  return true;
}

}  // namespace

bool in_memory(int descriptor) {
  struct statfs system{};
  return ::fstatfs(descriptor, &system) == 0 && system.f_type == kTmpfs;
}

Result<OpenFile> open_regular_file(const fs::path& path, const OpenOptions& options) {
  const std::string what = "cannot open " + path.string();
  const mode_t mode = options.visibility == Visibility::owner ? 0600 : 0666;
  OpenFile file{Descriptor(::open(path.c_str(), flags_of(options), mode)), path.string()};
  if (!file.descriptor) {
    Error error = errno_error(errno, what);
    if (errno == EMFILE) error.hint = "ulimit -n $(ulimit -Hn)";
    return error;
  }
  struct stat status{};
  if (::fstat(file.descriptor.get(), &status) != 0) return errno_error(errno, what);
  if (!S_ISREG(status.st_mode)) {
    return Error{Code::usage, what + ": not a regular file", ""};
  }
  const int flags = ::fcntl(file.descriptor.get(), F_GETFL) & ~O_NONBLOCK;
  if (::fcntl(file.descriptor.get(), F_SETFL, flags) != 0) return errno_error(errno, what);
  if (options.direct == Direct::off) return file;
  if (!switch_direct_on(file, flags) && options.direct == Direct::required) {
    return Error{Code::unsupported, what + " for direct I/O: its file system has no O_DIRECT",
                 "findmnt -T " + path.string()};
  }
  return file;
}

}  // namespace ebb::libswap
