#include "ebb/libswap/queue/disk_probe.h"

#include <gtest/gtest.h>
#include <linux/magic.h>
#include <sys/vfs.h>

#include <cstdlib>

#include "ebb/libswap/queue/probe_file.h"
#include "ebb/libswap/sys/posix_backend.h"
#include "ebb/libswap/testing/memory_backend.h"
#include "ebb/libswap/testing/paced_backend.h"
#include "tests/libswap/sys/test_files.h"

namespace ebb::libswap {
namespace {

TEST(DiskProbe, MovesTheSameBytesEachWayAndLeavesNothingBehind) {
  const TemporaryDirectory directory;
  auto chosen = value_of(open_backend(BackendChoice::automatic));
  auto queue = value_of(IoQueue::start(std::move(chosen.backend), {}));
  DiskProbe probe;
  probe.bytes = (8u << 20) + 4096;  // the last 4 KiB do not make an operation
  probe.operation_bytes = 1u << 20;
  const DiskLimit limit = value_of(measure_disk(*queue, directory.path(), probe));
  EXPECT_GT(limit.read, 0);
  EXPECT_GT(limit.write, 0);
  EXPECT_GT(limit.mixed, 0);
  const IoStats stats = queue->stats();
  EXPECT_EQ(stats.read_bytes, 2u * (8u << 20));
  EXPECT_EQ(stats.written_bytes, 4u * (8u << 20));
  EXPECT_TRUE(fs::is_empty(directory.path()));
}

TEST(DiskProbe, AFullDiskIsAnErrorAndLeavesNothingBehind) {
  auto queue = value_of(IoQueue::start(make_memory_backend(MemoryDisk::create(4u << 20)), {}));
  DiskProbe probe;
  probe.bytes = 4u << 20;
  const Result<DiskLimit> refused = measure_disk(*queue, "/", probe);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::no_space);
  EXPECT_TRUE(value_of(queue->backend().list("/")).empty());
}

// A stall takes 1 to 20 ms, an operation of that disk 4: here each is stalled.
TEST(DiskProbe, FindsAPacedDiskAsFastAsStallsLeaveIt) {
  const auto rate = [](double stalls_per_s) {
    auto disk = make_paced_backend(
        make_memory_backend(MemoryDisk::create(64u << 20)),
        {{.path_part = "paced", .bytes_per_s = 16e6, .stalls_per_s = stalls_per_s}});
    auto queue = value_of(IoQueue::start(std::move(disk), {}));
    EXPECT_TRUE(queue->backend().make_directory("/paced"));
    DiskProbe probe;
    probe.bytes = 1u << 20;
    probe.operation_bytes = 64u << 10;
    return value_of(measure_disk(*queue, "/paced", probe)).mixed;
  };
  EXPECT_LT(rate(0), 1.001 * 16e6);
  EXPECT_LT(rate(1e6), 0.5 * 16e6);
}

TEST(DiskProbe, SaysWhenTheDiskIsMemory) {
  struct statfs status{};
  const fs::path shared_memory = "/dev/shm";
  if (::statfs(shared_memory.c_str(), &status) != 0 || status.f_type != TMPFS_MAGIC) {
    GTEST_SKIP() << "no tmpfs at /dev/shm";
  }
  auto queue = value_of(IoQueue::start(value_of(make_threads_backend(2)), {}));
  DiskProbe probe;
  probe.bytes = 1u << 20;
  probe.operation_bytes = 64u << 10;
  EXPECT_TRUE(value_of(measure_disk(*queue, shared_memory, probe)).in_memory);
  const TemporaryDirectory directory;
  const bool in_memory = value_of(measure_disk(*queue, directory.path(), probe)).in_memory;
  ASSERT_EQ(::statfs(directory.path().c_str(), &status), 0);
  EXPECT_EQ(in_memory, status.f_type == TMPFS_MAGIC);
}

// A step writes as much as it reads: neither may run ahead and flatter the sum.
TEST(ProbeFile, ReadsAndWritesKeepPaceUntilTheTimeIsUp) {
  auto queue = value_of(IoQueue::start(make_memory_backend(MemoryDisk::create(8u << 20)), {}));
  const auto file =
      value_of(ProbeFile::make(*queue, "/", {.half_bytes = 1u << 20, .memory_bytes = 256u << 10}));
  const ProbeFile::Setting setting{.operation_bytes = 16u << 10, .depth = 4};
  const IoStats before = queue->stats();
  EXPECT_GT(value_of(file->measure(ProbeFile::Traffic::mixed, setting, 0.05)), 0);
  const IoStats after = queue->stats();
  const auto read = static_cast<std::int64_t>(after.read_bytes - before.read_bytes);
  const auto written = static_cast<std::int64_t>(after.written_bytes - before.written_bytes);
  EXPECT_GT(read, 1 << 20) << "it went over its half once and stopped";
  EXPECT_LE(std::abs(read - written), 2 * 4 * (16 << 10));
}

TEST(ProbeFile, StopsOnRequestAndLeavesNothingBehind) {
  const TemporaryDirectory directory;
  auto queue = value_of(IoQueue::start(value_of(make_threads_backend(2)), {}));
  std::atomic<bool> cancel = true;
  const auto file =
      ProbeFile::make(*queue, directory.path(),
                      {.half_bytes = 8u << 20, .memory_bytes = 1u << 20, .cancel = &cancel});
  ASSERT_FALSE(file);
  EXPECT_EQ(file.error().code, Code::cancelled);
  EXPECT_TRUE(fs::is_empty(directory.path()));
}

TEST(ProbeFile, TheFirstWritingStopsWhenItsTimeIsUp) {
  auto queue = value_of(IoQueue::start(make_memory_backend(MemoryDisk::create(64u << 20)), {}));
  const auto file = value_of(ProbeFile::make(
      *queue, "/", {.half_bytes = 16u << 20, .memory_bytes = 64u << 10, .most_seconds = 1e-6}));
  EXPECT_GT(file->half_bytes(), 0u);
  EXPECT_LT(file->half_bytes(), 16u << 20);
}

TEST(DiskProbe, RefusesImpossibleSettings) {
  auto queue = value_of(IoQueue::start(make_memory_backend(MemoryDisk::create(1u << 20)), {}));
  DiskProbe probe;
  probe.operation_bytes = 1000;
  EXPECT_FALSE(measure_disk(*queue, "/", probe));
  probe = {};
  probe.depth = 0;
  EXPECT_FALSE(measure_disk(*queue, "/", probe));
  probe = {};
  probe.bytes = 0;
  EXPECT_FALSE(measure_disk(*queue, "/", probe));
}

}  // namespace
}  // namespace ebb::libswap
