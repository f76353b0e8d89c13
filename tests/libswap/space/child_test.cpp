// A child made by fork() has copies of its parent's spaces and stores, and cannot use them.
#include "ebb/libswap/space/state_store.h"
#include "tests/libswap/space/space_rig.h"
#include "tests/libswap/sys/test_files.h"
#include "tests/support/in_child.h"

namespace ebb::libswap::space_tests {
namespace {

using test_support::in_child;
using test_support::Refused;

// The rig's space, and a lease of it.
std::string use_and_destroy(SpaceRig& rig, SwapSpace::Lease lease) {
  SwapSpace& space = *rig.space;
  Refused calls;
  calls.expect("register_buffer", space.register_buffer({bytes_named("new", 8)}));
  calls.expect("open", space.open(nullptr));
  calls.expect("prefetch", space.prefetch(BufferId{1}));
  calls.expect("acquire", space.acquire(BufferId{1}, Tier::host, Access::read));
  calls.expect("release", space.release(lease, Release::dirty));
  calls.expect("flush", space.flush());
  calls.expect("set_blob", space.set_blob("key", {}));
  calls.expect("snapshot", space.snapshot(9));
  calls.expect("poll_snapshot", space.poll_snapshot());
  calls.expect("wait_snapshot", space.wait_snapshot());
  space.go_on();
  std::string others = calls.others();
  if (space.stats().acquires != 0) others += "stats ";
  {
    const SwapSpace::Lease ends_here = std::move(lease);
  }
  rig.end();
  return others;
}

TEST(Child, OfASwapSpaceIsRefusedAndNothingOfTheParentChanges) {
  SpaceRig rig(std::vector<std::uint64_t>(12, kTile), 4);
  for (std::uint64_t step = 1; step <= 10; ++step) {
    for (std::uint32_t buffer = 0; buffer < 12; ++buffer) {
      SwapSpace::Lease lease = rig.acquire(buffer, Access::modify);
      lease.bytes()[1] = std::byte(step);
      if (buffer == step) {
        EXPECT_EQ(in_child([&] { return use_and_destroy(rig, std::move(lease)); }), "");
      }
      ASSERT_TRUE(ok(rig.space->release(lease, Release::dirty)));
    }
    ASSERT_TRUE(ok(rig.space->snapshot(step)));
    EXPECT_EQ(in_child([&] { return use_and_destroy(rig, {}); }), "");
    ASSERT_TRUE(ok(rig.space->wait_snapshot()));  // the next one would not begin beside it
  }
  rig.begin();
  EXPECT_EQ(rig.space->step(), 10u);
  EXPECT_EQ(rig.acquire(11, Access::read).bytes()[1], std::byte{10});
}

TEST(Child, OfAStateStoreIsRefused) {
  const TemporaryDirectory folder;
  const auto nothing = [](const StateStore::Visit&) -> Result<> { return {}; };
  auto opened =
      StateStore::open({.directory = folder / "swap"}, {{"w", {4}, {{"state"}}}}, nothing);
  ASSERT_TRUE(ok(opened));
  StateStore& store = **opened;
  ASSERT_TRUE(ok(store.for_each(1, nothing)));
  ASSERT_TRUE(ok(store.snapshot()));
  EXPECT_EQ(in_child([&] {
              Refused calls;
              calls.expect("for_each", store.for_each(2, nothing));
              calls.expect("read_each", store.read_each(nothing));
              calls.expect("set_blob", store.set_blob("key", {}));
              calls.expect("snapshot", store.snapshot());
              calls.expect("wait_snapshot", store.wait_snapshot());
              std::string others = calls.others();
              if (store.stats().acquires != 0) others += "stats ";
              opened->reset();
              return others;
            }),
            "");
  ASSERT_TRUE(ok(store.wait_snapshot()));
  EXPECT_EQ(store.step(), 1u);
}

// The lock is of the open file, which parent and child share: whoever unlocks it does so for both.
TEST(Child, LeavesTheLockOfASwapDirectoryToItsParent) {
  const TemporaryDirectory folder;
  const auto start = [] {
    auto chosen = open_backend(BackendChoice::automatic);
    return std::move(*IoQueue::start(std::move(chosen->backend), {}));
  };
  const auto io = start();
  auto directory = SwapDirectory::open(*io, folder / "swap");
  ASSERT_TRUE(ok(directory));
  EXPECT_EQ(in_child([&] {
              directory->reset();
              return std::string();
            }),
            "");
  const auto another = start();
  EXPECT_TRUE(refused(SwapDirectory::open(*another, folder / "swap"), Code::busy, "locked"));
}

}  // namespace
}  // namespace ebb::libswap::space_tests
