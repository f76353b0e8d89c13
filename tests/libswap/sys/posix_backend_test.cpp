#include "ebb/libswap/sys/posix_backend.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <fstream>
#include <functional>

#include "ebb/libswap/sys/file_lock.h"
#include "tests/libswap/sys/test_files.h"

namespace ebb::libswap {
namespace {

class PosixFiles : public testing::Test {
 protected:
  FileId open(const char* name, const OpenOptions& options = writable()) {
    return value_of(backend_->open(directory_ / name, options));
  }
  struct stat status_of(const char* name) {
    struct stat status{};
    EXPECT_EQ(::lstat((directory_ / name).c_str(), &status), 0) << name;
    return status;
  }

  TemporaryDirectory directory_;
  std::unique_ptr<IoBackend> backend_ = value_of(make_threads_backend(1));
};

TEST_F(PosixFiles, CreateNewRefusesWhatExistsAndOpenExistingWhatDoesNot) {
  open("a");
  OpenOptions create = writable();
  create.creation = Creation::create_new;
  const Result<FileId> again = backend_->open(directory_ / "a", create);
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().message,
            "cannot open " + (directory_ / "a").string() + ": File exists (EEXIST)");
  const Result<FileId> missing = backend_->open(directory_ / "b", {});
  ASSERT_FALSE(missing);
  EXPECT_NE(missing.error().message.find("ENOENT"), std::string::npos);
}

TEST_F(PosixFiles, FilesAndDirectoriesAreTheOwnersUnlessPublished) {
  const mode_t before = ::umask(022);
  open("secret");
  OpenOptions published = writable();
  published.visibility = Visibility::by_umask;
  open("published", published);
  EXPECT_TRUE(backend_->make_directory(directory_ / "private"));
  EXPECT_TRUE(backend_->make_directory(directory_ / "public", Visibility::by_umask));
  ::umask(before);
  EXPECT_EQ(status_of("secret").st_mode & 0777u, 0600u);
  EXPECT_EQ(status_of("published").st_mode & 0777u, 0644u);
  EXPECT_EQ(status_of("private").st_mode & 0777u, 0700u);
  EXPECT_EQ(status_of("public").st_mode & 0777u, 0755u);
}

TEST_F(PosixFiles, DirectIsSilentWhenPreferredAndAnErrorWhenRequiredButMissing) {
  // A regular file whose file system has no O_DIRECT on any machine.
  const fs::path proc = "/proc/self/status";
  OpenOptions options;
  options.direct = Direct::preferred;
  const FileId file = value_of(backend_->open(proc, options));
  EXPECT_FALSE(value_of(backend_->info(file)).direct);
  options.direct = Direct::required;
  const Result<FileId> refused = backend_->open(proc, options);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::unsupported);
  EXPECT_NE(refused.error().message.find("O_DIRECT"), std::string::npos);
}

TEST_F(PosixFiles, InfoTellsAlignmentOfDirectFiles) {
  const FileInfo info = value_of(backend_->info(open("d", writable(Direct::preferred))));
  EXPECT_EQ(info.size, 0u);
  EXPECT_GE(info.alignment, 4096u);
  EXPECT_EQ(info.alignment & (info.alignment - 1), 0u);
}

TEST_F(PosixFiles, ATmpfsIsMemoryAndNeverDirect) {
  struct statfs system{};
  if (::statfs("/dev/shm", &system) != 0 || system.f_type != 0x01021994)
    GTEST_SKIP() << "/dev/shm is no tmpfs here";
  const std::string path = "/dev/shm/ebb-test-" + std::to_string(::getpid());
  OpenOptions options = writable();
  options.direct = Direct::preferred;
  const FileId file = value_of(backend_->open(path, options));
  const FileInfo info = value_of(backend_->info(file));
  EXPECT_TRUE(backend_->remove(path));
  EXPECT_TRUE(info.in_memory);
  EXPECT_FALSE(info.direct);
}

TEST_F(PosixFiles, LinksAndPipesAreNotWrittenThrough) {
  open("target");
  fs::create_symlink(directory_ / "target", directory_ / "link");
  EXPECT_FALSE(backend_->open(directory_ / "link", writable()));
  ASSERT_EQ(::mkfifo((directory_ / "pipe").c_str(), 0600), 0);
  const Result<FileId> pipe =
      backend_->open(directory_ / "pipe", {});  // must not wait for a writer
  ASSERT_FALSE(pipe);
  EXPECT_NE(pipe.error().message.find("not a regular file"), std::string::npos);
  EXPECT_FALSE(backend_->open(directory_.path(), {})) << "a directory";
}

TEST_F(PosixFiles, EveryDescriptorIsClosedByExec) {
  const std::unique_ptr<IoBackend> uring =
      make_uring_backend() ? value_of(make_uring_backend()) : nullptr;
  open("a", writable(Direct::preferred));
  for (const fs::directory_entry& entry : fs::directory_iterator("/proc/self/fd")) {
    const int descriptor = std::stoi(entry.path().filename().string());
    std::error_code gone;
    const std::string target = fs::read_symlink(entry.path(), gone).string();
    const bool ours = target.find("io_uring") != std::string::npos ||
                      target.find("ebb-sys-") != std::string::npos ||
                      target.find("eventfd") != std::string::npos;
    if (!ours) continue;
    EXPECT_NE(::fcntl(descriptor, F_GETFD) & FD_CLOEXEC, 0) << target;
  }
}

TEST_F(PosixFiles, AllocateReservesEveryBlock) {
  const FileId file = open("a", writable(Direct::preferred));
  ASSERT_TRUE(succeeded(backend_->allocate(file, 1'000'000)));
  EXPECT_EQ(value_of(backend_->info(file)).size, 1'000'000u);
  EXPECT_GE(status_of("a").st_blocks * 512, 1'000'000);
  ASSERT_TRUE(succeeded(backend_->allocate(file, 1000))) << "never shrinks";
  EXPECT_EQ(value_of(backend_->info(file)).size, 1'000'000u);
}

TEST_F(PosixFiles, ARefusedReservationLeavesTheFileAsItWas) {
  const FileId file = open("a");
  ASSERT_TRUE(succeeded(backend_->truncate(file, 5000)));
  struct rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  struct rlimit small = before;
  small.rlim_cur = 100'000;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const Result<> refused = backend_->allocate(file, 200'000);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("EFBIG"), std::string::npos);
  EXPECT_EQ(value_of(backend_->info(file)).size, 5000u);
}

TEST_F(PosixFiles, RenameNewNeverReplaces) {
  open("a");
  open("b");
  const Result<> refused = backend_->rename_new(directory_ / "a", directory_ / "b");
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("EEXIST"), std::string::npos);
  EXPECT_TRUE(backend_->rename_new(directory_ / "a", directory_ / "c"));
  EXPECT_TRUE(backend_->rename(directory_ / "c", directory_ / "b"));
  EXPECT_EQ(value_of(backend_->list(directory_.path())), std::vector<std::string>{"b"});
}

TEST_F(PosixFiles, NamesAreListedInOrderAndRemoved) {
  for (const char* name : {"c", "a", "B"}) open(name);
  EXPECT_EQ(value_of(backend_->list(directory_.path())), (std::vector<std::string>{"B", "a", "c"}));
  EXPECT_TRUE(backend_->remove(directory_ / "a"));
  EXPECT_FALSE(value_of(backend_->exists(directory_ / "a")));
  EXPECT_TRUE(value_of(backend_->exists(directory_ / "c")));
  EXPECT_FALSE(backend_->remove(directory_ / "a"));
  EXPECT_TRUE(backend_->sync_directory(directory_.path()));
  EXPECT_FALSE(backend_->list(directory_ / "nowhere"));
  EXPECT_GT(value_of(backend_->free_bytes(directory_.path())), 0u);
}

TEST_F(PosixFiles, AClosedFileIsAnErrorNotACrash) {
  const FileId file = open("a");
  ASSERT_TRUE(backend_->close(file));
  EXPECT_FALSE(backend_->close(file));
  EXPECT_FALSE(backend_->sync(file));
  EXPECT_FALSE(backend_->info(file));
}

TEST_F(PosixFiles, ARefusedLockNamesTheProcessThatHoldsIt) {
  std::array<int, 2> ready{};
  std::array<int, 2> stop{};
  ASSERT_EQ(::pipe(ready.data()), 0);
  ASSERT_EQ(::pipe(stop.data()), 0);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::close(stop[1]);
    const Result<OpenFile> file = open_regular_file(directory_ / "lock", writable());
    char byte = file && lock_file(file->descriptor.get(), file->path) ? 'y' : 'n';
    if (::write(ready[1], &byte, 1) != 1 || ::read(stop[0], &byte, 1) < 0) ::_exit(1);
    ::_exit(0);
  }
  ::close(stop[0]);
  char locked = 'n';
  ASSERT_EQ(::read(ready[0], &locked, 1), 1);
  ASSERT_EQ(locked, 'y');
  const FileId file = open("lock");
  const Result<> refused = backend_->lock(file);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::busy);
  EXPECT_EQ(refused.error().message,
            (directory_ / "lock").string() + " is locked by process " + std::to_string(child));
  ::close(stop[1]);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(succeeded(backend_->lock(file))) << "the lock ends with its process";
  ::close(ready[0]);
  ::close(ready[1]);
}

// A trainer that was killed beside its data loader.
TEST_F(PosixFiles, ALockThatAChildOfAKilledProcessHoldsSaysSo) {
  std::array<int, 2> ready{};
  std::array<int, 2> stop{};
  ASSERT_EQ(::pipe(ready.data()), 0);
  ASSERT_EQ(::pipe(stop.data()), 0);
  const pid_t trainer = ::fork();
  ASSERT_GE(trainer, 0);
  if (trainer == 0) {
    const Result<OpenFile> file = open_regular_file(directory_ / "lock", writable());
    char byte = file && lock_file(file->descriptor.get(), file->path) ? 'y' : 'n';
    ::close(stop[1]);
    if (::fork() == 0) ::_exit(::read(stop[0], &byte, 1) < 0 ? 1 : 0);  // the loader
    ::_exit(::write(ready[1], &byte, 1) == 1 ? 0 : 1);
  }
  ::close(stop[0]);
  char locked = 'n';
  ASSERT_EQ(::read(ready[0], &locked, 1), 1);
  ASSERT_EQ(locked, 'y');
  int status = 0;
  ASSERT_EQ(::waitpid(trainer, &status, 0), trainer);
  const FileId file = open("lock");
  const Result<> refused = backend_->lock(file);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().message, (directory_ / "lock").string() + " is locked by process " +
                                         std::to_string(trainer) +
                                         ", which is gone; a child of it holds the lock");
  ::close(stop[1]);
  ::close(ready[0]);
  ::close(ready[1]);
}

TEST_F(PosixFiles, ALockEndsWithItsFileEvenWhenAForkedChildLives) {
  const FileId first = open("lock");
  ASSERT_TRUE(backend_->lock(first));
  std::array<int, 2> stop{};
  ASSERT_EQ(::pipe(stop.data()), 0);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::close(stop[1]);
    char byte = 0;
    ::_exit(::read(stop[0], &byte, 1) < 0 ? 1 : 0);
  }
  ASSERT_TRUE(backend_->close(first));
  EXPECT_TRUE(succeeded(backend_->lock(open("lock"))));
  ::close(stop[0]);
  ::close(stop[1]);
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
}

TEST(ThreadsBackend, RefusesNoThreadsAndTooMany) {
  EXPECT_FALSE(make_threads_backend(0));
  EXPECT_FALSE(make_threads_backend(65));
}

// Runs in a child of its own: limits are the process's. What it returns is the child's exit.
int with_file_limit(rlim_t bytes, const std::function<int()>& work) {
  const pid_t child = ::fork();
  if (child == 0) {
    const rlimit limit{bytes, bytes};
    ::_exit(::setrlimit(RLIMIT_FSIZE, &limit) == 0 ? work() : 99);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

TEST_F(PosixFiles, ALimitOnTheSizeOfFilesIsAnErrorAndNotASignal) {
  const FileId file = open("a");
  EXPECT_EQ(with_file_limit(4096,
                            [&] {
                              const Result<> reserved = backend_->allocate(file, 1 << 20);
                              if (reserved) return 1;
                              if (reserved.error().code != Code::no_space) return 2;
                              if (reserved.error().hint != "ulimit -f unlimited") return 3;
                              if (backend_->truncate(file, 1 << 20)) return 4;
                              return 0;
                            }),
            0);
}

TEST_F(PosixFiles, ALockIsTakenThoughItsHolderCannotBeWritten) {
  const FileId file = open("lock");
  EXPECT_EQ(with_file_limit(0, [&] { return backend_->lock(file) ? 0 : 1; }), 0);
}

TEST_F(PosixFiles, ASharedLockIsSeenByTheWriterAndEndsWithItsDescriptor) {
  constexpr std::uint64_t kFar = std::uint64_t{1} << 62;
  const FileId file = open("meta");
  EXPECT_FALSE(backend_->is_held(file, kFar + 7));
  const auto reader = [&] {
    return Descriptor(::open((directory_ / "meta").c_str(), O_RDONLY | O_CLOEXEC));
  };
  Descriptor one = reader();
  ASSERT_TRUE(lock_shared(one.get(), kFar + 7, 1));
  Descriptor all = reader();
  ASSERT_TRUE(lock_shared(all.get(), kFar, 0));
  reader().reset();  // another descriptor of this process: it ends nothing
  EXPECT_TRUE(backend_->is_held(file, kFar + 7));
  EXPECT_TRUE(backend_->is_held(file, 2 * kFar - 1));
  all.reset();
  EXPECT_TRUE(backend_->is_held(file, kFar + 7));
  EXPECT_FALSE(backend_->is_held(file, kFar + 8));
  one.reset();
  EXPECT_FALSE(backend_->is_held(file, kFar + 7));
}

}  // namespace
}  // namespace ebb::libswap
