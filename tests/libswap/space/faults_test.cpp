// What a disk that fails costs: nothing that was released.
#include "tests/libswap/space/space_rig.h"

namespace ebb::libswap::space_tests {
namespace {

constexpr std::uint64_t kForEver = FaultPlan::kForEver;
const std::vector<std::uint64_t> kSizes = {kTile, 2 * kTile, 10, 10, 3 * kTile, kTile};

void expect_all(SpaceRig& rig, const std::vector<int>& values) {
  for (std::uint32_t i = 0; i < values.size(); ++i) EXPECT_EQ(rig.read(i), values[i]) << i;
}

TEST(SwapSpaceFaults, APageInThatFailsCostsItsAcquireAlone) {
  SpaceRig rig(kSizes, 4);
  ASSERT_TRUE(ok(rig.space->flush()));
  rig.begin();
  rig.faults->add({.on = FaultOn::read, .count = kForEver, .path_part = ".data"});
  EXPECT_TRUE(
      refused(rig.space->acquire(BufferId{1}, Tier::host, Access::modify), Code::io, "b1 (state)"));
  ASSERT_TRUE(ok(rig.space->prefetch(BufferId{4})));
  EXPECT_TRUE(refused(rig.space->acquire(BufferId{4}, Tier::host, Access::read), Code::io));
  rig.faults->clear();
  expect_all(rig, {0, 1, 2, 3, 4, 5});
}

TEST(SwapSpaceFaults, APageInIsRepeatedAndAPrefetchThatFailedIsNoAnswer) {
  SpaceRig rig(kSizes, 4);
  rig.begin();
  rig.faults->add({.on = FaultOn::read, .count = 3, .path_part = ".data"});
  EXPECT_EQ(rig.read(5), 5);
  EXPECT_EQ(rig.space->stats().pager.retries, 3u);
  rig.faults->add({.on = FaultOn::read, .count = 4, .path_part = ".data"});
  ASSERT_TRUE(ok(rig.space->prefetch(BufferId{0})));
  EXPECT_EQ(rig.read(0), 0);
}

TEST(SwapSpaceFaults, BytesThatAreNotThoseThatWereWrittenAreNamed) {
  SpaceRig rig(kSizes, 4);
  rig.begin();
  rig.faults->add({.on = FaultOn::read,
                   .count = kForEver,
                   .kind = FaultKind::misdirected,
                   .path_part = ".data"});
  EXPECT_TRUE(refused(rig.space->acquire(BufferId{1}, Tier::host, Access::read), Code::corrupt,
                      "b1 (state)"));
}

TEST(SwapSpaceFaults, AWriteBehindThatFailsReachesEveryCallUntilItIsTriedAgain) {
  SpaceRig rig(kSizes, 4);
  rig.faults->add({.on = FaultOn::write, .count = kForEver, .path_part = ".data"});
  rig.write(0, 70);
  EXPECT_TRUE(refused(rig.space->flush(), Code::io));
  EXPECT_TRUE(refused(rig.space->flush(), Code::io));
  EXPECT_TRUE(refused(rig.space->acquire(BufferId{0}, Tier::host, Access::read), Code::io));
  EXPECT_TRUE(refused(rig.space->prefetch(BufferId{1}), Code::io));
  EXPECT_TRUE(refused(rig.space->snapshot(1), Code::io));
  rig.space->go_on();
  EXPECT_TRUE(refused(rig.space->flush(), Code::io));  // it still does
  rig.faults->clear();
  rig.space->go_on();
  ASSERT_TRUE(ok(rig.space->flush()));
  expect_all(rig, {70, 1, 2, 3, 4, 5});
  rig.commit(1);
  rig.begin();
  expect_all(rig, {70, 1, 2, 3, 4, 5});
}

TEST(SwapSpaceFaults, ALeaseOutlivesAReleaseThatFails) {
  SpaceRig rig(kSizes, 6);
  rig.faults->add({.on = FaultOn::write, .count = kForEver, .path_part = ".data"});
  rig.write(0, 70);
  auto shared = rig.acquire(2, Access::modify);
  auto whole = rig.acquire(5, Access::modify);
  SpaceRig::set(shared, 71);
  SpaceRig::set(whole, 72);
  EXPECT_TRUE(refused(rig.space->flush(), Code::io));
  EXPECT_TRUE(refused(rig.space->release(shared, Release::dirty), Code::io));
  EXPECT_TRUE(refused(rig.space->release(whole, Release::dirty), Code::io));
  EXPECT_TRUE(shared.held() && whole.held());
  rig.faults->clear();
  rig.space->go_on();
  ASSERT_TRUE(ok(rig.space->release(shared, Release::dirty)));
  ASSERT_TRUE(ok(rig.space->release(whole, Release::dirty)));
  expect_all(rig, {70, 1, 71, 3, 4, 72});
}

TEST(SwapSpaceFaults, ACutThatCannotBeWrittenCostsThatSnapshotAlone) {
  SpaceRig rig(kSizes, 40);
  rig.write(1, 70);
  rig.faults->add({.on = FaultOn::write, .count = kForEver, .path_part = ".data"});
  ASSERT_TRUE(ok(rig.space->snapshot(1)));
  EXPECT_TRUE(refused(rig.space->wait_snapshot(), Code::io));
  rig.faults->clear();
  rig.write(1, 71);
  rig.commit(2);
  rig.begin();
  EXPECT_EQ(rig.space->step(), 2u);
  EXPECT_EQ(rig.read(1), 71);
}

TEST(SwapSpaceFaults, AfterAFailedSyncNothingIsCommittedAndAllIsReadable) {
  SpaceRig rig(kSizes, 5);
  rig.write(1, 70);
  rig.commit(1);
  rig.write(1, 71);
  rig.faults->add({.on = FaultOn::sync, .path_part = ".data"});
  ASSERT_TRUE(ok(rig.space->snapshot(2)));
  EXPECT_TRUE(refused(rig.space->wait_snapshot(), Code::state));
  EXPECT_TRUE(refused(rig.space->snapshot(3), Code::state));
  EXPECT_TRUE(refused(rig.space->snapshot(3), Code::state));
  EXPECT_TRUE(refused(rig.space->wait_snapshot(), Code::state));
  expect_all(rig, {0, 71, 2, 3, 4, 5});
  rig.begin();
  EXPECT_EQ(rig.space->step(), 1u);
  expect_all(rig, {0, 70, 2, 3, 4, 5});
}

// Every data operation of a schedule fails once, or for a while, or for good: after go_on() the
// same bytes as if nothing had happened.
TEST(SwapSpaceFaults, WhicheverOperationFailsTheBytesAreThose) {
  for (const std::uint64_t count : {std::uint64_t{1}, std::uint64_t{4}, std::uint64_t{9}})
    for (std::uint64_t at = 0; at < 60; at += count) {
      SCOPED_TRACE(compose("operations {} + {}", at, count));
      SpaceRig rig(kSizes, 5);
      rig.faults->add({.on = FaultOn::data, .at = at, .count = count, .path_part = ".data"});
      std::vector<int> values = {0, 1, 2, 3, 4, 5};
      for (int turn = 0; turn < 30; ++turn) {
        const auto buffer = static_cast<std::uint32_t>(turn * 7 % 6);
        auto lease = rig.space->acquire(BufferId{buffer}, Tier::host, Access::modify);
        for (int tries = 0; !lease && tries < 20; ++tries) {
          rig.space->go_on();
          lease = rig.space->acquire(BufferId{buffer}, Tier::host, Access::modify);
        }
        ASSERT_TRUE(ok(lease));
        for (const std::byte byte : lease->bytes()) EXPECT_EQ(int(byte), values[buffer]);
        SpaceRig::set(*lease, 100 + turn);
        auto released = rig.space->release(*lease, Release::dirty);
        for (int tries = 0; !released && tries < 20; ++tries) {
          rig.space->go_on();
          released = rig.space->release(*lease, Release::dirty);
        }
        ASSERT_TRUE(ok(released));
        values[buffer] = 100 + turn;
      }
      expect_all(rig, values);
    }
}

}  // namespace
}  // namespace ebb::libswap::space_tests
