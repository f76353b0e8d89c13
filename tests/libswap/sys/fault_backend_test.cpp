#include "ebb/libswap/testing/fault_backend.h"

#include <gtest/gtest.h>

#include <cerrno>

#include "ebb/libswap/queue/io_queue.h"
#include "ebb/libswap/testing/memory_backend.h"
#include "tests/libswap/sys/test_files.h"

namespace ebb::libswap {
namespace {

class Faults : public testing::Test {
 protected:
  Faults() {
    file_ = value_of(names().open("/a", writable()));
    EXPECT_TRUE(succeeded(queue_->write(file_, 0, std::vector<std::byte>(32'768, std::byte{1}))));
  }
  IoBackend& names() { return queue_->backend(); }
  std::vector<std::byte> content() {
    auto clean = value_of(IoQueue::start(make_memory_backend(disk_), {}));
    const FileId file = value_of(clean->backend().open("/a", {}));
    std::vector<std::byte> bytes(value_of(clean->backend().info(file)).size);
    EXPECT_TRUE(succeeded(clean->read(file, 0, bytes)));
    return bytes;
  }

  std::shared_ptr<MemoryDisk> disk_ = MemoryDisk::create(1u << 24);
  std::shared_ptr<FaultPlan> plan_ = std::make_shared<FaultPlan>();
  std::unique_ptr<IoQueue> queue_ =
      value_of(IoQueue::start(make_fault_backend(make_memory_backend(disk_), plan_), {}));
  FileId file_{};
};

TEST_F(Faults, CountsWhatASweepHasToEnumerate) {
  EXPECT_EQ(plan_->durable_operations(), 2u);  // open, write
  EXPECT_EQ(plan_->data_operations(), 1u);
  ASSERT_TRUE(queue_->sync_data(file_));
  ASSERT_TRUE(names().sync(file_));
  ASSERT_TRUE(names().rename("/a", "/b"));
  std::vector<std::byte> bytes(10);
  ASSERT_TRUE(queue_->read(file_, 0, bytes));
  EXPECT_EQ(plan_->durable_operations(), 5u);
  EXPECT_EQ(plan_->data_operations(), 3u);
}

TEST_F(Faults, FailTheChosenOperationOnly) {
  plan_->add({FaultOn::name, 1, 1, FaultKind::fail, ENOSPC, ""});
  ASSERT_TRUE(names().make_directory("/d"));
  const Result<> refused = names().rename("/a", "/b");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().message, "cannot rename /a to /b: No space left on device (ENOSPC)");
  ASSERT_TRUE(names().rename("/a", "/b"));
}

TEST_F(Faults, CountOnlyThePathsAskedFor) {
  const FileId other = value_of(names().open("/manifest", writable()));
  plan_->add({FaultOn::sync, 0, FaultPlan::kForEver, FaultKind::fail, EIO, "manifest"});
  EXPECT_TRUE(queue_->sync_data(file_));
  EXPECT_FALSE(queue_->sync_data(other));
  EXPECT_FALSE(names().sync(other));
  plan_->clear();
  EXPECT_TRUE(names().sync(other));
}

TEST_F(Faults, ATornWriteReportsSuccessAndLosesItsSecondHalf) {
  plan_->add({FaultOn::write, 0, 1, FaultKind::torn, 0, ""});
  ASSERT_TRUE(queue_->write(file_, 0, std::vector<std::byte>(16'384, std::byte{2})));
  const std::vector<std::byte> bytes = content();
  EXPECT_EQ(bytes[8191], std::byte{2});
  EXPECT_EQ(bytes[8192], std::byte{1});
  plan_->add({FaultOn::write, 0, 1, FaultKind::torn, 0, ""});
  ASSERT_TRUE(queue_->write(file_, 16'384, std::vector<std::byte>(4096, std::byte{3})));
  EXPECT_EQ(content()[16'384], std::byte{1}) << "a torn block is lost whole";
}

TEST_F(Faults, AMisdirectedWriteLandsBesideItsPlace) {
  plan_->add({FaultOn::write, 0, 1, FaultKind::misdirected, 0, ""});
  ASSERT_TRUE(queue_->write(file_, 8192, std::vector<std::byte>(8192, std::byte{2})));
  const std::vector<std::byte> bytes = content();
  EXPECT_EQ(bytes[8191], std::byte{2});
  EXPECT_EQ(bytes[8192], std::byte{1});
}

TEST_F(Faults, ATornReadLooksWholeButIsNot) {
  plan_->add({FaultOn::read, 0, 1, FaultKind::torn, 0, ""});
  std::vector<std::byte> bytes(16'384, std::byte{9});
  ASSERT_TRUE(queue_->read(file_, 0, bytes));
  EXPECT_EQ(bytes[8191], std::byte{1});
  EXPECT_EQ(bytes[8192], std::byte{0});
}

TEST_F(Faults, AStaleTransferChangesNothingAndLooksDone) {
  plan_->add({FaultOn::data, 0, 2, FaultKind::stale, 0, ""});
  ASSERT_TRUE(queue_->write(file_, 0, std::vector<std::byte>(4096, std::byte{2})));
  std::vector<std::byte> bytes(4096, std::byte{9});
  ASSERT_TRUE(queue_->read(file_, 0, bytes));
  EXPECT_EQ(bytes[0], std::byte{9}) << "the memory stays as it was";
  EXPECT_EQ(content()[0], std::byte{1}) << "the disk stays as it was";
}

TEST_F(Faults, WhoIsToDieIsSeenOnceBeforeItsOperationAndOutlivesClear) {
  int seen = 0;
  plan_->die_before(plan_->durable_operations() + 1, [&] { ++seen; });
  plan_->clear();
  ASSERT_TRUE(queue_->write(file_, 0, std::vector<std::byte>(4096, std::byte{2})));
  EXPECT_EQ(seen, 0);
  for (int again = 0; again < 2; ++again)
    ASSERT_FALSE(queue_->write(file_, 0, std::vector<std::byte>(4096, std::byte{3})));
  EXPECT_EQ(seen, 1);
  EXPECT_TRUE(plan_->died());
}

TEST_F(Faults, AfterDeathNothingReachesTheDisk) {
  plan_->add({FaultOn::durable, 1, 1, FaultKind::die, 0, ""});
  ASSERT_TRUE(names().make_directory("/d"));
  const Result<> last = queue_->write(file_, 0, std::vector<std::byte>(4096, std::byte{2}));
  ASSERT_FALSE(last);
  EXPECT_EQ(last.error().code, Code::cancelled);
  EXPECT_TRUE(plan_->died());
  plan_->clear();
  EXPECT_EQ(names().rename("/a", "/b").error().code, Code::cancelled);
  EXPECT_EQ(names().list("/").error().code, Code::cancelled);
  EXPECT_EQ(names().open("/a", {}).error().code, Code::cancelled);
  EXPECT_EQ(content()[0], std::byte{1});
}

}  // namespace
}  // namespace ebb::libswap
