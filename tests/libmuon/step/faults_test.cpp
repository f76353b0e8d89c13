// Disks that fail under whole engines of several ranks: what is lost, what is said, and that
// everybody hears it.
#include <gtest/gtest.h>

#include <cerrno>
#include <chrono>
#include <optional>
#include <string>
#include <thread>

#include "ebb/libswap/queue/io_queue.h"
#include "tests/libmuon/support/by_name.h"
#include "tests/libmuon/support/failing_world.h"
#include "tests/libmuon/support/late_accelerator.h"
#include "tests/support/no_threads.h"

namespace ebb::test {
namespace {

using libmuon::Communicator;
using libswap::Fault;
using libswap::FaultOn;
using libswap::FaultPlan;

// Tile after tile of the cut, and what follows it: the write that fails is another each time.
TEST(EngineFaults, OneFailedWriteOfASnapshotCostsThatSnapshotOnly) {
  const auto wanted = weights_after(4);
  for (const std::uint64_t at : {0u, 1u, 5u}) {
    FailingWorld failing;
    std::vector<float> weights;
    expect_well(failing.world.run([&](Communicator& ranks) -> Result<> {
      EBB_TRY_ASSIGN(auto rank, RankEngine::open(failing.world, ranks, config_with(kMuch)));
      EBB_TRY(step_to(rank, 2));
      if (ranks.rank() == Rank{0})
        failing.faults->add({.on = FaultOn::write,
                             .at = at,
                             .count = FaultPlan::kForEver,
                             .path_part = "rank-00001"});
      EBB_TRY(ranks.agree(0));
      EBB_TRY_ASSIGN(const bool begun, rank.engine().snapshot());
      EXPECT_TRUE(begun);
      const auto waited = rank.engine().wait_snapshot();
      expect_error(waited, ranks.rank() == Rank{1} ? Code::io : Code::peer, "waiting");
      EXPECT_NE(rank.engine().snapshot_error(), nullptr);
      EXPECT_EQ(rank.engine().committed_step(), 0u);
      EBB_TRY(failing.meanwhile(ranks, [&] { failing.faults->clear(); }));
      EBB_TRY(step_to(rank, 4));
      EBB_TRY(rank.commit());
      EXPECT_EQ(rank.engine().snapshot_error(), nullptr);
      EXPECT_EQ(rank.engine().committed_step(), 4u);
      if (ranks.rank() == Rank{1}) weights = rank.flat_weights();
      return {};
    }));
    EXPECT_EQ(weights, wanted) << "write " << at;
    failing.world.reopen(2);
    expect_well(failing.world.run([&](Communicator& ranks) -> Result<> {
      EBB_TRY_ASSIGN(auto rank, RankEngine::open(failing.world, ranks, config_with(kMuch)));
      EXPECT_EQ(rank.engine().origin(), "resumed the store at step 4");
      EXPECT_EQ(rank.flat_weights(), wanted);
      return {};
    }));
  }
}

TEST(EngineFaults, StepsGoOnWhileASnapshotThatFailsIsStillUnderWay) {
  const auto wanted = weights_after(5);
  FailingWorld failing;
  expect_well(failing.world.run([&](Communicator& ranks) -> Result<> {
    EBB_TRY_ASSIGN(auto rank, RankEngine::open(failing.world, ranks, config_with(kMuch)));
    EBB_TRY(step_to(rank, 1));
    if (ranks.rank() == Rank{0})
      failing.faults->add({.on = FaultOn::write, .at = 2, .path_part = "rank-00000"});
    EBB_TRY(ranks.agree(0));
    EBB_TRY(rank.engine().snapshot());
    EBB_TRY(step_to(rank, 5));
    EXPECT_EQ(rank.flat_weights(), wanted);
    return {};
  }));
}

TEST(EngineFaults, AStoreWhoseDiskDidNotKeepItsPromiseSaysSoEveryTime) {
  FailingWorld failing;
  expect_well(failing.world.run([&](Communicator& ranks) -> Result<> {
    EBB_TRY_ASSIGN(auto rank, RankEngine::open(failing.world, ranks, config_with(kMuch)));
    EBB_TRY(step_to(rank, 2));
    if (ranks.rank() == Rank{0})
      failing.faults->add({.on = FaultOn::sync, .path_part = "rank-00000"});
    EBB_TRY(ranks.agree(0));
    EBB_TRY(rank.engine().snapshot());
    EXPECT_FALSE(rank.engine().wait_snapshot());
    EBB_TRY(rank.hand_in(3));
    for (int again = 0; again < 3; ++again) {
      expect_error(rank.step(), Code::state, "step");
      expect_error(rank.engine().snapshot(), Code::state, "snapshot");
      expect_error(rank.engine().wait_snapshot(), Code::state, "wait_snapshot");
    }
    EXPECT_EQ(rank.engine().step_count(), 2u);
    return {};
  }));
}

TEST(EngineFaults, AReadThatFailsInASweepStopsAllRanksUntilTheStoreIsOpenedAgain) {
  const auto wanted = weights_after(3);
  FailingWorld failing;
  const auto config = config_with(kLittle);
  expect_well(failing.world.run([&](Communicator& ranks) -> Result<> {
    EBB_TRY_ASSIGN(auto rank, RankEngine::open(failing.world, ranks, config));
    EBB_TRY(step_to(rank, 1));
    EBB_TRY(rank.commit());
    if (ranks.rank() == Rank{0})
      failing.faults->add(
          {.on = FaultOn::read, .at = 3, .count = FaultPlan::kForEver, .path_part = "rank-00001"});
    EBB_TRY(ranks.agree(0));
    EBB_TRY(rank.hand_in(2));
    expect_error(rank.step(), ranks.rank() == Rank{1} ? Code::io : Code::peer, "step 2");
    const auto refused = rank.step();
    expect_error(refused, Code::state, "the step after");
    EXPECT_NE(refused.error().message.find("in the middle of step 2"), std::string::npos);
    EXPECT_EQ(rank.engine().step_count(), 1u);
    return {};
  }));
  failing.faults->clear();
  failing.world.reopen(2);
  expect_well(failing.world.run([&](Communicator& ranks) -> Result<> {
    EBB_TRY_ASSIGN(auto rank, RankEngine::open(failing.world, ranks, config));
    EXPECT_EQ(rank.engine().origin(), "resumed the store at step 1");
    EBB_TRY(step_to(rank, 3));
    EXPECT_EQ(rank.flat_weights(), wanted);
    return {};
  }));
}

TEST(EngineFaults, AStoreThatCouldNotBeMadeLeavesNothingAndCanBeTriedAgain) {
  for (const std::uint64_t at : {0u, 2u, 4u}) {
    FailingWorld failing;
    failing.faults->add(
        {.on = FaultOn::durable, .at = at, .error = ENOSPC, .path_part = "rank-00001"});
    const auto answers = failing.world.run([&](Communicator& ranks) -> Result<> {
      EBB_TRY(RankEngine::open(failing.world, ranks, config_with(kMuch)));
      return {};
    });
    expect_error(answers[0], Code::peer, "rank 0");
    expect_error(answers[1], Code::no_space, "rank 1");
    const auto left = failing.world.io().backend().list("/swap");
    ASSERT_TRUE(left);
    EXPECT_EQ(*left, std::vector<std::string>{"lock"});
    failing.world.reconnect();
    expect_well(failing.world.run([&](Communicator& ranks) -> Result<> {
      EBB_TRY_ASSIGN(auto rank, RankEngine::open(failing.world, ranks, config_with(kMuch)));
      EXPECT_EQ(rank.engine().origin(), "created at step 0");
      return step_to(rank, 1);
    }));
  }
}

// Rank 1 is late whenever ranks have summed something up.
class LateAfterSums : public RanksBelow {
 public:
  using RanksBelow::RanksBelow;
  Result<> sum(std::span<std::int64_t> numbers) override {
    EBB_TRY(RanksBelow::sum(numbers));
    if (rank() == Rank{1}) std::this_thread::sleep_for(std::chrono::milliseconds(300));
    return {};
  }
};

TEST(EngineFaults, ADiskThatHoldsTheStoreOnceIsLargeEnoughHoweverLateARankIs) {
  std::uint64_t needed = 0;
  for (const std::uint32_t rank : {0u, 1u})
    needed += (*libmuon::Engine::plan(config_with(kMuch), Rank{rank})).disk_bytes;
  const auto open_on = [](std::uint64_t bytes) {
    World world(libswap::make_memory_backend(libswap::MemoryDisk::create(bytes)), "/swap", 2);
    return world.run([&](Communicator& real) -> Result<> {
      LateAfterSums ranks(real);
      EBB_TRY(RankEngine::open(world, ranks, config_with(kMuch)));
      return {};
    });
  };
  expect_well(open_on(needed * 13 / 10));
  for (const auto& refused : open_on(needed * 9 / 10)) {
    expect_error(refused, Code::no_space, "a disk that is too small");
    EXPECT_NE(refused.error().message.find(std::to_string(needed)), std::string::npos);
  }
}

// Each of the two would fit alone.
TEST(EngineFaults, DirectoriesOnOneFileSystemAreAskedForRoomTogether) {
  std::uint64_t needed = 0;
  for (const std::uint32_t rank : {0u, 1u})
    needed += (*libmuon::Engine::plan(config_with(kMuch), Rank{rank})).disk_bytes;
  const auto open_on = [](std::uint64_t bytes) {
    World world(libswap::make_memory_backend(libswap::MemoryDisk::create(bytes)), "/both", 2);
    return world.run([&](Communicator& ranks) -> Result<> {
      const std::string mine = ranks.rank() == Rank{0} ? "/first" : "/second";
      EBB_TRY_ASSIGN(const auto swap, libswap::SwapDirectory::open(world.io(), mine, ranks));
      EBB_TRY(RankEngine::open(world.io(), *swap, ranks, config_with(kMuch)));
      return {};
    });
  };
  expect_well(open_on(needed * 13 / 10));
  for (const auto& refused : open_on(needed * 9 / 10)) {
    expect_error(refused, Code::no_space, "a disk that is too small");
    EXPECT_NE(refused.error().message.find(
                  compose("needs {} bytes here and in 1 more on this file system", needed)),
              std::string::npos)
        << refused.error().message;
  }
}

TEST(EngineFaults, AThreadThatCannotStartIsAnErrorAndTheNextSnapshotWorks) {
  FailingWorld failing;
  std::optional<NoThreads> none;
  expect_well(failing.world.run([&](Communicator& ranks) -> Result<> {
    EBB_TRY_ASSIGN(auto rank, RankEngine::open(failing.world, ranks, config_with(kMuch)));
    EBB_TRY(step_to(rank, 1));
    if (ranks.rank() == Rank{0}) none.emplace();
    EBB_TRY(ranks.agree(0));
    const auto refused = rank.engine().snapshot();
    expect_error(refused, Code::no_memory, "snapshot");
    EBB_TRY(ranks.agree(0));
    if (ranks.rank() == Rank{0}) none.reset();
    EBB_TRY(ranks.agree(0));
    EBB_TRY(rank.commit());
    EXPECT_EQ(rank.engine().committed_step(), 1u);
    return {};
  }));
}

TEST(EngineFaults, WhatOneRankPinsHoldsBackTheSnapshotOfAll) {
  FailingWorld two_slots;
  expect_well(two_slots.world.run([&](Communicator& ranks) -> Result<> {
    EBB_TRY_ASSIGN(auto rank, RankEngine::open(two_slots.world, ranks, config_with(kMuch, 2)));
    EBB_TRY(step_to(rank, 1));
    {
      std::optional<libmuon::PinnedCheckpoint> pinned;
      if (ranks.rank() == Rank{0}) {
        EBB_TRY_ASSIGN(auto mine, rank.engine().open_export());
        pinned.emplace(std::move(mine));
      }
      EBB_TRY_ASSIGN(const bool begun, rank.engine().snapshot());
      EXPECT_FALSE(begun) << "rank " << index_of(ranks.rank());
      EBB_TRY(step_to(rank, 2));
    }
    EBB_TRY(rank.commit());
    EXPECT_EQ(rank.engine().committed_step(), 2u);
    return {};
  }));
}

TEST(EngineFaults, AnExportIsOfItsGenerationHoweverManyAreCommittedMeanwhile) {
  const TempDir directory;
  auto chosen = libswap::open_backend(libswap::BackendChoice::automatic);
  ASSERT_TRUE(chosen);
  World world(std::move(chosen->backend), directory.path(), 2);
  expect_well(world.run([&](Communicator& ranks) -> Result<> {
    EBB_TRY_ASSIGN(auto rank, RankEngine::open(world, ranks, config_with(kLittle, 4)));
    EBB_TRY(step_to(rank, 2));
    EBB_TRY(rank.commit());
    const auto weights = rank.flat_weights();
    EBB_TRY_ASSIGN(const auto pinned, rank.engine().open_export());
    EXPECT_EQ(pinned.step(), 2u);
    for (std::uint64_t step = 3; step <= 6; ++step) {
      EBB_TRY(step_to(rank, step));
      EBB_TRY(rank.commit());
      EBB_TRY_ASSIGN(const auto described, pinned.describe());
      EXPECT_EQ(described->catalog().step, 2);
      const auto tensors = tensors_of(*described);
      std::vector<float> exported;
      for (const auto& param : nuisance_model().params) {
        const auto& one = tensors.at(param.name + " master");
        exported.insert(exported.end(), one.begin(), one.end());
      }
      EXPECT_EQ(exported, weights) << "after step " << step;
    }
    return {};
  }));
}

std::vector<float> values_of(ByName& copied) {
  std::vector<float> all;
  copied.for_all([&](std::uint32_t, std::uint64_t, float value) { all.push_back(value); });
  return all;
}

// Rank 1 alone is late: the other does not keep it.
TEST(EngineFaults, ACallThatFailedWritesNothingLaterHoweverLateTheDeviceIs) {
  for (const std::uint64_t at : {1u, 2u, 3u}) {
    FailingWorld failing;
    LateAccelerator in_time(at, 1), late(at, 50'000);
    expect_well(failing.world.run([&](Communicator& ranks) -> Result<> {
      const auto config = config_of({.ranks = 2,
                                     .chunk_bytes = 20000,
                                     .budget_bytes = kLittle,
                                     .accelerator = ranks.rank() == Rank{1} ? &late : &in_time},
                                    nuisance_model());
      EBB_TRY_ASSIGN(auto rank, RankEngine::open(failing.world, ranks, config));
      EBB_TRY(step_to(rank, 1));
      libmuon::Engine& engine = rank.engine();
      std::vector<std::uint32_t> matrices;
      for (std::uint32_t param = 0; param < engine.state_plan().params(); ++param)
        if (engine.state_plan().muon(param)) matrices.push_back(param);
      ByName copied(engine.state_plan(), matrices);
      copied.for_all([](std::uint32_t, std::uint64_t, float& value) { value = 7; });
      EBB_TRY(failing.fail_reads(ranks, at));
      EXPECT_FALSE(engine.read_state("momentum_buffer", copied.buffers()));
      const std::vector<float> then = values_of(copied);
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      EXPECT_EQ(values_of(copied), then);
      return failing.meanwhile(ranks, [&] { failing.faults->clear(); });
    }));
  }
}

// What failed is asked for again, by whichever call comes next.
TEST(EngineFaults, WeightsThatCouldNotBeReadAreInstalledOrSteppedOnceTheDiskIsWell) {
  FailingWorld failing;
  expect_well(failing.world.run([&](libmuon::Communicator& ranks) -> Result<> {
    EBB_TRY_ASSIGN(auto rank, RankEngine::open(failing.world, ranks, config_with(kLittle)));
    EBB_TRY(step_to(rank, 2));
    EBB_TRY(rank.commit());
    EBB_TRY(failing.fail_reads(ranks, 0));
    EXPECT_FALSE(rank.engine().install_weights());
    EXPECT_FALSE(rank.engine().install_weights());
    EBB_TRY(failing.meanwhile(ranks, [&] { failing.faults->clear(); }));
    EBB_TRY(step_to(rank, 3));
    EBB_TRY(failing.fail_reads(ranks, 0));
    EXPECT_FALSE(rank.engine().install_weights());
    EBB_TRY(failing.meanwhile(ranks, [&] { failing.faults->clear(); }));
    EBB_TRY(rank.engine().install_weights());
    if (ranks.rank() == Rank{1}) {
      EXPECT_EQ(rank.flat_weights(), weights_after(3));
    }
    return {};
  }));
}

}  // namespace
}  // namespace ebb::test
