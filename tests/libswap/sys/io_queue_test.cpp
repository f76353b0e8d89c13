#include "libswap/sys/io_queue.h"

#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <vector>

#include "libswap/sys/aligned_buffer.h"
#include "libswap/sys/memory_backend.h"
#include "libswap/sys/posix_backend.h"
#include "tests/libswap/sys/temporary_directory.h"

namespace libswap {
namespace {

std::vector<std::byte> random_bytes(std::size_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

// Every backend under the same queue; files live in `root`.
struct Bench {
  TemporaryDirectory directory;
  fs::path root;
  std::unique_ptr<IoQueue> queue;

  FileId create(const char* name, Direct direct = Direct::off) {
    Result<FileId> file = queue->backend().open(
        root / name, {Access::read_write, Creation::create_or_open, direct, Visibility::owner});
    EXPECT_TRUE(file) << file.error().message;
    return *file;
  }
};

class EveryBackend : public testing::TestWithParam<const char*> {
 protected:
  std::unique_ptr<IoBackend> backend() {
    if (GetParam() == std::string("memory")) {
      bench_.root = "/";
      return make_memory_backend(MemoryDisk::create(1u << 30));
    }
    bench_.root = bench_.directory.path();
    Result<std::unique_ptr<IoBackend>> made = make_threads_backend(4);
    EXPECT_TRUE(made) << made.error().message;
    return *std::move(made);
  }
  Bench& start(const IoQueue::Options& options = {}) {
    Result<std::unique_ptr<IoQueue>> queue = IoQueue::start(backend(), options);
    EXPECT_TRUE(queue) << queue.error().message;
    bench_.queue = *std::move(queue);
    return bench_;
  }
  Bench bench_;
};

TEST_P(EveryBackend, ReadsBackWhatItWroteInChunks) {
  IoQueue::Options options;
  options.chunk_bytes = 64u << 10;
  Bench& bench = start(options);
  const FileId file = bench.create("data");
  const std::vector<std::byte> written = random_bytes(1'000'003, 1);
  ASSERT_TRUE(bench.queue->write(file, 17, written));
  std::vector<std::byte> read(written.size());
  ASSERT_TRUE(bench.queue->read(file, 17, read));
  EXPECT_EQ(read, written);
  const IoStats stats = bench.queue->stats();
  EXPECT_EQ(stats.written_bytes, written.size());
  EXPECT_EQ(stats.read_bytes, written.size());
  EXPECT_GE(stats.operations, 2u * 16u);
}

TEST_P(EveryBackend, AReadBeyondTheEndNamesFileOffsetAndLength) {
  Bench& bench = start();
  const FileId file = bench.create("short");
  ASSERT_TRUE(bench.queue->write(file, 0, random_bytes(5000, 2)));
  std::vector<std::byte> read(3000);
  const Result<> result = bench.queue->read(file, 4096, read);
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code, formats::Code::incomplete);
  EXPECT_EQ(result.error().message, "cannot read 3000 bytes at " + (bench.root / "short").string() +
                                        ":4096: the file ends at 5000");
}

TEST_P(EveryBackend, AnswersEveryRequestBeforeItIsGone) {
  Bench& bench = start();
  const FileId file = bench.create("drain");
  std::vector<std::byte> data = random_bytes(256u << 10, 3);
  std::atomic<int> answered = 0;
  for (std::uint64_t i = 0; i < 100; ++i) {
    bench.queue->submit({RawOp::Kind::write, file, i * data.size(), data, Priority::background,
                         [&](Result<> result) { answered += result ? 1 : 0; }});
  }
  bench.queue.reset();
  EXPECT_EQ(answered, 100);
}

INSTANTIATE_TEST_SUITE_P(IoQueue, EveryBackend, testing::Values("threads", "memory"),
                         [](const auto& which) { return std::string(which.param); });

}  // namespace
}  // namespace libswap
