// One rank: buffers of all sizes, who stays in memory, what is answered to what cannot be.
#include <cstdlib>

#include "ebb/formats/catalog/catalog.h"
#include "tests/libswap/space/space_rig.h"

namespace ebb::libswap::space_tests {
namespace {

TEST(SwapSpace, HoldsBuffersOfAnySizeAndResumesThem) {
  SpaceRig rig({1, 100, 3 * kTile + 5, 2 * kTile, 4000, 50, kTile, 5 * kTile, 7, 30 * kTile}, 31);
  for (std::uint32_t i = 0; i < rig.sizes.size(); ++i) EXPECT_EQ(rig.read(i), static_cast<int>(i));
  for (std::uint32_t i = 0; i < rig.sizes.size(); ++i) rig.write(i, static_cast<int>(i + 100));
  rig.commit(3);
  rig.write(2, 7);  // lost
  rig.begin();
  EXPECT_EQ(rig.space->step(), 3u);
  EXPECT_EQ(rig.space->origin(), "resumed the store at step 3");
  for (std::uint32_t i = 0; i < rig.sizes.size(); ++i)
    EXPECT_EQ(rig.read(i), static_cast<int>(i + 100));
}

TEST(SwapSpace, TakesBuffersOnlyBeforeItIsOpen) {
  SpaceRig rig({1}, 2);
  EXPECT_TRUE(refused(rig.space->register_buffer({bytes_named("late", 1)}), Code::state));
  EXPECT_TRUE(refused(rig.space->open({}), Code::state));
  SwapSpace closed(*rig.io, *rig.directory, rig.alone, rig.config);
  EXPECT_TRUE(refused(closed.acquire(BufferId{0}, Tier::host, Access::read), Code::state));
  EXPECT_TRUE(refused(closed.snapshot(1), Code::state));
}

TEST(SwapSpace, RefusesABudgetThatHoldsNoBufferAndSaysWhatDoes) {
  SpaceRig rig({1}, 2);
  const auto open = [&](std::vector<std::uint64_t> sizes) {
    SwapSpaceConfig config = rig.config;
    config.budget_bytes = 2 * kTile - 1;
    SwapSpace space(*rig.io, *rig.directory, rig.alone, config);
    for (std::size_t i = 0; i < sizes.size(); ++i)
      EXPECT_TRUE(ok(space.register_buffer({bytes_named(std::to_string(i), sizes[i])})));
    return space.open({});
  };
  EXPECT_TRUE(refused(open({5 * kTile}), Code::no_memory, "20480 bytes"));
  EXPECT_TRUE(refused(open({5, 5}), Code::no_memory, "8192 bytes"));
}

TEST(SwapSpace, NeverWaitsForLeasesOfTheCallerButNamesThem) {
  SpaceRig rig({2 * kTile, 2 * kTile, 3 * kTile, kTile}, 4);
  auto first = rig.acquire(0, Access::modify);
  {
    auto second = rig.acquire(1, Access::read);
    const auto third = rig.space->acquire(BufferId{2}, Tier::host, Access::read);
    EXPECT_TRUE(refused(third, Code::no_memory, "b0 (state), b1 (state)"));
    EXPECT_TRUE(refused(third, Code::no_memory, "b2 (state)"));
  }
  EXPECT_TRUE(refused(rig.space->acquire(BufferId{2}, Tier::host, Access::read), Code::no_memory,
                      "acquired: b0 (state)"));
  EXPECT_EQ(rig.read(3), 3);
  EXPECT_TRUE(ok(rig.space->release(first, Release::clean)));
  EXPECT_EQ(rig.read(2), 2);
}

TEST(SwapSpace, OneModifiesOrManyRead) {
  SpaceRig rig({10, 10, kTile * 2}, 6);
  for (const std::uint32_t buffer : {0u, 2u}) {
    auto a = rig.acquire(buffer, Access::read), b = rig.acquire(buffer, Access::read);
    const BufferId id{buffer};
    EXPECT_TRUE(refused(rig.space->acquire(id, Tier::host, Access::modify), Code::state, "read"));
    EXPECT_TRUE(refused(rig.space->release(a, Release::dirty), Code::usage));
    a = {};
    b = {};
    auto c = rig.acquire(buffer, Access::modify);
    EXPECT_TRUE(refused(rig.space->acquire(id, Tier::host, Access::read), Code::state, "modified"));
    EXPECT_TRUE(ok(rig.space->release(c, Release::dirty)));
    EXPECT_TRUE(refused(rig.space->release(c, Release::dirty), Code::usage));
  }
  EXPECT_TRUE(refused(rig.space->acquire(BufferId{3}, Tier::host, Access::read), Code::usage));
  EXPECT_TRUE(
      refused(rig.space->acquire(BufferId{0}, Tier::device, Access::read), Code::unsupported));
}

TEST(SwapSpace, ForgetsWhatIsReleasedClean) {
  for (const std::uint64_t frames : {4u, 40u}) {
    SpaceRig rig({10, 10, kTile * 2}, frames);
    for (const std::uint32_t buffer : {0u, 2u}) {
      for (const bool dirty_before : {false, true}) {
        if (dirty_before) rig.write(buffer, 50);
        const int before = rig.read(buffer);
        auto lease = rig.acquire(buffer, Access::modify);
        SpaceRig::set(lease, 99);
        EXPECT_TRUE(ok(rig.space->release(lease, Release::clean)));
        EXPECT_EQ(rig.read(buffer), before);
        lease = rig.acquire(buffer, Access::modify);
        SpaceRig::set(lease, 99);
        lease = {};  // as an error in the middle of an update would
        EXPECT_EQ(rig.read(buffer), before);
      }
    }
  }
}

TEST(SwapSpace, OutOfOrderWorksAndCountsAsAStall) {
  SpaceRig rig(std::vector<std::uint64_t>(12, kTile), 4);
  rig.begin();
  std::uint64_t stalls = 0;
  for (const std::uint32_t buffer : {5u, 3u})
    ASSERT_TRUE(ok(rig.space->prefetch(BufferId{buffer})));
  EXPECT_EQ(rig.read(7), 7);
  EXPECT_EQ(rig.space->stats().stalls, ++stalls);
  for (const std::uint32_t buffer : {3u, 5u}) {  // the other way round
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (rig.space->stats().pager.read_bytes < 3 * kTile &&
           std::chrono::steady_clock::now() < end)
      ASSERT_TRUE(ok(rig.space->flush()));
    EXPECT_EQ(rig.read(buffer), static_cast<int>(buffer));
  }
  EXPECT_EQ(rig.space->stats().stalls, stalls);
  EXPECT_EQ(rig.space->stats().acquires, 3u);
}

// Sweep after sweep in the same order: what fits stays, as if somebody had chosen residents.
TEST(SwapSpace, WhatFitsStaysInMemoryThroughSweeps) {
  constexpr std::uint64_t kBuffers = 60, kFrames = 40;
  SpaceRig rig(std::vector<std::uint64_t>(kBuffers, kTile), kFrames);
  const auto sweep = [&](int value) {
    for (std::uint32_t i = 0; i < 3; ++i) EXPECT_TRUE(ok(rig.space->prefetch(BufferId{i})));
    for (std::uint32_t i = 0; i < kBuffers; ++i) {
      if (i + 3 < kBuffers) {
        EXPECT_TRUE(ok(rig.space->prefetch(BufferId{i + 3})));
      }
      rig.write(i, value);
    }
  };
  for (int warm = 0; warm < 3; ++warm) sweep(warm);
  const auto before = rig.space->stats().pager;
  for (int round = 0; round < 4; ++round) sweep(10 + round);
  const auto after = rig.space->stats().pager;
  const double reads = static_cast<double>(after.read_bytes - before.read_bytes) / (4 * kTile);
  const double writes =
      static_cast<double>(after.written_bytes - before.written_bytes) / (4 * kTile);
  EXPECT_LT(reads, kBuffers - kFrames / 2.0) << "of " << kBuffers;
  EXPECT_LT(writes, kBuffers - kFrames / 3.0) << "of " << kBuffers;
  for (std::uint32_t i = 0; i < kBuffers; ++i) EXPECT_EQ(rig.read(i), 13);
}

TEST(SwapSpace, WithRoomForAllNothingIsWrittenBetweenSnapshots) {
  SpaceRig rig({kTile, 3 * kTile, 10, 10, 2 * kTile}, 40);
  rig.commit(1);
  const auto before = rig.space->stats().pager;
  for (int value = 1; value < 50; ++value)
    for (std::uint32_t i = 0; i < rig.sizes.size(); ++i) rig.write(i, value);
  EXPECT_EQ(rig.space->stats().pager.written_bytes, before.written_bytes);
  EXPECT_EQ(rig.space->stats().pager.read_bytes, before.read_bytes);
  rig.commit(2);
  EXPECT_EQ(rig.space->stats().pager.cut_bytes - before.cut_bytes, 7 * kTile);
  ASSERT_TRUE(ok(rig.space->flush()));  // nothing is left to write
  EXPECT_EQ(rig.space->stats().pager.written_bytes, before.written_bytes);
}

TEST(SwapSpace, ASnapshotCountsEveryStepOnce) {
  SpaceRig rig({10}, 4);
  rig.commit(5);
  EXPECT_TRUE(refused(rig.space->snapshot(4), Code::usage, "at step 5"));
  rig.commit(5);  // nothing was changed: the same content again
  rig.write(0, 9);
  EXPECT_TRUE(refused(rig.space->snapshot(5), Code::usage));
  rig.commit(6);
}

TEST(SwapSpace, TwoSlotsWaitForTheCommit) {
  SpaceRig rig({kTile, 10, 2 * kTile}, 3, 2);
  for (std::uint64_t step = 1; step < 6; ++step) {
    for (std::uint32_t i = 0; i < 3; ++i) rig.write(i, static_cast<int>(step));
    const auto begun = rig.space->snapshot(step);
    ASSERT_TRUE(ok(begun));
    EXPECT_TRUE(*begun);
  }
  rig.begin();
  EXPECT_EQ(rig.space->step(), 5u);
  EXPECT_EQ(rig.read(2), 5);
}

}  // namespace
}  // namespace ebb::libswap::space_tests
