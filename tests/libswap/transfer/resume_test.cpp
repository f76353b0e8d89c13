// What is interrupted is gone on with by the same call: after a crash at any step, after a
// cancellation, with a journal that is cut or damaged - and never with anything else.
#include <gtest/gtest.h>

#include "ebb/libswap/read/digest.h"
#include "ebb/libswap/write/plan_check.h"
#include "tests/libswap/transfer/interrupted.h"

namespace ebb::libswap {
namespace {

using testing::Files;

class Resume : public testing::Interrupted {
 protected:
  Resume() : Interrupted(2, 81, std::uint64_t{16} << 20) {
    source_.add("a", DType::f32, {13, 7}, random_);
    source_.add("b", DType::bf16, {4, 3}, random_);
    source_.add("c", DType::f32, {50}, random_);
    for (std::uint32_t t = 0; t < 3; ++t)
      source_.add_chunk(t, formats::whole(source_.tensor(t).shape), 0);
    plan_ = testing::toy_plan(source_.catalog(),
                              testing::layout_of(Policy::rows, 2, source_.catalog()));
    testing::add_blocks(plan_);
    wanted_ = testing::expected_files(plan_, source_);
  }

  std::vector<std::string> beside() { return *queue_->backend().list("/out"); }
  void expect_result(IoQueue& io, const Result<WriteReport>& report) override {
    ASSERT_TRUE(report) << report.error().message;
    ASSERT_EQ(testing::files_below(io, "/out/ckpt"), wanted_);
    ASSERT_EQ(*io.backend().list("/out"), std::vector<std::string>{"ckpt"});
    for (std::uint32_t t = 0; t < 3; ++t)
      ASSERT_EQ(report->fingerprints[t], *fingerprint_of(source_, source_.tensor(t)));
  }
  fs::path journal() {
    for (const std::string& name : beside())
      if (name.find(".ebb-journal-") != std::string::npos) return fs::path("/out") / name;
    return {};
  }

  Files wanted_;
};

TEST_F(Resume, GoesOnAfterACrashBeforeAnyOperationWhateverTheDiskKept) {
  std::uint64_t gone_on = 0;
  crash_everywhere(6, gone_on);
  EXPECT_GT(gone_on, 50u);
}

TEST_F(Resume, ReadsAndWritesOnlyWhatIsMissing) {
  interrupt(bytes_of_all() * 2 / 3);
  EXPECT_EQ(beside().size(), 3u);  // directory, journal, lock
  const std::uint64_t before = source_.bytes_read();
  std::uint64_t first = 0;
  WriteOptions again = options();
  again.progress = [&](const WriteProgress& now) {
    if (first == 0) first = now.bytes_done;
    EXPECT_EQ(now.bytes_found, first);
  };
  const auto report = write(again);
  expect_result(*queue_, report);
  EXPECT_GE(report->bytes_found, bytes_of_all() / 2);
  EXPECT_EQ(report->bytes_found, first);
  // The checks of this test read the content once; the rest is what was gathered.
  EXPECT_LT(source_.bytes_read() - before, bytes_of_all() + bytes_of_all() / 2);
}

TEST_F(Resume, MayBeInterruptedAgainAndAgain) {
  std::uint64_t at = 0;
  for (int round = 0; round < 3; ++round) interrupt(at += bytes_of_all() / 5);
  EXPECT_EQ(beside().size(), 3u);
  const auto report = write(options());
  expect_result(*queue_, report);
  EXPECT_GT(report->bytes_found, 0u);
}

TEST_F(Resume, StartsFromNothingWhereSourceOrPlanAreOthers) {
  for (const int what : {0, 1, 2, 3}) {
    interrupt(bytes_of_all() / 2);
    WriteOptions other = options();
    other.overwrite = Overwrite::replace;
    if (what == 0) other.source_identity = "another source";
    if (what == 1) other.source_identity.clear();
    if (what == 2) other.segment_bytes = 2 * kSegment;
    if (what == 3) {
      plan_.commit_files[0] = testing::literal_file("meta/index", "other");
      wanted_ = testing::expected_files(plan_, source_);
    }
    const auto report = write(other);
    expect_result(*queue_, report);
    ASSERT_FALSE(HasFatalFailure()) << what;
    EXPECT_EQ(report->bytes_found, 0u);
    ASSERT_TRUE(remove_tree(queue_->backend(), "/out/ckpt"));
  }
}

TEST_F(Resume, LeavesWhatBelongsToOtherDestinationsAlone) {
  interrupt(bytes_of_all() / 2);
  const std::vector<std::string> left = beside();
  const auto other = write_checkpoint(*queue_, source_, plan_, "/out/other", options());
  ASSERT_TRUE(other) << other.error().message;
  EXPECT_EQ(other->bytes_found, 0u);
  std::vector<std::string> now = beside();
  std::erase(now, "other");
  EXPECT_EQ(now, left);
  ASSERT_TRUE(remove_tree(queue_->backend(), "/out/other"));
  expect_result(*queue_, write(options()));
}

TEST_F(Resume, LeavesAnAttemptThatIsAliveAlone) {
  interrupt(bytes_of_all() / 2);
  const auto other = testing::queue_on(disk_);
  const std::string name = journal().filename().string();
  const auto alive = Temporary::adopt(other->backend(), "/out/ckpt", name.substr(name.size() - 16));
  ASSERT_TRUE(alive && *alive);
  const auto report = write(options());
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code, Code::busy) << report.error().message;
  EXPECT_TRUE(*queue_->backend().exists((*alive)->fresh()));
}

TEST_F(Resume, IsRightWhateverBecameOfTheJournal) {
  interrupt(bytes_of_all() / 2);
  const auto interrupted = disk_->after({.unsynced = PowerLoss::Unsynced::kept});
  const fs::path path = journal();
  const FileId file = *queue_->backend().open(path, {});
  const std::uint64_t size = queue_->backend().info(file)->size;
  for (std::uint64_t at = 0; at < size; at += 3)
    for (const bool cut : {true, false}) {
      const auto queue = testing::queue_on(interrupted->after({}));
      const FileId damaged = *queue->backend().open(path, {.access = Access::read_write});
      if (cut) {
        ASSERT_TRUE(queue->backend().truncate(damaged, at));
      } else {
        std::byte byte{};
        ASSERT_TRUE(queue->read(damaged, at, {&byte, 1}));
        byte ^= std::byte{0x10};
        ASSERT_TRUE(queue->write(damaged, at, {&byte, 1}));
      }
      ASSERT_TRUE(queue->backend().close(damaged));
      expect_result(*queue, write(*queue, options()));
      ASSERT_FALSE(HasFatalFailure()) << (cut ? "cut at " : "changed at ") << at;
    }
}

TEST_F(Resume, StartsFromNothingWhereAFileIsGone) {
  interrupt(bytes_of_all() * 2 / 3);
  std::string fresh;
  for (const std::string& name : beside())
    if (name.find(".ebb-new-") != std::string::npos) fresh = name;
  ASSERT_TRUE(queue_->backend().remove(fs::path("/out") / fresh / "data/rank0.bin"));
  const auto report = write(options());
  expect_result(*queue_, report);
  EXPECT_EQ(report->bytes_found, 0u);
}

TEST_F(Resume, AnErrorThatIsNoInterruptionLeavesNothing) {
  source_.fail_on_read(5);
  const auto report = write(options());
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().message, "shard.bin:77: checksum does not match");
  EXPECT_TRUE(beside().empty());
}

TEST_F(Resume, ShortWorkLeavesNoJournal) {
  WriteOptions calm = options();
  calm.journal_interval = std::chrono::hours(1);
  calm.progress = [&](const WriteProgress&) {
    for (const std::string& name : beside())
      EXPECT_EQ(name.find(".ebb-journal-"), std::string::npos);
  };
  expect_result(*queue_, write(calm));
}

}  // namespace
}  // namespace ebb::libswap
