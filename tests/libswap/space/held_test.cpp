// What is acquired to be modified when a snapshot is taken counts as it was acquired, however it
// lies in memory.
#include "tests/libswap/space/space_rig.h"

namespace ebb::libswap::space_tests {
namespace {

// Released once with 50, acquired again and changed to 60; then the snapshot.
class Held : public testing::TestWithParam<std::tuple<std::uint64_t, std::uint64_t, bool>> {};

TEST_P(Held, CountsAsItWasAcquired) {
  const auto [bytes, frames, dirty] = GetParam();
  SpaceRig rig({bytes, 30, bytes + 1}, frames);
  rig.write(0, 50);
  if (!dirty) {
    ASSERT_TRUE(ok(rig.space->flush()));
  }
  auto lease = rig.acquire(0, Access::modify);
  SpaceRig::set(lease, 60);
  const auto begun = rig.space->snapshot(1);
  ASSERT_TRUE(ok(begun));
  ASSERT_TRUE(*begun);
  SpaceRig::set(lease, 61);
  ASSERT_TRUE(ok(rig.space->wait_snapshot()));
  SpaceRig::set(lease, 62);
  ASSERT_TRUE(ok(rig.space->release(lease, Release::dirty)));
  EXPECT_EQ(rig.read(0), 62);
  rig.begin();
  EXPECT_EQ(rig.space->step(), 1u);
  EXPECT_EQ(rig.read(0), 50);
}

TEST_P(Held, ReleasedWhileTheSnapshotIsWrittenCountsForTheNext) {
  const auto [bytes, frames, dirty] = GetParam();
  SpaceRig rig({bytes, 30, bytes + 1}, frames);
  for (std::uint64_t step = 1; step <= 20; ++step) {
    const int value = static_cast<int>(2 * step);
    for (std::uint32_t i = 0; i < 3; ++i) rig.write(i, value);
    if (!dirty) {
      ASSERT_TRUE(ok(rig.space->flush()));
    }
    auto lease = rig.acquire(0, Access::modify);
    const auto begun = rig.space->snapshot(step);
    ASSERT_TRUE(ok(begun));
    ASSERT_TRUE(*begun);
    SpaceRig::set(lease, value + 1);
    ASSERT_TRUE(ok(rig.space->release(lease, Release::dirty)));
    for (std::uint32_t i = 1; i < 3; ++i) rig.write(i, value + 1);
    ASSERT_TRUE(ok(rig.space->wait_snapshot()));
    EXPECT_EQ(rig.read(0), value + 1);
  }
  rig.begin();
  for (std::uint32_t i = 0; i < 3; ++i) EXPECT_EQ(rig.read(i), 40);
}

// In a tile that others share; alone in one; in many. With no frame to spare, and with enough.
INSTANTIATE_TEST_SUITE_P(SwapSpace, Held,
                         testing::Combine(testing::Values(std::uint64_t{20}, kTile, 3 * kTile - 5),
                                          testing::Values(std::uint64_t{4}, std::uint64_t{40}),
                                          testing::Bool()));

}  // namespace
}  // namespace ebb::libswap::space_tests
