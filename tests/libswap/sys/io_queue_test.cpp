#include "ebb/libswap/queue/io_queue.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <random>
#include <thread>
#include <vector>

#include "ebb/libswap/sys/aligned_buffer.h"
#include "ebb/libswap/sys/posix_backend.h"
#include "ebb/libswap/testing/fault_backend.h"
#include "ebb/libswap/testing/memory_backend.h"
#include "tests/libswap/sys/test_files.h"

namespace ebb::libswap {
namespace {

std::unique_ptr<IoBackend> backend_called(const std::string& name) {
  if (name == "memory") return make_memory_backend(MemoryDisk::create(1u << 30));
  return value_of(name == "threads" ? make_threads_backend(4) : make_uring_backend());
}

// Every backend under the same queue; files live in `root_`.
class EveryBackend : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (GetParam() == std::string("io_uring")) {
      const Result<std::unique_ptr<IoBackend>> made = make_uring_backend();
      if (!made) GTEST_SKIP() << made.error().message;
    }
    root_ = GetParam() == std::string("memory") ? fs::path("/") : directory_.path();
  }
  IoQueue& start(const IoQueue::Options& options = {}) {
    auto faulty = make_fault_backend(backend_called(GetParam()), plan_);
    queue_ = value_of(IoQueue::start(std::move(faulty), options));
    return *queue_;
  }
  FileId create(const char* name, Direct direct = Direct::off) {
    return value_of(queue_->backend().open(root_ / name, writable(direct)));
  }

  TemporaryDirectory directory_;
  fs::path root_;
  std::shared_ptr<FaultPlan> plan_ = std::make_shared<FaultPlan>();
  std::unique_ptr<IoQueue> queue_;
};

TEST_P(EveryBackend, ReadsBackWhatItWroteInChunks) {
  IoQueue::Options options;
  options.chunk_bytes = 64u << 10;
  IoQueue& queue = start(options);
  const FileId file = create("data");
  const std::vector<std::byte> written = random_bytes(1'000'003, 1);
  ASSERT_TRUE(succeeded(queue.write(file, 17, written)));
  ASSERT_TRUE(succeeded(queue.sync_data(file)));
  std::vector<std::byte> read(written.size());
  ASSERT_TRUE(succeeded(queue.read(file, 17, read)));
  EXPECT_EQ(read, written);
  const IoStats stats = queue.stats();
  EXPECT_EQ(stats.written_bytes, written.size());
  EXPECT_EQ(stats.read_bytes, written.size());
  EXPECT_EQ(stats.syncs, 1u);
  EXPECT_EQ(stats.operations, 2u * 16u + 1u);
}

TEST_P(EveryBackend, MovesDirectTransfersFromAlignedBuffers) {
  IoQueue& queue = start();
  const FileId file = create("direct", Direct::preferred);
  AlignedBuffer out = value_of(AlignedBuffer::allocate(3u << 20));
  AlignedBuffer in = value_of(AlignedBuffer::allocate(3u << 20));
  const std::vector<std::byte> bytes = random_bytes(out.size(), 5);
  std::copy(bytes.begin(), bytes.end(), out.bytes().begin());
  ASSERT_TRUE(succeeded(queue.backend().allocate(file, out.size())));
  ASSERT_TRUE(succeeded(queue.write(file, 0, out.bytes())));
  ASSERT_TRUE(succeeded(queue.read(file, 0, in.bytes())));
  EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), in.bytes().begin()));
}

TEST_P(EveryBackend, AReadBeyondTheEndNamesFileOffsetAndLength) {
  IoQueue& queue = start();
  const FileId file = create("short");
  ASSERT_TRUE(succeeded(queue.write(file, 0, random_bytes(5000, 2))));
  std::vector<std::byte> read(3000);
  const Result<> result = queue.read(file, 4096, read);
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code, Code::incomplete);
  EXPECT_EQ(result.error().message, "cannot read 3000 bytes at " + (root_ / "short").string() +
                                        ":4096: the file ends at 5000");
}

TEST_P(EveryBackend, ADirectReadBeyondAnUnevenEndFailsAtOnce) {
  IoQueue& queue = start();
  const FileId file = create("uneven", Direct::preferred);
  ASSERT_TRUE(succeeded(queue.backend().truncate(file, 10'000)));
  AlignedBuffer buffer = value_of(AlignedBuffer::allocate(12'288));
  const Result<> result = queue.read(file, 0, buffer.bytes());
  ASSERT_FALSE(result);
  EXPECT_NE(result.error().message.find("the file ends at 10000"), std::string::npos);
}

TEST_P(EveryBackend, AFileThatIsNotOpenIsAnError) {
  IoQueue& queue = start();
  std::vector<std::byte> bytes(10);
  const Result<> result = queue.read(FileId{77}, 0, bytes);
  ASSERT_FALSE(result);
  EXPECT_NE(result.error().message.find("file #77"), std::string::npos);
}

TEST_P(EveryBackend, FinishesShortReadsAndWrites) {
  IoQueue& queue = start();
  const FileId file = create("short");
  plan_->add({FaultOn::data, 0, 2, FaultKind::short_transfer, 0, ""});
  plan_->add({FaultOn::data, 4, 1, FaultKind::short_transfer, 0, ""});
  const std::vector<std::byte> written = random_bytes(1u << 20, 6);
  ASSERT_TRUE(succeeded(queue.write(file, 0, written)));
  std::vector<std::byte> read(written.size());
  plan_->add({FaultOn::read, 0, 3, FaultKind::short_transfer, 0, ""});
  ASSERT_TRUE(succeeded(queue.read(file, 0, read)));
  EXPECT_EQ(read, written);
  EXPECT_EQ(queue.stats().written_bytes, written.size());
  EXPECT_EQ(queue.stats().read_bytes, written.size());
  EXPECT_GE(queue.stats().short_transfers, 5u);
}

TEST_P(EveryBackend, ShowsWhatTheDiskRefused) {
  IoQueue& queue = start();
  const FileId file = create("refused");
  const std::vector<std::byte> bytes = random_bytes(4096, 7);
  plan_->add({FaultOn::write, 0, 1, FaultKind::fail, ENOSPC, ""});
  plan_->add({FaultOn::read, 0, 1, FaultKind::fail, EIO, ""});
  const Result<> full = queue.write(file, 8192, bytes);
  ASSERT_FALSE(full);
  EXPECT_EQ(full.error().code, Code::no_space);
  EXPECT_EQ(full.error().message, "cannot write 4096 bytes at " + (root_ / "refused").string() +
                                      ":8192: No space left on device (ENOSPC)");
  ASSERT_TRUE(succeeded(queue.write(file, 8192, bytes))) << "the next write goes through";
  std::vector<std::byte> read(4096);
  const Result<> broken = queue.read(file, 8192, read);
  ASSERT_FALSE(broken);
  EXPECT_EQ(broken.error().code, Code::io);
  EXPECT_EQ(broken.error().message, "cannot read 4096 bytes at " + (root_ / "refused").string() +
                                        ":8192: Input/output error (EIO)");
}

TEST_P(EveryBackend, AnswersEveryRequestBeforeItIsGone) {
  IoQueue& queue = start();
  const FileId file = create("drain");
  std::vector<std::byte> data = random_bytes(64u << 10, 3);
  std::atomic<int> answered = 0;
  for (std::uint64_t i = 0; i < 300; ++i) {
    queue.submit({RawOp::Kind::write, file, i * data.size(), data, Priority::background,
                  [&](Result<> result) { answered += result ? 1 : 0; }});
  }
  queue_.reset();
  EXPECT_EQ(answered, 300);
}

TEST_P(EveryBackend, ACallbackMaySubmitTheNextRequest) {
  IoQueue& queue = start();
  const FileId file = create("chain");
  std::vector<std::byte> data = random_bytes(4096, 4);
  std::atomic<int> links = 0;
  std::function<void(Result<>)> link = [&](Result<>) {
    if (++links < 50) {
      queue.submit({RawOp::Kind::write, file, 0, data, Priority::step, link});
    }
  };
  queue.submit({RawOp::Kind::write, file, 0, data, Priority::step, link});
  queue_.reset();
  EXPECT_EQ(links, 50);
}

TEST_P(EveryBackend, ServesManyThreadsAtOnce) {
  IoQueue::Options options;
  options.chunk_bytes = 16u << 10;
  IoQueue& queue = start(options);
  const FileId file = create("threads");
  std::vector<std::thread> threads;
  std::atomic<int> right = 0;
  for (std::uint64_t thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      const Priority priority = thread % 2 == 0 ? Priority::step : Priority::background;
      for (std::uint64_t round = 0; round < 10; ++round) {
        const std::vector<std::byte> out = random_bytes(100'000, thread * 100 + round);
        std::vector<std::byte> in(out.size());
        const std::uint64_t at = thread * 1'000'000;
        if (!queue.write(file, at, out, priority)) continue;
        if (queue.read(file, at, in, priority) && in == out) ++right;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right, 40);
}

INSTANTIATE_TEST_SUITE_P(IoQueue, EveryBackend, testing::Values("io_uring", "threads", "memory"),
                         [](const auto& which) { return std::string(which.param); });

// The same random requests, faults included, through one backend; everything that was read.
std::vector<std::byte> random_mix(const std::string& name, std::uint64_t seed) {
  const TemporaryDirectory directory;
  auto plan = std::make_shared<FaultPlan>();
  plan->add({FaultOn::data, 5, 20, FaultKind::short_transfer, 0, ""});
  IoQueue::Options options;
  options.chunk_bytes = 32u << 10;
  auto queue = value_of(IoQueue::start(make_fault_backend(backend_called(name), plan), options));
  const fs::path path = name == "memory" ? fs::path("/mix") : directory / "mix";
  const FileId file = value_of(queue->backend().open(path, writable()));
  std::mt19937_64 random(seed);
  std::vector<std::byte> seen;
  for (int i = 0; i < 60; ++i) {
    const std::uint64_t offset = random() % 300'000;
    const std::vector<std::byte> out = random_bytes(1 + random() % 200'000, random());
    if (random() % 2 == 0) {
      EXPECT_TRUE(succeeded(queue->write(file, offset, out)));
      continue;
    }
    std::vector<std::byte> in(out.size());
    // Beyond the end all of them fail alike.
    const bool whole = queue->read(file, offset, in).has_value();
    seen.push_back(whole ? std::byte{1} : std::byte{0});
    if (whole) seen.insert(seen.end(), in.begin(), in.end());
  }
  return seen;
}

TEST(IoQueue, EveryBackendGivesTheSameBytesForRandomRequests) {
  const bool uring = make_uring_backend().has_value();
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    const std::vector<std::byte> memory = random_mix("memory", seed);
    ASSERT_GT(memory.size(), 100'000u);
    EXPECT_EQ(random_mix("threads", seed), memory);
    if (uring) {
      EXPECT_EQ(random_mix("io_uring", seed), memory);
    }
  }
}

TEST(IoQueue, RefusesOptionsThatNoDiskCouldServe) {
  for (const std::uint32_t chunk : {0u, 100u, 5000u, 32u << 20}) {
    IoQueue::Options options;
    options.chunk_bytes = chunk;
    const auto queue = IoQueue::start(make_memory_backend(MemoryDisk::create(1)), options);
    ASSERT_FALSE(queue) << chunk;
    EXPECT_EQ(queue.error().code, Code::usage);
  }
}

std::uint64_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  std::uint64_t total = 0;
  std::uint64_t resident = 0;
  statm >> total >> resident;
  return resident * 4096;
}

TEST(IoQueue, AForkDuringIoCopiesNoBuffersAndTheChildIsToldToKeepOut) {
  const TemporaryDirectory directory;
  ChosenBackend chosen = value_of(open_backend(BackendChoice::automatic));
  auto queue = value_of(IoQueue::start(std::move(chosen.backend), {}));
  const FileId file =
      value_of(queue->backend().open(directory / "fork", writable(Direct::preferred)));
  AlignedBuffer buffer = value_of(AlignedBuffer::allocate(256u << 20));
  std::fill(buffer.bytes().begin(), buffer.bytes().end(), std::byte{7});
  std::atomic<int> failed = 0;
  queue->submit({RawOp::Kind::write, file, 0, buffer.bytes().first(64u << 20), Priority::step,
                 [&](Result<> result) { failed += result ? 0 : 1; }});
  const std::uint64_t resident = resident_bytes();
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    std::byte byte{};
    const Result<> refused = queue->read(file, 0, {&byte, 1});
    const bool told = !refused && refused.error().code == Code::state;
    const bool small = resident_bytes() + (200u << 20) < resident;
    queue.reset();  // neither waits nor touches the parent's ring
    buffer = AlignedBuffer();
    ::_exit(told && small ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  queue.reset();
  EXPECT_EQ(failed, 0);
}

}  // namespace
}  // namespace ebb::libswap
