// Buffers that are worked on in a device's memory. Its events come late and the host may not look
// at its memory: what is forgotten stops the program or loses bytes.
#include <random>

#include "ebb/libswap/testing/late_device.h"
#include "tests/libswap/space/space_rig.h"

namespace ebb::libswap::space_tests {
namespace {

struct DeviceRig {
  LateDevice device{3, 200};
  SpaceRig rig;

  explicit DeviceRig(std::vector<std::uint64_t> sizes, std::uint64_t frames,
                     std::uint64_t device_bytes)
      : rig(std::move(sizes), frames) {
    rig.config.device = &device;
    rig.config.device_bytes = device_bytes;
    rig.begin();
  }
  ~DeviceRig() { rig.end(); }

  SwapSpace::Lease acquire(std::uint32_t buffer, Access access) {
    auto lease = rig.space->acquire(BufferId{buffer}, Tier::device, access);
    EXPECT_TRUE(lease) << text(lease.error());
    return lease ? std::move(*lease) : SwapSpace::Lease();
  }
  // Late.
  Event fill(const SwapSpace::Lease& lease, int value) {
    return device.compute({}, [this, memory = lease.memory(), value] {
      std::ranges::fill(device.open(memory), std::byte(value));
    });
  }
  void write(std::uint32_t buffer, int value) {
    auto lease = acquire(buffer, Access::modify);
    ASSERT_TRUE(ok(rig.space->release(lease, Release::dirty, fill(lease, value))));
  }
  // What every byte of it is, as the device sees it; -1 if they differ.
  int read(std::uint32_t buffer) {
    const auto lease = acquire(buffer, Access::read);
    int found = 0;
    device
        .compute({},
                 [&] {
                   const auto bytes = device.open(lease.memory());
                   found = static_cast<int>(bytes.front());
                   for (const std::byte byte : bytes)
                     if (byte != bytes.front()) found = -1;
                 })
        .wait();
    return found;
  }
};

TEST(SwapSpaceOnADevice, WhatIsDoneThereIsTheBuffersContent) {
  DeviceRig on({100, 3 * kTile + 5, 50, 7 * kTile}, 12, 8 * kTile);
  SpaceRig& rig = on.rig;
  for (std::uint32_t i = 0; i < 4; ++i) {
    EXPECT_EQ(on.read(i), static_cast<int>(i));
    on.write(i, static_cast<int>(i + 100));
  }
  for (std::uint32_t i = 0; i < 4; ++i) {
    EXPECT_EQ(rig.read(i), static_cast<int>(i + 100));
    EXPECT_EQ(on.read(i), static_cast<int>(i + 100));
  }
  const std::uint64_t all = 100 + 3 * kTile + 5 + 50 + 7 * kTile;
  EXPECT_EQ(on.device.copied_up(), 3 * all);
  EXPECT_EQ(on.device.copied_down(), all);
  rig.commit(1);
  on.write(1, 9);  // lost
  rig.begin();
  EXPECT_EQ(on.read(1), 101);
}

TEST(SwapSpaceOnADevice, WhatIsReleasedCleanIsForgotten) {
  DeviceRig on({kTile, 30, 40}, 8, 4 * kTile);
  {
    auto lease = on.acquire(0, Access::modify);
    on.fill(lease, 77).wait();
    ASSERT_TRUE(ok(on.rig.space->release(lease, Release::clean)));
    auto dropped = on.acquire(1, Access::modify);
    on.fill(dropped, 77).wait();
  }
  EXPECT_EQ(on.rig.read(0), 0);
  EXPECT_EQ(on.read(1), 1);
}

TEST(SwapSpaceOnADevice, NoRoomThereNamesTheDeviceAndWhatIsHeld) {
  DeviceRig on({2 * kTile, kTile, 2 * kTile}, 20, 4 * kTile);
  auto first = on.acquire(0, Access::read);
  auto second = on.acquire(1, Access::modify);
  const auto third = on.rig.space->acquire(BufferId{2}, Tier::device, Access::modify);
  EXPECT_TRUE(refused(third, Code::no_memory, "of late beside what is acquired: b0 (state), b1"));
  EXPECT_TRUE(ok(on.rig.space->release(second, Release::clean)));
  EXPECT_TRUE(on.acquire(2, Access::modify).held()) << "the refused one left nothing behind";
}

TEST(SwapSpaceOnADevice, IsRefusedWhereThereIsNone) {
  SpaceRig rig({5}, 2);
  EXPECT_TRUE(refused(rig.space->acquire(BufferId{0}, Tier::device, Access::read),
                      Code::unsupported, "no device"));
  EXPECT_TRUE(refused(rig.space->acquire(BufferId{0}, Tier::nvme, Access::read), Code::unsupported,
                      "not on the disk"));
}

// On either side, in any order, beside snapshots; what is held at a cut counts as it was acquired.
TEST(SwapSpaceOnADevice, BothSidesSeeOneContentInAnyOrder) {
  DeviceRig on({10, 20, kTile, 3 * kTile, 500, 2 * kTile + 1}, 14, 9 * kTile);
  SpaceRig& rig = on.rig;
  std::vector<int> wanted(rig.sizes.size());
  for (std::size_t i = 0; i < wanted.size(); ++i) wanted[i] = static_cast<int>(i);
  std::mt19937 random(5);
  for (std::uint64_t turn = 1; turn <= 300; ++turn) {
    const auto buffer = static_cast<std::uint32_t>(random() % wanted.size());
    const int value = static_cast<int>(random() % 120);
    switch (random() % 5) {
      case 0:
        on.write(buffer, wanted[buffer] = value);
        break;
      case 1:
        rig.write(buffer, wanted[buffer] = value);
        break;
      case 2:
        EXPECT_EQ(on.read(buffer), wanted[buffer]);
        break;
      case 3:
        EXPECT_EQ(rig.read(buffer), wanted[buffer]);
        break;
      default: {
        auto held = on.acquire(buffer, Access::modify);
        const Event done = on.fill(held, value);
        rig.commit(turn);
        ASSERT_TRUE(ok(rig.space->release(held, Release::dirty, done)));
        if (random() % 2 == 0) {
          wanted[buffer] = value;
        } else {
          held = {};
          rig.begin();
          EXPECT_EQ(rig.read(buffer), wanted[buffer]);
        }
      }
    }
  }
  for (std::uint32_t i = 0; i < wanted.size(); ++i) EXPECT_EQ(on.read(i), wanted[i]);
}

}  // namespace
}  // namespace ebb::libswap::space_tests
