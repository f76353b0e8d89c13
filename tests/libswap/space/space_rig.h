// SwapSpaces on a disk in memory, for tests.
#pragma once

#include <gtest/gtest.h>

#include <cstring>

#include "ebb/libswap/space/state_store.h"
#include "ebb/libswap/testing/fault_backend.h"
#include "ebb/libswap/testing/memory_backend.h"

namespace ebb::libswap::space_tests {

constexpr std::uint64_t kTile = 4096;
using Access = SwapSpace::Access;
using Release = SwapSpace::Release;

inline BufferPart bytes_named(std::string name, std::uint64_t bytes, std::string state = "state") {
  return {std::move(name), std::move(state), DType::u8, {bytes}, {0, bytes}};
}

inline std::string text(const Error& error) { return error.message + " | " + error.hint; }

template <typename T>
testing::AssertionResult ok(const Result<T>& result) {
  if (result) return testing::AssertionSuccess();
  return testing::AssertionFailure() << text(result.error());
}
template <typename T>
testing::AssertionResult refused(const Result<T>& result, Code code, std::string_view naming = "") {
  if (result) return testing::AssertionFailure() << "it was answered";
  if (result.error().code == code && text(result.error()).find(naming) != std::string::npos)
    return testing::AssertionSuccess();
  return testing::AssertionFailure()
         << name_of(result.error().code) << ": " << text(result.error());
}

inline StateStoreConfig config_in(const std::filesystem::path& folder) {
  return {.directory = folder, .budget_bytes = 16 * kTile, .tile_bytes = kTile};
}

// One rank; every buffer is one part of bytes, which begins with its number everywhere.
struct SpaceRig {
  std::shared_ptr<MemoryDisk> disk;
  std::shared_ptr<FaultPlan> faults = std::make_shared<FaultPlan>();
  std::unique_ptr<IoQueue> io;
  std::unique_ptr<SwapDirectory> directory;
  Alone alone;
  SwapSpaceConfig config{.tile_bytes = kTile};
  std::vector<std::uint64_t> sizes;
  std::unique_ptr<SwapSpace> space;

  explicit SpaceRig(std::vector<std::uint64_t> buffer_bytes, std::uint64_t frames,
                    std::uint32_t slots = 3)
      : disk(MemoryDisk::create(1u << 28)), sizes(std::move(buffer_bytes)) {
    config.budget_bytes = frames * kTile;
    config.slots = slots;
    begin();
  }
  // As a process that starts; what the last one did not commit is lost.
  void begin() {
    end();
    io = std::move(*IoQueue::start(make_fault_backend(make_memory_backend(disk), faults), {}));
    auto opened = SwapDirectory::open(*io, "/swap");
    ASSERT_TRUE(ok(opened));
    directory = std::move(*opened);
    space = std::make_unique<SwapSpace>(*io, *directory, alone, config);
    for (std::size_t i = 0; i < sizes.size(); ++i)
      ASSERT_TRUE(ok(space->register_buffer({bytes_named("b" + std::to_string(i), sizes[i])})));
    ASSERT_TRUE(ok(space->open([](BufferId buffer, std::span<std::byte> bytes) -> Result<> {
      std::ranges::fill(bytes, std::byte(index_of(buffer)));
      return {};
    })));
  }
  void end() {
    space.reset();
    directory.reset();
    io.reset();
  }
  ~SpaceRig() { end(); }

  SwapSpace::Lease acquire(std::uint32_t buffer, Access access) {
    auto lease = space->acquire(BufferId{buffer}, Tier::host, access);
    EXPECT_TRUE(lease) << text(lease.error());
    return lease ? std::move(*lease) : SwapSpace::Lease();
  }
  static void set(SwapSpace::Lease& lease, int value) {
    std::ranges::fill(lease.bytes(), std::byte(value));
  }
  void write(std::uint32_t buffer, int value) {
    auto lease = acquire(buffer, Access::modify);
    set(lease, value);
    ASSERT_TRUE(ok(space->release(lease, Release::dirty)));
  }
  // What every byte of it is; -1 if they differ.
  int read(std::uint32_t buffer) {
    const auto lease = acquire(buffer, Access::read);
    for (const std::byte byte : lease.bytes())
      if (byte != lease.bytes().front()) return -1;
    return lease.bytes().size() == sizes[buffer] ? static_cast<int>(lease.bytes().front()) : -1;
  }
  void commit(std::uint64_t step) {
    const auto begun = space->snapshot(step);
    ASSERT_TRUE(ok(begun));
    ASSERT_TRUE(*begun);
    ASSERT_TRUE(ok(space->wait_snapshot()));
  }
};

}  // namespace ebb::libswap::space_tests
