#include "ebb/libswap/sys/file_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <string_view>
#include <thread>

#include "ebb/libswap/sys/errno_error.h"
#include "ebb/libswap/sys/file_size_signal.h"
#include "ebb/libswap/sys/unique.h"

namespace ebb::libswap {
namespace {

constexpr int kAttempts = 7;
constexpr std::chrono::milliseconds kPause(50);

std::string read_start(int descriptor) {
  std::array<char, 1024> text{};
  const ssize_t count = ::pread(descriptor, text.data(), text.size(), 0);
  return count > 0 ? std::string(text.data(), static_cast<std::size_t>(count)) : std::string();
}

std::string read_start(const std::string& path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  return file ? read_start(file.get()) : std::string();
}

std::string first_word(std::string_view text) {
  return std::string(text.substr(0, text.find_first_of(" \n")));
}

// Field 22 of /proc/<pid>/stat, counted behind the command, which may hold spaces.
std::string start_time(const std::string& pid) {
  const std::string stat = read_start("/proc/" + pid + "/stat");
  std::size_t at = stat.rfind(')');
  for (int field = 2; field < 22 && at != std::string::npos; ++field) at = stat.find(' ', at + 1);
  return at == std::string::npos ? "0" : first_word(std::string_view(stat).substr(at + 1));
}

std::string record_of(const std::string& pid) {
  return compose("{} {} {}\n", pid, start_time(pid), boot_id());
}

struct flock range_of(short type, std::uint64_t first, std::uint64_t count) {
  struct flock range{};
  range.l_type = type;
  range.l_whence = SEEK_SET;
  range.l_start = static_cast<off_t>(first);
  range.l_len = static_cast<off_t>(count);
  return range;
}

// Written over what is there and cut afterwards: a full disk still has the bytes of the last one.
void write_record(int descriptor, const std::string& record) {
  const FileSizeSignalBlocked blocked;
  const ssize_t written = ::pwrite(descriptor, record.data(), record.size(), 0);
  const off_t kept = written == static_cast<ssize_t>(record.size()) ? written : 0;
  static_cast<void>(::ftruncate(descriptor, kept) == 0);
}

Error held(const std::string& path, const std::string& record) {
  const std::string pid = first_word(record);
  const bool number = !pid.empty() && pid.find_first_not_of("0123456789") == std::string::npos;
  if (!number) return {Code::busy, path + " is locked by another process", "lsof " + path};
  if (record_of(pid) == record && pid == std::to_string(::getpid()))
    return {Code::busy, path + " is locked by this process", "close what has it open here"};
  if (record_of(pid) == record)
    return {Code::busy, compose("{} is locked by process {}", path, pid), "ps -fp " + pid};
  // A lock outlives its process in the children that it forked.
  const bool rebooted = !record.ends_with(" " + boot_id() + "\n");
  return {Code::busy,
          compose("{} is locked by process {}, which {}", path, pid,
                  (rebooted ? "is of another machine, or gone"
                            : "is gone; a child of it holds the lock")),
          "lsof " + path};
}

}  // namespace

std::string boot_id() {
  const std::string boot = first_word(read_start("/proc/sys/kernel/random/boot_id"));
  return boot.empty() ? "unknown" : boot;
}

Result<> lock_file(int descriptor, const std::string& path) {
  for (int attempt = 1; ::flock(descriptor, LOCK_EX | LOCK_NB) != 0; ++attempt) {
    if (errno == EINTR) continue;
    if (errno != EWOULDBLOCK) return errno_error(errno, "cannot lock " + path);
    if (attempt == kAttempts) return held(path, read_start(descriptor));
    std::this_thread::sleep_for(kPause);
  }
  write_record(descriptor, record_of(std::to_string(::getpid())));
  return {};
}

void unlock_file(int descriptor) { ::flock(descriptor, LOCK_UN); }

bool lock_shared(int descriptor, std::uint64_t first, std::uint64_t count) {
  struct flock range = range_of(F_RDLCK, first, count);
  return ::fcntl(descriptor, F_OFD_SETLK, &range) == 0;
}

bool is_locked_shared(int descriptor, std::uint64_t byte) {
  struct flock range = range_of(F_WRLCK, byte, 1);
  return ::fcntl(descriptor, F_OFD_GETLK, &range) == 0 && range.l_type == F_RDLCK;
}

}  // namespace ebb::libswap
