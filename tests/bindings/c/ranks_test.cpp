// Ranks from ebb.h, as threads of this process: what one of them does wrong is an error on all, and
// a second try is made on new ones.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "tests/bindings/c/connected_ranks.h"
#include "tests/bindings/c/small_model.h"
#include "tests/bindings/c/trained_in_cpp.h"
#include "tests/support/alarm.h"
#include "tests/support/program.h"

namespace ebb::c {
namespace {

TEST(CRanks, TrainTogetherAndAreTheBitsOfOne) {
  const test_support::ScratchDirectory scratch;
  const auto alone = trained_in_cpp(scratch / "one", 3);
  on_ranks([&](std::uint32_t, ebb_ranks* ranks) {
    SmallModel model(kWorld);
    ebb_engine* mine = nullptr;
    ASSERT_EQ(model.open(ranks, scratch / "two", &mine), EBB_DONE) << last_message();
    for (std::uint64_t step = 0; step < 3; ++step)
      ASSERT_EQ(model.step(mine, step), EBB_DONE) << last_message();
    EXPECT_EQ(model.weights, alone);
    EXPECT_EQ(ebb_engine_close(mine), EBB_DONE) << last_message();
  });
}

// G11: of embedding.md: after one rank's mistake the next try begins with new ranks.
TEST(CRanks, AnOpenThatFailedOnOneCanBeTriedAgainOnNewOnes) {
  const test_support::ScratchDirectory scratch;
  on_ranks([&](std::uint32_t rank, ebb_ranks* ranks) {
    SmallModel model(kWorld);
    ebb_engine* engine = nullptr;
    if (rank == 1) model.model.budget_bytes = 100;
    EXPECT_NE(model.open(ranks, scratch / "swap", &engine), EBB_DONE);
    EXPECT_NE(last_message().find(rank == 1 ? "budget" : "rank 1 failed"), std::string::npos)
        << last_message();
    EXPECT_EQ(engine, nullptr);
  });
  on_ranks([&](std::uint32_t, ebb_ranks* ranks) {
    SmallModel model(kWorld);
    ebb_engine* engine = nullptr;
    ASSERT_EQ(model.open(ranks, scratch / "swap", &engine), EBB_DONE) << last_message();
    EXPECT_EQ(model.step(engine, 0), EBB_DONE) << last_message();
    EXPECT_EQ(ebb_engine_close(engine), EBB_DONE);
  });
}

// What a rank could find out alone is still an error of all: nobody waits for it.
TEST(CRanks, AMistakeInOnesArgumentsIsToldToAll) {
  const test_support::ScratchDirectory scratch;
  on_ranks([&](std::uint32_t rank, ebb_ranks* ranks) {
    SmallModel model(kWorld);
    ebb_engine* engine = nullptr;
    if (rank == 1) model.params[2].name = nullptr;
    EXPECT_NE(model.open(ranks, scratch / "swap", &engine), EBB_DONE);
    EXPECT_NE(last_message().find(rank == 1 ? "parameter 2: name is NULL"
                                            : "rank 1 failed while opening an engine"),
              std::string::npos)
        << last_message();
  });
}

TEST(CRanks, WhoGivesUpWakesTheOthers) {
  on_ranks([&](std::uint32_t rank, ebb_ranks* ranks) {
    std::int64_t smallest = 0;
    EXPECT_EQ(ebb_ranks_agree(ranks, rank, &smallest), EBB_DONE);
    EXPECT_EQ(smallest, 0);
    if (rank == 0) {
      EXPECT_EQ(ebb_ranks_abort(ranks), EBB_DONE);
    } else {
      EXPECT_EQ(ebb_ranks_agree(ranks, rank, &smallest), EBB_PEER);
      EXPECT_EQ(last_message(), "rank 0 gave up");
    }
  });
}

// Whoever comes second is refused; it would take what the first one waits for.
TEST(CRanks, TwoThreadsOfARankAreNotInsideTogether) {
  std::atomic<int> refused = 0, done = 0;
  on_ranks([&](std::uint32_t rank, ebb_ranks* ranks) {
    const auto agree = [&] {
      std::int64_t smallest = 0;
      const ebb_status status = ebb_ranks_agree(ranks, rank, &smallest);
      ++(status == EBB_STATE ? refused : done);
    };
    if (rank == 0) {
      std::thread other(agree);
      agree();
      other.join();
    } else {
      const test_support::Alarm alarm(std::chrono::seconds(20));  // both are inside
      while (refused == 0 && !alarm.rang()) std::this_thread::yield();
      agree();
    }
  });
  EXPECT_EQ(refused, 1);
  EXPECT_EQ(done, 2);
}

TEST(CRanks, WhatIsNoAddressIsRefused) {
  ebb_listener* listener = nullptr;
  char* address = nullptr;
  ebb_ranks* ranks = nullptr;
  ASSERT_EQ(ebb_listener_open(nullptr, &listener, &address), EBB_DONE);
  const char* const addresses[] = {address, "10.0.0.7"};
  EXPECT_EQ(ebb_ranks_connect(listener, 0, 2, addresses, 100, &ranks), EBB_USAGE);
  EXPECT_EQ(last_message(), "the address of rank 1 is none: \"10.0.0.7\"");
  EXPECT_EQ(ebb_listener_close(listener), EBB_USAGE) << "connecting closed it";
  EXPECT_EQ(ebb_listener_open("192.0.2.77", &listener, &address), EBB_USAGE);
  EXPECT_NE(std::string(ebb_last_error()->hint), "");
  ebb_free(address);
}

}  // namespace
}  // namespace ebb::c
