// Power fails before every durable operation of the publish protocol, and the disk keeps none, all
// or some of what was not synced.
#include <gtest/gtest.h>

#include "ebb/libswap/testing/fault_backend.h"
#include "ebb/libswap/write/write_checkpoint.h"
#include "tests/libswap/transfer/toy_format.h"

namespace ebb::libswap {
namespace {

using testing::Files;
using testing::MemoryCheckpoint;
using testing::Random;

struct Version {
  MemoryCheckpoint source;
  EmitPlan plan;
  Files files;
};

void make(Version& version, std::uint32_t world, Random& random) {
  version.source.add("a", DType::f32, {13, 7}, random);
  version.source.add("b", DType::bf16, {4, 3}, random);
  for (std::uint32_t t = 0; t < 2; ++t)
    version.source.add_chunk(t, formats::whole(version.source.tensor(t).shape), 0);
  const auto layout = Layout::make({.policy = Policy::rows, .mesh = {world, 1}}, {{13, 7}, {4, 3}});
  ASSERT_TRUE(layout);
  version.plan = testing::toy_plan(version.source.catalog(), *layout);
  version.plan.commit_files
      .pop_back();  // one in a subdirectory stays: each directory's sync counts
  version.files = testing::expected_files(version.plan, version.source);
}

Result<WriteReport> write(IoQueue& io, const Version& version) {
  return write_checkpoint(io, version.source, version.plan, "/out/ckpt",
                          {.overwrite = Overwrite::replace});
}

std::vector<PowerLoss> losses() {
  std::vector<PowerLoss> out = {{.unsynced = PowerLoss::Unsynced::lost},
                                {.unsynced = PowerLoss::Unsynced::kept}};
  for (std::uint64_t seed = 1; seed <= 8; ++seed)
    out.push_back({.unsynced = PowerLoss::Unsynced::drawn, .seed = seed});
  return out;
}

// What a user finds after the crash, once the next attempt has cleared up.
class PublishCrash : public ::testing::Test {
 protected:
  PublishCrash() {
    Random random(71);
    make(old_, 1, random);
    make(new_, 2, random);
    const auto queue = testing::queue_on(disk_);
    EXPECT_TRUE(queue->backend().make_directory("/out"));
    EXPECT_TRUE(queue->backend().sync_directory("/"));
  }

  void expect_whole(const std::shared_ptr<MemoryDisk>& disk, bool must_be_new) {
    const auto queue = testing::queue_on(disk);
    const auto cleared = remove_stale_temporaries(queue->backend(), "/out");
    ASSERT_TRUE(cleared) << cleared.error().message;
    const Files found = testing::files_below(*queue, "/out/ckpt");
    if (found == new_.files) {
      ++new_found_;
    } else {
      ++old_found_;
      ASSERT_FALSE(must_be_new) << "a checkpoint that was reported written is gone";
      ASSERT_EQ(found, before_);
    }
    const std::vector<std::string> wanted =
        found.empty() ? std::vector<std::string>{} : std::vector<std::string>{"ckpt"};
    ASSERT_EQ(*queue->backend().list("/out"), wanted) << "leftovers stay";
  }

  void sweep() {
    for (std::uint64_t at = 0;; ++at) {
      const auto disk = disk_->after({.unsynced = PowerLoss::Unsynced::kept});
      const auto faults = std::make_shared<FaultPlan>();
      faults->add({.on = FaultOn::durable, .at = at, .kind = FaultKind::die});
      Result<WriteReport> report = [&] {
        const auto queue =
            testing::queue_over(make_fault_backend(make_memory_backend(disk), faults));
        return write(*queue, new_);
      }();
      for (const PowerLoss& loss : losses()) {
        expect_whole(disk->after(loss), report.has_value());
        ASSERT_FALSE(HasFatalFailure()) << "crash before operation " << at;
      }
      if (!faults->died()) {
        EXPECT_TRUE(report);
        operations_ = at;
        return;
      }
    }
  }

  Version old_;
  Version new_;
  Files before_;  // what /out/ckpt holds before the write that crashes
  std::shared_ptr<MemoryDisk> disk_ = MemoryDisk::create(std::uint64_t{16} << 20);
  std::uint64_t operations_ = 0;
  int old_found_ = 0;
  int new_found_ = 0;
};

TEST_F(PublishCrash, ANewDestinationIsAbsentOrComplete) {
  sweep();
  EXPECT_GE(operations_, 29u);
  EXPECT_GT(old_found_, 100);
  EXPECT_GT(new_found_, 10);
}

TEST_F(PublishCrash, AReplacedDestinationIsOldOrNewAndComplete) {
  {
    const auto queue = testing::queue_on(disk_);
    ASSERT_TRUE(write(*queue, old_));
  }
  before_ = old_.files;
  sweep();
  EXPECT_GE(operations_, 29u);
  EXPECT_GT(old_found_, 100);
  EXPECT_GT(new_found_, 10);
}

TEST_F(PublishCrash, TheNextAttemptClearsUpByItself) {
  for (const std::uint64_t at : {5u, 15u, 25u}) {
    const auto disk = disk_->after({.unsynced = PowerLoss::Unsynced::kept});
    const auto faults = std::make_shared<FaultPlan>();
    faults->add({.on = FaultOn::durable, .at = at, .kind = FaultKind::die});
    {
      const auto queue = testing::queue_over(make_fault_backend(make_memory_backend(disk), faults));
      ASSERT_FALSE(write(*queue, new_));
    }
    const auto queue = testing::queue_on(disk);
    EXPECT_GT(queue->backend().list("/out")->size(), 0u);
    ASSERT_TRUE(write(*queue, new_));
    EXPECT_EQ(*queue->backend().list("/out"), std::vector<std::string>{"ckpt"});
    EXPECT_EQ(testing::files_below(*queue, "/out/ckpt"), new_.files);
  }
}

TEST_F(PublishCrash, AnAttemptThatIsAliveIsLeftAlone) {
  const auto mine = testing::queue_on(disk_);
  const auto other = testing::queue_on(disk_);
  {
    const auto attempt = Temporary::reserve(other->backend(), "/out/ckpt");
    ASSERT_TRUE(attempt);
    ASSERT_TRUE(other->backend().make_directory(attempt->fresh()));
    const auto refused = write(*mine, new_);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, Code::busy) << refused.error().message;
    EXPECT_TRUE(*mine->backend().exists(attempt->fresh()));
  }
  EXPECT_TRUE(write(*mine, new_));  // once that one has ended
}

// Trying a lock that is held takes a third of a second, which every conversion would pay.
TEST_F(PublishCrash, AnAttemptDoesNotTakeItselfForAnother) {
  const auto queue = testing::queue_on(disk_);
  const auto attempt = Temporary::reserve(queue->backend(), "/out/ckpt");
  ASSERT_TRUE(attempt);
  const auto others = attempts_alive(queue->backend(), "/out/ckpt", attempt->id());
  ASSERT_TRUE(others);
  EXPECT_TRUE(others->empty());
}

TEST_F(PublishCrash, OnlyNamesOfTheProtocolAreCleared) {
  const auto queue = testing::queue_on(disk_);
  const std::vector<std::string> kept = {".ckpt.ebb-new-123", ".ckpt.ebb-new-zzzzzzzzzzzzzzzz",
                                         "ckpt.ebb-new-0123456789abcdef"};
  for (const std::string& name : kept)
    ASSERT_TRUE(queue->backend().make_directory(fs::path("/out") / name));
  ASSERT_TRUE(queue->backend().make_directory("/out/.ckpt.ebb-new-0123456789abcdef"));
  const auto cleared = remove_stale_temporaries(queue->backend(), "/out");
  ASSERT_TRUE(cleared);
  EXPECT_EQ(cleared->removed, (std::vector<std::string>{".ckpt.ebb-new-0123456789abcdef",
                                                        ".ckpt.ebb-lock-0123456789abcdef"}));
  EXPECT_EQ(*queue->backend().list("/out"), kept);
}

}  // namespace
}  // namespace ebb::libswap
