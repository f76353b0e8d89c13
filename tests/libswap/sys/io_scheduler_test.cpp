#include "ebb/libswap/queue/io_scheduler.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <optional>

#include "ebb/libswap/testing/backend_below.h"
#include "ebb/libswap/testing/memory_backend.h"
#include "tests/libswap/sys/test_files.h"

namespace ebb::libswap {
namespace {

constexpr std::uint64_t kKiB = 1024;

// A scheduler whose operations the test answers itself.
class Scheduler : public testing::Test {
 protected:
  Scheduler() {
    buffered_ = value_of(backend_->open("/f", writable()));
    direct_ = value_of(backend_->open("/d", writable(Direct::preferred)));
    for (const FileId file : {buffered_, direct_}) {
      EXPECT_TRUE(backend_->truncate(file, 64 * kKiB * kKiB));
    }
    options_.chunk_bytes = 64 * kKiB;
  }
  void start() { scheduler_.emplace(*backend_, options_); }

  IoRequest request(RawOp::Kind kind, std::uint64_t offset, std::uint64_t bytes,
                    Priority priority = Priority::step) {
    return {kind,     buffered_,
            offset,   std::span(data_).first(bytes),
            priority, [this](Result<> result) { answers_.push_back(std::move(result)); }};
  }
  std::vector<RawOp> next() { return scheduler_->next_operations(); }
  void complete(const RawOp& op, std::int32_t result) {
    scheduler_->complete({op.tag, result});
    scheduler_->answer_finished();
  }
  void complete_whole(const RawOp& op) { complete(op, static_cast<std::int32_t>(op.size)); }

  std::unique_ptr<IoBackend> backend_ = make_memory_backend(MemoryDisk::create(1u << 30));
  FileId buffered_{};
  FileId direct_{};
  IoQueue::Options options_;
  std::optional<IoScheduler> scheduler_;
  std::vector<std::byte> data_ = std::vector<std::byte>(4096 * kKiB);
  std::vector<Result<>> answers_;
};

TEST_F(Scheduler, AnswersOnceWhenEveryChunkCameBackWhole) {
  start();
  scheduler_->add(request(RawOp::Kind::read, 100, 150 * kKiB));
  const std::vector<RawOp> ops = next();
  ASSERT_EQ(ops.size(), 3u);
  EXPECT_EQ(ops[0].offset, 100u);
  EXPECT_EQ(ops[2].offset, 100 + 128 * kKiB);
  EXPECT_EQ(ops[2].size, 22 * kKiB);
  EXPECT_EQ(ops[1].data, data_.data() + 64 * kKiB);
  for (const std::size_t i : {2u, 0u}) complete_whole(ops[i]);
  EXPECT_TRUE(answers_.empty());
  complete_whole(ops[1]);
  ASSERT_EQ(answers_.size(), 1u);
  EXPECT_TRUE(answers_[0]);
  EXPECT_EQ(scheduler_->stats().read_bytes, 150 * kKiB);
  EXPECT_TRUE(scheduler_->idle());
}

TEST_F(Scheduler, SendsTheRestOfAShortTransferAgain) {
  start();
  scheduler_->add(request(RawOp::Kind::write, 0, 64 * kKiB));
  complete(next().at(0), 1000);
  const std::vector<RawOp> rest = next();
  ASSERT_EQ(rest.size(), 1u);
  EXPECT_EQ(rest[0].offset, 1000u);
  EXPECT_EQ(rest[0].size, 64 * kKiB - 1000);
  EXPECT_EQ(rest[0].data, data_.data() + 1000);
  complete_whole(rest[0]);
  ASSERT_EQ(answers_.size(), 1u);
  EXPECT_TRUE(answers_[0]);
  EXPECT_EQ(scheduler_->stats().written_bytes, 64 * kKiB);
  EXPECT_EQ(scheduler_->stats().short_transfers, 1u);
}

TEST_F(Scheduler, ResumesADirectTransferAtTheLastAlignedByte) {
  start();
  IoRequest asked = request(RawOp::Kind::read, 0, 64 * kKiB);
  asked.file = direct_;
  scheduler_->add(std::move(asked));
  complete(next().at(0), 4096 * 3 + 512);
  const std::vector<RawOp> rest = next();
  ASSERT_EQ(rest.size(), 1u);
  EXPECT_EQ(rest[0].offset, 4096u * 3);
  EXPECT_EQ(rest[0].size, 64 * kKiB - 4096 * 3);
  complete_whole(rest[0]);
  EXPECT_EQ(scheduler_->stats().read_bytes, 64 * kKiB);
}

TEST_F(Scheduler, AReadThatGivesNothingSaysWhereTheFileEnds) {
  start();
  ASSERT_TRUE(backend_->truncate(buffered_, 500));
  scheduler_->add(request(RawOp::Kind::read, 500, 10));
  complete(next().at(0), 0);
  ASSERT_EQ(answers_.size(), 1u);
  ASSERT_FALSE(answers_[0]);
  EXPECT_EQ(answers_[0].error().message, "cannot read 10 bytes at /f:500: the file ends at 500");
  EXPECT_EQ(answers_[0].error().code, Code::incomplete);
}

TEST_F(Scheduler, AWriteThatMovesNothingGivesUpAfterManyTries) {
  start();
  scheduler_->add(request(RawOp::Kind::write, 0, 4096));
  int tries = 0;
  while (answers_.empty()) {
    const std::vector<RawOp> ops = next();
    ASSERT_EQ(ops.size(), 1u);
    complete(ops[0], 0);
    ASSERT_LE(++tries, 1000);
  }
  EXPECT_FALSE(answers_[0]);
}

TEST_F(Scheduler, RepeatsInterruptedOperationsButNotForEver) {
  start();
  scheduler_->add(request(RawOp::Kind::read, 0, 4096));
  complete(next().at(0), -EINTR);
  EXPECT_FALSE(scheduler_->take_pause());
  complete(next().at(0), -EAGAIN);
  EXPECT_TRUE(scheduler_->take_pause()) << "asked again at once, a busy device stays busy";
  EXPECT_FALSE(scheduler_->take_pause());
  complete_whole(next().at(0));
  ASSERT_EQ(answers_.size(), 1u);
  EXPECT_TRUE(answers_[0]);
  EXPECT_EQ(scheduler_->stats().retries, 2u);

  scheduler_->add(request(RawOp::Kind::read, 0, 4096));
  for (int i = 0; i < 1000 && answers_.size() == 1; ++i) complete(next().at(0), -EAGAIN);
  ASSERT_EQ(answers_.size(), 2u);
  EXPECT_NE(answers_[1].error().message.find("EAGAIN"), std::string::npos);
}

TEST_F(Scheduler, AnErrorStopsFurtherChunksAndWaitsForThoseInFlight) {
  options_.write_bytes_in_flight = 128 * kKiB;
  start();
  scheduler_->add(request(RawOp::Kind::write, 8192, 1024 * kKiB));
  const std::vector<RawOp> ops = next();
  ASSERT_EQ(ops.size(), 2u);
  complete(ops[1], -ENOSPC);
  EXPECT_TRUE(answers_.empty()) << "the other chunk still uses the caller's buffer";
  EXPECT_TRUE(next().empty());
  complete_whole(ops[0]);
  ASSERT_EQ(answers_.size(), 1u);
  EXPECT_EQ(answers_[0].error().code, Code::no_space);
  EXPECT_EQ(answers_[0].error().message,
            "cannot write 65536 bytes at /f:73728: No space left on device (ENOSPC)");
  EXPECT_TRUE(scheduler_->idle());
}

TEST_F(Scheduler, MoreBytesThanAskedForIsAnErrorOfTheBackend) {
  start();
  scheduler_->add(request(RawOp::Kind::read, 0, 4096));
  complete(next().at(0), 4097);
  ASSERT_EQ(answers_.size(), 1u);
  EXPECT_NE(answers_[0].error().message.find("reports 4097 bytes"), std::string::npos);
}

TEST_F(Scheduler, AFailedSyncIsNeverRepeated) {
  start();
  scheduler_->add(request(RawOp::Kind::sync_data, 0, 0));
  complete(next().at(0), -EIO);
  ASSERT_EQ(answers_.size(), 1u);
  EXPECT_EQ(answers_[0].error().message, "cannot sync /f: Input/output error (EIO)");
  EXPECT_TRUE(next().empty());
}

TEST_F(Scheduler, MisalignedDirectTransfersAreExplained) {
  start();
  IoRequest asked = request(RawOp::Kind::read, 100, 4096);
  asked.file = direct_;
  scheduler_->add(std::move(asked));
  complete(next().at(0), -EINVAL);
  ASSERT_EQ(answers_.size(), 1u);
  EXPECT_NE(answers_[0].error().message.find("multiples of 4096"), std::string::npos);
}

TEST_F(Scheduler, KeepsEachDirectionsBytesInFlightBelowItsLimit) {
  options_.read_bytes_in_flight = 128 * kKiB;
  options_.write_bytes_in_flight = 10;  // less than a chunk: one at a time
  start();
  scheduler_->add(request(RawOp::Kind::read, 0, 1024 * kKiB));
  scheduler_->add(request(RawOp::Kind::write, 0, 1024 * kKiB));
  std::vector<RawOp> flying = next();
  std::uint64_t done = 0;
  while (!flying.empty()) {
    std::uint64_t reads = 0;
    std::uint64_t writes = 0;
    for (const RawOp& op : flying) (op.kind == RawOp::Kind::read ? reads : writes) += op.size;
    EXPECT_LE(reads, 128 * kKiB);
    EXPECT_LE(writes, 64 * kKiB);
    const RawOp first = flying.front();
    flying.erase(flying.begin());
    complete_whole(first);
    done += first.size;
    for (const RawOp& op : next()) flying.push_back(op);
  }
  EXPECT_EQ(done, 2 * 1024 * kKiB);
  EXPECT_EQ(answers_.size(), 2u);
}

TEST_F(Scheduler, BackgroundGetsItsShareWhileAStepRunsAndAllAfterwards) {
  options_.read_bytes_in_flight = 256 * kKiB;
  options_.background_share = 4;
  start();
  scheduler_->add(request(RawOp::Kind::read, 0, 4096 * kKiB, Priority::background));
  scheduler_->add(request(RawOp::Kind::read, 0, 4096 * kKiB, Priority::step));
  std::uint64_t background = 0;
  std::vector<RawOp> flying = next();
  // The step's request comes to its end first; the rest is the background's alone.
  while (answers_.empty()) {
    ASSERT_FALSE(flying.empty());
    const RawOp first = flying.front();
    flying.erase(flying.begin());
    complete_whole(first);
    for (const RawOp& op : next()) flying.push_back(op);
    background = scheduler_->stats().read_bytes - 4096 * kKiB;
  }
  EXPECT_LE(background, 4096 * kKiB / 4);
  EXPECT_GE(background, 4096 * kKiB / 8) << "the background must not starve either";
  std::uint64_t bytes = 0;
  for (const RawOp& op : flying) bytes += op.size;
  EXPECT_EQ(bytes, 256 * kKiB) << "all of the bytes in flight";
}

TEST_F(Scheduler, EmptyAndImpossibleRequestsAreAnsweredWithoutTheDisk) {
  start();
  scheduler_->add(request(RawOp::Kind::read, 0, 0));
  scheduler_->add(request(RawOp::Kind::read, ~std::uint64_t{0} - 5, 10));
  EXPECT_TRUE(next().empty());
  scheduler_->answer_finished();
  ASSERT_EQ(answers_.size(), 2u);
  EXPECT_TRUE(answers_[0]);
  ASSERT_FALSE(answers_[1]);
  EXPECT_EQ(answers_[1].error().code, Code::usage);
}

// One rank has asked for everything it wants at once, another one for a little behind it.
TEST_F(Scheduler, FilesTakeTurnsWhateverTheyAskForAtOnce) {
  options_.read_bytes_in_flight = 128 * kKiB;
  start();
  for (std::uint64_t i = 0; i < 4; ++i)
    scheduler_->add(request(RawOp::Kind::read, 256 * kKiB * i, 256 * kKiB));
  IoRequest other = request(RawOp::Kind::read, 0, 256 * kKiB);
  other.file = direct_;
  scheduler_->add(std::move(other));
  std::vector<FileId> order;
  for (std::vector<RawOp> ops = next(); !ops.empty(); ops = next())
    for (const RawOp& op : ops) {
      order.push_back(op.file);
      complete_whole(op);
    }
  ASSERT_EQ(order.size(), 20u);
  for (std::size_t i = 0; i < 8; ++i) EXPECT_EQ(order[i], i % 2 == 0 ? buffered_ : direct_) << i;
  EXPECT_EQ(answers_.size(), 5u);
}

// Says that its files lie on as many devices.
class ManyDevices : public BackendBelow {
 public:
  using BackendBelow::BackendBelow;
  Result<FileInfo> info(FileId file) override {
    EBB_TRY_ASSIGN(FileInfo info, BackendBelow::info(file));
    info.device = static_cast<std::uint64_t>(file);
    return info;
  }
};

TEST_F(Scheduler, ADeviceDoesNotWaitForASlowerOne) {
  options_.read_bytes_in_flight = 128 * kKiB;
  backend_ = std::make_unique<ManyDevices>(std::move(backend_));
  start();
  scheduler_->add(request(RawOp::Kind::read, 0, 1024 * kKiB));  // none of it comes back
  EXPECT_EQ(next().size(), 2u);
  IoRequest other = request(RawOp::Kind::read, 0, 256 * kKiB);
  other.file = direct_;
  scheduler_->add(std::move(other));
  for (int turns = 0; turns < 2; ++turns) {
    const std::vector<RawOp> ops = next();
    ASSERT_EQ(ops.size(), 2u);
    for (const RawOp& op : ops) {
      EXPECT_EQ(op.file, direct_);
      complete_whole(op);
    }
  }
  EXPECT_EQ(answers_.size(), 1u);
}

}  // namespace
}  // namespace ebb::libswap
