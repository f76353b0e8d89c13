#include "ebb/libswap/sys/posix_backend.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <limits>
#include <system_error>

#include "ebb/libswap/sys/errno_error.h"
#include "ebb/libswap/sys/file_lock.h"
#include "ebb/libswap/sys/file_size_signal.h"
#include "ebb/libswap/sys/list_directory.h"

namespace ebb::libswap {
namespace {

constexpr std::size_t kMaxEntries = 1'000'000;
constexpr std::uint64_t kMaxFileBytes = std::numeric_limits<off_t>::max();

Error too_big(const OpenFile& file, std::uint64_t bytes) {
  return {Code::usage, compose("cannot make {} {} bytes long: over 2^63 - 1", file.path, bytes)};
}

// For file systems without fallocate: the bytes are reserved by being written. Buffered, because
// the length need not be a multiple of what direct I/O wants.
int fill_with_zeros(const OpenFile& file, std::uint64_t from, std::uint64_t to) {
  const int descriptor = file.descriptor.get();
  const int flags = ::fcntl(descriptor, F_GETFL);
  if (file.direct && ::fcntl(descriptor, F_SETFL, flags & ~O_DIRECT) != 0) return errno;
  const std::vector<std::byte> zeros(std::size_t{1} << 20);
  int error = 0;
  while (from < to && error == 0) {
    const std::size_t count = std::min<std::uint64_t>(zeros.size(), to - from);
    const ssize_t written = ::pwrite(descriptor, zeros.data(), count, static_cast<off_t>(from));
    if (written > 0) {
      from += static_cast<std::uint64_t>(written);
    } else if (written == 0 || errno != EINTR) {
      error = written == 0 ? EIO : errno;
    }
  }
  if (file.direct) ::fcntl(descriptor, F_SETFL, flags);
  return error;
}

int reserve(const OpenFile& file, std::uint64_t size, std::uint64_t bytes) {
  while (::fallocate(file.descriptor.get(), 0, 0, static_cast<off_t>(bytes)) != 0) {
    if (errno == EOPNOTSUPP) return fill_with_zeros(file, size, bytes);
    if (errno != EINTR) return errno;
  }
  return 0;
}

// Where renameat2 knows no RENAME_NOREPLACE. A directory's plain rename replaces only an empty one.
int rename_without_flag(const fs::path& from, const fs::path& to) {
  struct stat status{};
  if (::lstat(to.c_str(), &status) == 0) return EEXIST;
  if (::lstat(from.c_str(), &status) != 0) return errno;
  if (S_ISDIR(status.st_mode)) return ::rename(from.c_str(), to.c_str()) == 0 ? 0 : errno;
  if (::link(from.c_str(), to.c_str()) != 0) return errno;
  return ::unlink(from.c_str()) == 0 ? 0 : errno;
}

// The file type of the name itself; 0: there is none.
Result<mode_t> type_of(const fs::path& path) {
  struct stat status{};
  if (::lstat(path.c_str(), &status) == 0) return status.st_mode & S_IFMT;
  if (errno == ENOENT || errno == ENOTDIR) return mode_t{0};
  return errno_error(errno, "cannot look at " + path.string());
}

std::string from_to(const fs::path& from, const fs::path& to) {
  return compose("cannot rename {} to {}", from.string(), to.string());
}

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
  if (!S_ISREG(status.st_mode)) return Error{Code::usage, what + ": not a regular file"};
  const int flags = ::fcntl(file.descriptor.get(), F_GETFL) & ~O_NONBLOCK;
  if (::fcntl(file.descriptor.get(), F_SETFL, flags) != 0) return errno_error(errno, what);
  if (options.direct == Direct::off) return file;
  if (!switch_direct_on(file, flags) && options.direct == Direct::required)
    return Error{Code::unsupported, what + " for direct I/O: its file system has no O_DIRECT",
                 "findmnt -T " + path.string()};
  return file;
}

Result<FileId> PosixBackend::open(const fs::path& path, const OpenOptions& options) {
  EBB_TRY_ASSIGN(OpenFile file, open_regular_file(path, options));
  const MutexLock lock(mutex_);
  const FileId id{next_++};
  files_.emplace(id, std::make_shared<const OpenFile>(std::move(file)));
  return id;
}

Result<> PosixBackend::close(FileId file) {
  EBB_TRY_ASSIGN(const std::shared_ptr<const OpenFile> open, get(file));
  // A forked child may still hold the descriptor; the lock must not outlive this close.
  unlock_file(open->descriptor.get());
  const MutexLock lock(mutex_);
  files_.erase(file);
  return {};
}

Result<FileInfo> PosixBackend::info(FileId file) {
  EBB_TRY_ASSIGN(const std::shared_ptr<const OpenFile> open, get(file));
  struct stat status{};
  if (::fstat(open->descriptor.get(), &status) != 0)
    return errno_error(errno, "cannot ask for the size of " + open->path);
  return FileInfo{static_cast<std::uint64_t>(status.st_size), open->direct,        open->alignment,
                  in_memory(open->descriptor.get()),          status.st_nlink > 0, status.st_dev};
}

std::string PosixBackend::path_of(FileId file) const {
  const std::shared_ptr<const OpenFile> open = find(file);
  if (open == nullptr) return compose("file #{}", static_cast<std::int32_t>(file));
  return open->path;
}

Result<> PosixBackend::allocate(FileId file, std::uint64_t bytes) {
  EBB_TRY_ASSIGN(const std::shared_ptr<const OpenFile> open, get(file));
  if (bytes == 0) return {};
  if (bytes > kMaxFileBytes) return too_big(*open, bytes);
  EBB_TRY_ASSIGN(const FileInfo before, info(file));
  const FileSizeSignalBlocked blocked;
  const int error = reserve(*open, before.size, bytes);
  if (error == 0) return {};
  // What a refused reservation leaves behind would keep the disk full.
  if (::ftruncate(open->descriptor.get(), static_cast<off_t>(before.size)) != 0)
    return errno_error(errno, "cannot give back the space of " + open->path);
  return errno_error(error, compose("cannot reserve {} bytes for {}", bytes, open->path));
}

Result<> PosixBackend::truncate(FileId file, std::uint64_t bytes) {
  EBB_TRY_ASSIGN(const std::shared_ptr<const OpenFile> open, get(file));
  if (bytes > kMaxFileBytes) return too_big(*open, bytes);
  const FileSizeSignalBlocked blocked;
  while (::ftruncate(open->descriptor.get(), static_cast<off_t>(bytes)) != 0) {
    if (errno == EINTR) continue;
    return errno_error(errno, compose("cannot make {} {} bytes long", open->path, bytes));
  }
  return {};
}

Result<> PosixBackend::sync(FileId file) {
  EBB_TRY_ASSIGN(const std::shared_ptr<const OpenFile> open, get(file));
  if (::fsync(open->descriptor.get()) != 0) return errno_error(errno, "cannot sync " + open->path);
  return {};
}

Result<> PosixBackend::lock(FileId file) {
  EBB_TRY_ASSIGN(const std::shared_ptr<const OpenFile> open, get(file));
  return lock_file(open->descriptor.get(), open->path);
}

bool PosixBackend::is_held(FileId file, std::uint64_t byte) {
  const std::shared_ptr<const OpenFile> open = find(file);
  return open != nullptr && is_locked_shared(open->descriptor.get(), byte);
}

Result<> PosixBackend::make_directory(const fs::path& path, Visibility visibility) {
  const mode_t mode = visibility == Visibility::owner ? 0700 : 0777;
  if (::mkdir(path.c_str(), mode) == 0) return {};
  const int error = errno;
  struct stat status{};
  if (error == EEXIST && ::stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode)) return {};
  return errno_error(error, "cannot make the directory " + path.string());
}

Result<> PosixBackend::sync_directory(const fs::path& path) {
  const Descriptor directory(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory) return errno_error(errno, "cannot open the directory " + path.string());
  if (::fsync(directory.get()) != 0)
    return errno_error(errno, "cannot sync the directory " + path.string());
  return {};
}

Result<> PosixBackend::rename(const fs::path& from, const fs::path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) return errno_error(errno, from_to(from, to));
  return {};
}

Result<> PosixBackend::rename_new(const fs::path& from, const fs::path& to) {
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0) return {};
  int error = errno;
  if (error == EINVAL || error == ENOSYS) error = rename_without_flag(from, to);
  if (error != 0) return errno_error(error, from_to(from, to));
  return {};
}

Result<> PosixBackend::remove(const fs::path& path) {
  if (::remove(path.c_str()) != 0) return errno_error(errno, "cannot remove " + path.string());
  return {};
}

Result<std::vector<std::string>> PosixBackend::list(const fs::path& directory) {
  return list_directory(directory, kMaxEntries);
}

Result<bool> PosixBackend::exists(const fs::path& path) {
  EBB_TRY_ASSIGN(const mode_t type, type_of(path));
  return type != 0;
}

Result<bool> PosixBackend::is_directory(const fs::path& path) {
  EBB_TRY_ASSIGN(const mode_t type, type_of(path));
  return type == S_IFDIR;
}

Result<bool> PosixBackend::is_file(const fs::path& path) {
  EBB_TRY_ASSIGN(const mode_t type, type_of(path));
  return type == S_IFREG;
}

Result<std::uint64_t> PosixBackend::free_bytes(const fs::path& directory) {
  struct statvfs status{};
  if (::statvfs(directory.c_str(), &status) != 0)
    return errno_error(errno, "cannot ask for the free space of " + directory.string());
  return std::uint64_t{status.f_bavail} * status.f_frsize;
}

std::shared_ptr<const OpenFile> PosixBackend::find(FileId file) const {
  const MutexLock lock(mutex_);
  const auto found = files_.find(file);
  return found == files_.end() ? nullptr : found->second;
}

Result<std::shared_ptr<const OpenFile>> PosixBackend::get(FileId file) const {
  std::shared_ptr<const OpenFile> open = find(file);
  if (open != nullptr) return open;
  return Error{Code::state, path_of(file) + " is not open"};
}

}  // namespace ebb::libswap
