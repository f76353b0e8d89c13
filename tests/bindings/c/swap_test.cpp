// A trainer's own state through ebb.h: leases, snapshots, other ranks; what is refused.
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/bindings/c/connected_ranks.h"
#include "tests/bindings/c/small_swap.h"
#include "tests/support/program.h"

namespace ebb::c {
namespace {

// What an element of a buffer's first part begins with: its place in the whole.
float begins_with(std::uint32_t buffer, std::uint64_t place) {
  return static_cast<float>(buffer * 10'000 + place);
}

struct Filling {
  const SmallSwap& swap;
  std::uint32_t calls = 0;
  ebb_status answer = EBB_DONE;
};
ebb_status fill(void* self, std::uint32_t buffer, void* const* parts) {
  auto& filling = *static_cast<Filling*>(self);
  ++filling.calls;
  auto* const masters = static_cast<float*>(parts[0]);
  for (std::uint64_t i = 0; i < filling.swap.elems(); ++i)
    masters[i] = begins_with(buffer, filling.swap.parts[0].first + i);
  return filling.answer;
}

class CSwap : public testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(ebb_ranks_alone(&ranks_), EBB_DONE); }
  void TearDown() override {
    if (swap_ != nullptr) {
      EXPECT_EQ(ebb_swap_close(swap_), EBB_DONE) << last_message();
    }
    EXPECT_EQ(ebb_ranks_close(ranks_), EBB_DONE) << last_message();
  }
  void open(SmallSwap& small, Filling* filling = nullptr) {
    small.config.fill = filling != nullptr ? fill : nullptr;
    small.config.self = filling;
    ASSERT_EQ(ebb_swap_open(&small.config, ranks_, &swap_), EBB_DONE) << last_message();
  }
  void close() {
    ASSERT_EQ(ebb_swap_close(swap_), EBB_DONE) << last_message();
    swap_ = nullptr;
  }
  float first_of(std::uint32_t buffer) {
    void* parts[2] = {};
    std::uint64_t lease = 0;
    EXPECT_EQ(ebb_swap_acquire(swap_, buffer, 0, parts, &lease), EBB_DONE) << last_message();
    const float value = *static_cast<float*>(parts[0]);
    EXPECT_EQ(ebb_swap_release(swap_, lease, 0), EBB_DONE) << last_message();
    return value;
  }
  std::string about() {
    char* json = nullptr;
    EXPECT_EQ(ebb_swap_about(swap_, &json), EBB_DONE) << last_message();
    std::string text = json != nullptr ? json : "";
    ebb_free(json);
    return text;
  }

  test_support::ScratchDirectory scratch_;
  const std::string path_ = scratch_ / "swap";
  ebb_ranks* ranks_ = nullptr;
  ebb_swap* swap_ = nullptr;
};

TEST_F(CSwap, BeginsWithWhatItIsFilledWithAndGoesOnAtItsSnapshot) {
  SmallSwap small(path_);
  Filling filling{small};
  open(small, &filling);
  EXPECT_EQ(filling.calls, SmallSwap::kBuffers);
  EXPECT_NE(about().find("\"origin\":\"created at step 0\""), std::string::npos) << about();
  for (std::uint32_t i = 0; i < SmallSwap::kBuffers; ++i) {
    EXPECT_EQ(ebb_swap_prefetch(swap_, i), EBB_DONE) << last_message();
    EXPECT_EQ(first_of(i), begins_with(i, 0));
  }
  void* parts[2] = {};
  std::uint64_t kept = 0, forgotten = 0, generation = 0;
  ASSERT_EQ(ebb_swap_acquire(swap_, 0, 1, parts, &kept), EBB_DONE) << last_message();
  *static_cast<float*>(parts[0]) = -5;
  ASSERT_EQ(ebb_swap_acquire(swap_, 1, 1, parts, &forgotten), EBB_DONE) << last_message();
  *static_cast<float*>(parts[0]) = -6;
  EXPECT_EQ(ebb_swap_release(swap_, kept, 1), EBB_DONE) << last_message();
  EXPECT_EQ(ebb_swap_release(swap_, forgotten, 0), EBB_DONE) << last_message();
  EXPECT_EQ(ebb_swap_release(swap_, kept, 1), EBB_USAGE);
  EXPECT_NE(last_message().find("no such lease"), std::string::npos) << last_message();
  EXPECT_EQ(ebb_swap_set_blob(swap_, "place", "here", 4), EBB_DONE) << last_message();
  std::int32_t begun = 0;
  EXPECT_EQ(ebb_swap_snapshot(swap_, 3, &begun), EBB_DONE) << last_message();
  EXPECT_EQ(begun, 1);
  EXPECT_EQ(ebb_swap_wait_snapshot(swap_, &generation), EBB_DONE) << last_message();
  EXPECT_GT(generation, 1u);
  EXPECT_EQ(ebb_swap_acquire(swap_, 2, 1, parts, &kept), EBB_DONE) << last_message();
  close();  // with a lease that nobody released
  open(small, &filling);
  EXPECT_EQ(filling.calls, SmallSwap::kBuffers);  // no more than before
  EXPECT_NE(about().find("\"step\":3"), std::string::npos) << about();
  EXPECT_EQ(first_of(0), -5);
  EXPECT_EQ(first_of(1), begins_with(1, 0));
  char blob[8] = {};
  std::uint64_t size = sizeof(blob);
  EXPECT_EQ(ebb_swap_blob(swap_, "place", blob, &size), EBB_DONE) << last_message();
  EXPECT_EQ(std::string(blob, size), "here");
  EXPECT_EQ(ebb_swap_flush(swap_), EBB_DONE) << last_message();
  EXPECT_EQ(ebb_swap_go_on(swap_), EBB_DONE) << last_message();
}

TEST_F(CSwap, RefusesWhatIsNoneAndLeavesNothing) {
  SmallSwap small(path_);
  Filling filling{small, 0, EBB_IO};
  small.config.fill = fill;
  small.config.self = &filling;
  EXPECT_EQ(ebb_swap_open(&small.config, ranks_, &swap_), EBB_CANCELLED);
  EXPECT_NE(last_message().find("buffer 0 was not filled"), std::string::npos) << last_message();
  for (const auto& entry : std::filesystem::directory_iterator(path_))
    EXPECT_EQ(entry.path().filename().string().rfind("store-", 0), std::string::npos) << entry;
  EXPECT_EQ(ebb_swap_open(nullptr, ranks_, &swap_), EBB_USAGE);
  EXPECT_EQ(ebb_swap_open(&small.config, ranks_, nullptr), EBB_USAGE);
  small.parts[3].buffer = 3;
  EXPECT_EQ(ebb_swap_open(&small.config, ranks_, &swap_), EBB_USAGE);
  EXPECT_NE(last_message().find("part 3 (w1, exp_avg)"), std::string::npos) << last_message();
  small.parts[3].buffer = 1;
  small.parts[3].tensor = "w0";
  EXPECT_NE(ebb_swap_open(&small.config, ranks_, &swap_), EBB_DONE);
  EXPECT_NE(last_message().find("w0"), std::string::npos) << last_message();
  small.parts[3].tensor = "w1";
  open(small);
  EXPECT_EQ(ebb_swap_prefetch(swap_, SmallSwap::kBuffers), EBB_USAGE);
  EXPECT_NE(last_message().find("there are 4"), std::string::npos) << last_message();
  void* parts[2] = {};
  std::uint64_t lease = 0;
  EXPECT_EQ(ebb_swap_acquire(swap_, 9, 0, parts, &lease), EBB_USAGE);
  EXPECT_EQ(ebb_swap_acquire(swap_, 0, 0, nullptr, &lease), EBB_USAGE);
  EXPECT_EQ(ebb_swap_acquire(swap_, 0, 0, parts, nullptr), EBB_USAGE);
  EXPECT_EQ(ebb_swap_flush(reinterpret_cast<ebb_swap*>(ranks_)), EBB_USAGE);
  EXPECT_EQ(ebb_swap_close(nullptr), EBB_USAGE);
}

TEST(CSwapOfRanks, GoesOnOnAnotherNumberOfThem) {
  const test_support::ScratchDirectory scratch;
  const std::string path = scratch / "swap";
  on_ranks([&](std::uint32_t rank, ebb_ranks* ranks) {
    SmallSwap small(path, rank, kWorld);
    Filling filling{small};
    small.config.fill = fill;
    small.config.self = &filling;
    ebb_swap* swap = nullptr;
    ASSERT_EQ(ebb_swap_open(&small.config, ranks, &swap), EBB_DONE) << last_message();
    EXPECT_EQ(ebb_swap_snapshot(swap, 1, nullptr), EBB_DONE) << last_message();
    EXPECT_EQ(ebb_swap_wait_snapshot(swap, nullptr), EBB_DONE) << last_message();
    EXPECT_EQ(ebb_swap_close(swap), EBB_DONE) << last_message();
  });
  ebb_ranks* ranks = nullptr;
  ASSERT_EQ(ebb_ranks_alone(&ranks), EBB_DONE);
  SmallSwap small(path);
  ebb_swap* swap = nullptr;
  ASSERT_EQ(ebb_swap_open(&small.config, ranks, &swap), EBB_DONE) << last_message();
  for (std::uint32_t buffer = 0; buffer < SmallSwap::kBuffers; ++buffer) {
    void* parts[2] = {};
    std::uint64_t lease = 0;
    ASSERT_EQ(ebb_swap_acquire(swap, buffer, 0, parts, &lease), EBB_DONE) << last_message();
    for (std::uint64_t i = 0; i < small.elems(); i += 37)
      EXPECT_EQ(static_cast<float*>(parts[0])[i], begins_with(buffer, i));
    EXPECT_EQ(ebb_swap_release(swap, lease, 0), EBB_DONE) << last_message();
  }
  EXPECT_EQ(ebb_swap_close(swap), EBB_DONE) << last_message();
  EXPECT_EQ(ebb_ranks_close(ranks), EBB_DONE) << last_message();
}

}  // namespace
}  // namespace ebb::c
