// Engines over every backend and under every restriction: what is chosen is said, the bits are the
// same.
#include <gtest/gtest.h>
#include <linux/magic.h>
#include <sys/prctl.h>
#include <sys/statfs.h>

#include <thread>

#include "ebb/libswap/queue/disk_probe.h"
#include "ebb/libswap/queue/io_queue.h"
#include "ebb/libswap/sys/posix_backend.h"
#include "ebb/libswap/testing/memory_backend.h"
#include "tests/libmuon/support/training.h"
#include "tests/libmuon/support/world.h"

namespace ebb::test::backends_tests {
namespace {

namespace fs = std::filesystem;
using libmuon::Communicator;
using libswap::MemoryDisk;

constexpr std::uint64_t kLittle = 4 * 4096;
constexpr std::uint64_t kMuch = 1u << 28;

std::unique_ptr<libswap::IoBackend> real_disk() {
  auto chosen = libswap::open_backend(libswap::BackendChoice::automatic);
  EBB_CHECK(chosen.has_value());
  return std::move(chosen->backend);
}

std::vector<std::string> notes_of(libswap::IoBackend& backend, const fs::path& directory) {
  const auto notes = libswap::io_notes(backend, directory);
  EXPECT_TRUE(notes) << notes.error().message;
  return notes ? *notes : std::vector<std::string>();
}

// Of rank 0, after three steps with a snapshot each, and after two more of the run that resumes.
std::vector<float> weights_on(World& world) {
  const auto config = config_of({.ranks = 2, .budget_bytes = kLittle}, nuisance_model());
  std::vector<float> weights;
  for (const std::uint64_t last : {3u, 5u}) {
    const auto answers = world.run([&](Communicator& ranks) -> Result<> {
      EBB_TRY_ASSIGN(auto rank, RankEngine::open(world, ranks, config));
      EXPECT_EQ(rank.engine().step_count(), last == 3 ? 0u : 3u);
      while (rank.engine().step_count() < last) {
        EBB_TRY(rank.hand_in(rank.engine().step_count() + 1));
        EBB_TRY(rank.step());
        EBB_TRY(rank.commit());
      }
      if (ranks.rank() == Rank{0}) weights = rank.flat_weights();
      return {};
    });
    for (const auto& answer : answers) EXPECT_TRUE(answer) << answer.error().message;
    world.reopen(2);
  }
  return weights;
}

std::vector<float> weights_in_memory(std::uint32_t alignment = 4096) {
  World world(libswap::make_memory_backend(MemoryDisk::create(kMuch), alignment), "/swap", 2);
  return weights_on(world);
}

TEST(Backends, GiveIdenticalResultsUnderTheEngine) {
  const auto wanted = weights_in_memory();
  for (auto* make : {+[] { return libswap::make_uring_backend(); },
                     +[] { return libswap::make_threads_backend(3); }}) {
    auto backend = make();
    if (!backend) continue;  // this machine forbids io_uring
    const TempDir directory;
    World world(std::move(*backend), directory.path(), 2);
    EXPECT_EQ(weights_on(world), wanted) << world.io().backend().name();
  }
}

TEST(Backends, ADeviceThatWantsLargeBlocksIsUsedThroughThePageCacheAndThatIsSaid) {
  const auto disk = MemoryDisk::create(kMuch);
  const auto coarse = libswap::make_memory_backend(disk, 16384);
  const auto notes = notes_of(*coarse, "/");
  ASSERT_FALSE(notes.empty());
  EXPECT_EQ(notes[0],
            "/: direct I/O there needs multiples of 16384 bytes, tiles lie at multiples of 4096; "
            "the page cache is used");
  EXPECT_TRUE((*coarse->list("/")).empty()) << "what was made to look is gone";
  EXPECT_TRUE(notes_of(*libswap::make_memory_backend(disk), "/").size() < notes.size());
  EXPECT_EQ(weights_in_memory(16384), weights_in_memory());
}

TEST(Backends, AFileSystemInMemoryGivesTheSameResultsAndThatIsSaid) {
  struct statfs status{};
  const fs::path shared = "/dev/shm";
  if (::statfs(shared.c_str(), &status) != 0 || status.f_type != TMPFS_MAGIC)
    GTEST_SKIP() << "no tmpfs at /dev/shm";
  const fs::path directory = shared / ("ebb-test-" + std::to_string(::getpid()));
  {
    World world(real_disk(), directory, 2);
    const auto notes = notes_of(world.io().backend(), directory);
    ASSERT_FALSE(notes.empty());
    EXPECT_EQ(notes[0],
              directory.string() + " is in memory: its state survives a kill, not a power loss");
    EXPECT_EQ(weights_on(world), weights_in_memory());
  }
  fs::remove_all(directory);
}

TEST(Backends, WithoutHugePagesResultsAreTheSameAndThatIsSaid) {
  const TempDir directory;
  ASSERT_EQ(::prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0), 0);
  {
    World world(real_disk(), directory.path(), 2);
    const auto notes = notes_of(world.io().backend(), directory.path());
    ASSERT_FALSE(notes.empty());
    EXPECT_EQ(notes.back(),
              "no huge pages: they are switched off for this process (PR_SET_THP_DISABLE); "
              "buffers are in pages of 4 KiB");
    EXPECT_EQ(weights_on(world), weights_in_memory());
  }
  ::prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0);
}

TEST(Engines, OfTwoDirectoriesRunBesideEachOtherInOneProcess) {
  const TempDir first, second;
  const auto wanted = weights_in_memory();
  std::vector<float> other;
  std::thread beside([&] {
    World world(real_disk(), second.path(), 2);
    other = weights_on(world);
  });
  {
    World world(real_disk(), first.path(), 2);
    EXPECT_EQ(weights_on(world), wanted);
    const auto refused = libswap::SwapDirectory::open(world.io(), first.path());
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, Code::busy);
    EXPECT_NE(refused.error().message.find("locked by this process"), std::string::npos)
        << refused.error().message;
  }
  beside.join();
  EXPECT_EQ(other, wanted);
}

// The next step's tiles are on their way in, the last one's on their way out, and a snapshot's.
TEST(Engines, ThatEndWithIoUnderWayLeaveNothingBehindAndResume) {
  libmuon::ModelSpec model;
  model.groups = {libmuon::AdamSpec{}};
  model.params = {{"vector", {3u << 20}, 0}};
  const auto config =
      config_of({.ranks = 1, .tile_bytes = 1u << 20, .budget_bytes = 4u << 20}, model);
  const auto step = [](RankEngine& rank) -> Result<> {
    EBB_TRY(rank.hand_in(rank.engine().step_count() + 1));
    EBB_TRY(rank.step());
    return {};
  };
  const TempDir directory;
  World world(real_disk(), directory.path(), 1);
  bool under_way = false;
  std::uint64_t committed = 0;
  std::vector<float> weights;
  for (int round = 0; round < 4; ++round) {
    const auto answers = world.run([&](Communicator& ranks) -> Result<> {
      libswap::IoStats at_the_end;
      {
        EBB_TRY_ASSIGN(auto rank, RankEngine::open(world, ranks, config));
        // What a snapshot began may have been made whole.
        EXPECT_GE(rank.engine().step_count(), committed);
        EBB_TRY(step(rank));
        EBB_TRY(rank.commit());
        committed = rank.engine().step_count();
        weights = rank.flat_weights();
        EBB_TRY(step(rank));
        EBB_TRY(rank.engine().snapshot());
        at_the_end = world.io().stats();
      }
      const libswap::IoStats after = world.io().stats();
      under_way = under_way || after.written_bytes > at_the_end.written_bytes ||
                  after.read_bytes > at_the_end.read_bytes;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      EXPECT_EQ(world.io().stats().operations, after.operations) << "what came later was nobody's";
      return {};
    });
    ASSERT_TRUE(answers[0]) << answers[0].error().message;
  }
  EXPECT_TRUE(under_way) << "it tested nothing";
  World undisturbed(libswap::make_memory_backend(MemoryDisk::create(kMuch)), "/swap", 1);
  const auto answers = undisturbed.run([&](Communicator& ranks) -> Result<> {
    EBB_TRY_ASSIGN(auto rank, RankEngine::open(undisturbed, ranks, config));
    while (rank.engine().step_count() < committed) EBB_TRY(step(rank));
    EXPECT_TRUE(rank.flat_weights() == weights);
    return {};
  });
  EXPECT_TRUE(answers[0]) << answers[0].error().message;
}

}  // namespace
}  // namespace ebb::test::backends_tests
