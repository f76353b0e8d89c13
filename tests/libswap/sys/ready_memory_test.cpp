// Memory that is registered with io_uring: used while it is, never afterwards, and not needed.
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

#include "ebb/libswap/queue/disk_probe.h"
#include "ebb/libswap/queue/io_queue.h"
#include "ebb/libswap/sys/aligned_buffer.h"
#include "ebb/libswap/sys/posix_backend.h"
#include "tests/libswap/sys/test_files.h"

namespace ebb::libswap {
namespace {

constexpr std::uint64_t kUnit = 64u << 10;
constexpr std::uint64_t kBytes = 40 * kUnit;

class ReadyMemory : public testing::Test {
 protected:
  void SetUp() override {
    Result<std::unique_ptr<IoBackend>> made = make_uring_backend();
    if (!made) GTEST_SKIP() << made.error().message;
    queue_ = value_of(IoQueue::start(std::move(*made), {}));
    memory_ = value_of(AlignedBuffer::allocate(kBytes));
    file_ =
        value_of(queue_->backend().open(directory_.path() / "data", writable(Direct::preferred)));
    written_ = random_bytes(kBytes, 7);
    std::ranges::copy(written_, memory_.bytes().begin());
    ASSERT_TRUE(succeeded(queue_->write(file_, 0, memory_.bytes())));
    std::ranges::fill(memory_.bytes(), std::byte{0});
  }
  // Other pages at the same address, all zeros.
  void replace_pages() {
    ASSERT_EQ(::mmap(memory_.bytes().data(), kBytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0),
              memory_.bytes().data());
  }
  bool reads_what_was_written() {
    EXPECT_TRUE(succeeded(queue_->read(file_, 0, memory_.bytes())));
    return std::ranges::equal(memory_.bytes(), written_);
  }

  TemporaryDirectory directory_;
  std::unique_ptr<IoQueue> queue_;
  AlignedBuffer memory_;
  FileId file_{};
  std::vector<std::byte> written_;
};

// The kernel reads into the pages that were there when it was told of them.
TEST_F(ReadyMemory, IsLookedUpOnce) {
  ASSERT_TRUE(succeeded(queue_->register_buffers(memory_.bytes(), kUnit)));
  EXPECT_TRUE(reads_what_was_written());
  replace_pages();
  EXPECT_FALSE(reads_what_was_written()) << "the operation did not use what is registered";
}

TEST_F(ReadyMemory, IsForgottenWhenItIsLetGo) {
  for (int times = 0; times < 200; ++times) {  // more often than there are slices
    ASSERT_TRUE(succeeded(queue_->register_buffers(memory_.bytes(), kUnit)));
    queue_->unregister_buffers(memory_.bytes());
    replace_pages();
    ASSERT_TRUE(reads_what_was_written());
  }
}

TEST_F(ReadyMemory, ServesOperationsThatLieInItAndOthersGoTheUsualWay) {
  const auto part = memory_.bytes().subspan(2 * kUnit, 8 * kUnit);
  ASSERT_TRUE(succeeded(queue_->register_buffers(part, kUnit)));
  EXPECT_TRUE(reads_what_was_written());
  for (std::uint64_t first = 0; first + 3 * kUnit <= kBytes; first += kUnit) {
    const auto some = memory_.bytes().subspan(first, 3 * kUnit);
    std::ranges::fill(some, std::byte{0});
    ASSERT_TRUE(succeeded(queue_->read(file_, first, some)));
    ASSERT_TRUE(std::ranges::equal(some, std::span(written_).subspan(first, 3 * kUnit)));
  }
}

// A user without CAP_IPC_LOCK: what may not be locked is not registered, and works.
TEST_F(ReadyMemory, IsNotNeededAndTooLittleLockedMemoryIsOneLine) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_MEMLOCK, &before), 0);
  const rlimit little{.rlim_cur = 512u << 10, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_MEMLOCK, &little), 0);
  std::thread([this] {
    __user_cap_header_struct header{.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
    __user_cap_data_struct data[2]{};
    ASSERT_EQ(::syscall(SYS_capset, &header, data), 0);  // of this thread
    queue_.reset();
    Result<std::unique_ptr<IoBackend>> made = make_uring_backend();
    if (!made) return;  // not even the ring may be locked
    queue_ = value_of(IoQueue::start(std::move(*made), {}));
    file_ = value_of(queue_->backend().open(directory_.path() / "data", {.access = Access::read}));
    const Result<> kept = queue_->register_buffers(memory_.bytes(), kUnit);
    ASSERT_FALSE(kept);
    EXPECT_NE(kept.error().message.find("cannot register"), std::string::npos);
    EXPECT_TRUE(reads_what_was_written());
    const auto notes = value_of(io_notes(queue_->backend(), directory_.path()));
    EXPECT_EQ(std::ranges::count_if(notes,
                                    [](const std::string& note) {
                                      return note.starts_with("only 524288 bytes may be locked");
                                    }),
              1);
  }).join();
  ASSERT_EQ(::setrlimit(RLIMIT_MEMLOCK, &before), 0);
}

}  // namespace
}  // namespace ebb::libswap
