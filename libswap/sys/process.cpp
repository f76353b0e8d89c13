#include "ebb/libswap/sys/process.h"

#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <fstream>
#include <thread>

#include "ebb/formats/core/json_text.h"
#include "ebb/libswap/sys/errno_error.h"
#include "ebb/libswap/sys/list_directory.h"
#include "ebb/libswap/sys/mutex.h"
#include "ebb/libswap/sys/shared_library.h"

namespace ebb::libswap {

namespace {

constexpr std::size_t kMostLine = 1u << 20;

struct Pipe {
  Descriptor reading;
  Descriptor writing;
};

Result<Pipe> make_pipe() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return errno_error(errno, "pipe2");
  return Pipe{Descriptor(ends[0]), Descriptor(ends[1])};
}

bool address_space_is_limited() {
  struct rlimit limit{};
  return ::getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur != RLIM_INFINITY;
}

}  // namespace

// All of it only makes things faster, so nothing is checked. Address space is not taken where it is
// limited; and only the first step of it is in huge pages, which are resident as a whole however
// little of them is used.
void keep_freed_memory() {
  constexpr int kStep = 64 << 20, kNever = 1 << 30;
  ::mallopt(M_MMAP_THRESHOLD, kNever);
  ::mallopt(M_TRIM_THRESHOLD, kNever);
  if (address_space_is_limited()) return;
  ::mallopt(M_TOP_PAD, kStep);
  void* const before = ::sbrk(0);
  void* volatile first_step = ::malloc(kStep / 256);  // volatile: compilers leave such pairs out
  ::free(first_step);
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = (reinterpret_cast<std::uintptr_t>(before) + page - 1) / page * page;
  const auto end = reinterpret_cast<std::uintptr_t>(::sbrk(0)) / page * page;
  if (begin >= end) return;
  ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
}

// An arena reserves 64 MiB and a stack 8 MiB, and holes of freed buffers stay taken. Without a
// limit a second arena is worth its addresses.
void spare_addresses() {
  constexpr std::size_t kStack = std::size_t{1} << 20;
  constexpr int kLarge = 1 << 20;
  const bool limited = address_space_is_limited();
  ::mallopt(M_ARENA_MAX, limited ? 1 : 2);
  if (!limited) return;
  ::mallopt(M_MMAP_THRESHOLD, kLarge);
  pthread_attr_t thread;
  if (::pthread_attr_init(&thread) != 0) return;
  if (::pthread_attr_setstacksize(&thread, kStack) == 0) ::pthread_setattr_default_np(&thread);
  ::pthread_attr_destroy(&thread);
}

std::uint64_t process_id() { return static_cast<std::uint64_t>(::getpid()); }

std::string machine_word() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string boot;
  struct stat network{};
  if (!(file >> boot) || ::stat("/proc/self/ns/net", &network) != 0) return {};
  return compose("{}.{}", boot, network.st_ino);
}

Result<std::string> random_digits(std::size_t count) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string digits(count, '0');
  if (::getrandom(digits.data(), digits.size(), 0) != static_cast<ssize_t>(digits.size()))
    return errno_error(errno, "getrandom");
  for (char& digit : digits) digit = kDigits[static_cast<unsigned char>(digit) % kDigits.size()];
  return digits;
}

Result<> make_room_for_descriptors(std::uint64_t more) {
  constexpr std::size_t kMostOpen = 1'000'000;
  const auto open = list_directory("/proc/self/fd", kMostOpen);
  const std::uint64_t wanted = more + (open ? open->size() : 0);
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return errno_error(errno, "getrlimit");
  if (wanted <= limit.rlim_cur) return {};
  if (wanted > limit.rlim_max)
    return Error{Code::limit,
                 compose("{} open descriptors are wanted, and this process may have {}", wanted,
                         limit.rlim_max),
                 compose("ulimit -n {}", wanted)};
  limit.rlim_cur = wanted;
  if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) return errno_error(errno, "setrlimit");
  return {};
}

Result<> check_may_write(const fs::path& folder) {
  if (::access(folder.c_str(), W_OK | X_OK) == 0) return {};
  return errno_error(errno, "cannot write to " + folder.string());
}

Error missing_folder(const fs::path& path, const fs::path& folder) {
  const std::string shown = printable(folder.string());
  return {Code::io, compose("{}: there is no folder {}", printable(path.string()), shown),
          "mkdir -p " + shown};
}

std::uint64_t peak_resident_bytes() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);  // cannot fail with these arguments
  return static_cast<std::uint64_t>(usage.ru_maxrss) * 1024;
}

Result<fs::path> program_directory() {
  std::error_code failed;
  const fs::path program = fs::read_symlink("/proc/self/exe", failed);
  if (failed) return errno_error(failed.value(), "/proc/self/exe");
  return program.parent_path();
}

namespace {

struct ProgramsFolder {
  Mutex mutex;
  fs::path folder EBB_GUARDED_BY(mutex);
};
ProgramsFolder& programs_folder() {
  static auto* const one = new ProgramsFolder;  // threads may ask while the process ends
  return *one;
}

}  // namespace

void look_for_programs_in(fs::path folder) {
  ProgramsFolder& programs = programs_folder();
  const MutexLock lock(programs.mutex);
  programs.folder = std::move(folder);
}

Result<fs::path> sister_program(std::string_view name) {
  EBB_TRY_ASSIGN(const fs::path folder, program_directory());
  const fs::path own =
      fs::path(SharedLibrary::file_of(reinterpret_cast<const void*>(&sister_program)))
          .parent_path();
  ProgramsFolder& programs = programs_folder();
  const MutexLock lock(programs.mutex);
  for (const fs::path& place : {folder, own, own / "../bin", programs.folder})
    if (std::error_code none; fs::exists(place / name, none))
      return (place / name).lexically_normal();
  return folder / name;
}

bool is_terminal(StandardStream stream) {
  return ::isatty(stream == StandardStream::output ? STDOUT_FILENO : STDERR_FILENO) == 1;
}

void sleep_for_seconds(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

Result<ChildProcess> ChildProcess::start(const std::vector<std::string>& command, Stream captured) {
  EBB_CHECK(!command.empty());
  EBB_TRY_ASSIGN(Pipe pipe, make_pipe());
  std::vector<char*> words;
  for (const std::string& word : command) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, pipe.writing.get(),
                                     captured == Stream::output ? 1 : 2);
  pid_t id = 0;
  const int failed = ::posix_spawn(&id, words[0], &actions, nullptr, words.data(), ::environ);
  ::posix_spawn_file_actions_destroy(&actions);
  if (failed != 0) return errno_error(failed, command[0] + ": cannot be started");
  return ChildProcess(id, std::move(pipe.reading));
}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept
    : id_(std::exchange(other.id_, 0)),
      stream_(std::move(other.stream_)),
      buffer_(std::move(other.buffer_)) {}

ChildProcess::~ChildProcess() {
  if (id_ == 0) return;
  kill();
  ::waitpid(id_, nullptr, 0);
}

// False at the end of the stream.
Result<bool> ChildProcess::read_more() {
  std::array<char, 65536> bytes;
  ssize_t got = 0;
  do {
    got = ::read(stream_.get(), bytes.data(), bytes.size());
  } while (got < 0 && errno == EINTR);
  if (got < 0) return errno_error(errno, "reading from a child process");
  buffer_.append(bytes.data(), static_cast<std::size_t>(got));
  return got > 0;
}

Result<std::optional<std::string>> ChildProcess::read_line() {
  for (;;) {
    const std::size_t end = buffer_.find('\n');
    if (end != std::string::npos) {
      std::optional<std::string> line = buffer_.substr(0, end);
      buffer_.erase(0, end + 1);
      return line;
    }
    if (buffer_.size() > kMostLine)
      return Error{Code::limit, "a child process wrote a line longer than 1 MiB"};
    EBB_TRY_ASSIGN(const bool more, read_more());
    if (more) continue;
    if (buffer_.empty()) return std::optional<std::string>();
    return std::optional<std::string>(std::exchange(buffer_, {}));
  }
}

Result<std::string> ChildProcess::read_all(std::uint64_t most) {
  for (;;) {
    if (buffer_.size() > most)
      return Error{Code::limit, compose("a child process wrote more than {} bytes", most)};
    EBB_TRY_ASSIGN(const bool more, read_more());
    if (!more) return std::exchange(buffer_, {});
  }
}

void ChildProcess::kill() {
  if (id_ != 0) ::kill(id_, SIGKILL);
}

void ChildProcess::interrupt() {
  if (id_ != 0) ::kill(id_, SIGINT);
}

Result<ChildProcess::Exit> ChildProcess::wait() {
  EBB_CHECK(id_ != 0);
  int status = 0;
  pid_t got = 0;
  do {
    got = ::waitpid(id_, &status, 0);
  } while (got < 0 && errno == EINTR);
  id_ = 0;
  if (got < 0) return errno_error(errno, "waitpid");
  if (WIFSIGNALED(status)) return Exit{.code = -1, .signal = WTERMSIG(status)};
  return Exit{.code = WEXITSTATUS(status), .signal = 0};
}

}  // namespace ebb::libswap
