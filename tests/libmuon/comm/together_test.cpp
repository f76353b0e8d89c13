// together(): long work beside ranks that wait, over threads and over processes.
#include <gtest/gtest.h>

#include <optional>
#include <thread>

#include "tests/libmuon/comm/kinds.h"
#include "tests/support/no_threads.h"

namespace ebb::libmuon::together_tests {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLimit(400);

template <typename Kind>
class Together : public RanksOfAnyKind<Kind> {};
TYPED_TEST_SUITE(Together, Kinds);

TYPED_TEST(Together, WorkThatTakesManyTimesTheLimitIsNoSilence) {
  this->on_ranks(
      3,
      [](Communicator& comm) {
        const auto begin = std::chrono::steady_clock::now();
        const auto work = [&]() -> Result<> {
          if (index_of(comm.rank()) == 1) std::this_thread::sleep_for(kLimit * 3);
          return {};
        };
        EXPECT_TRUE(comm.together("sleeping", work));
        EXPECT_GE(std::chrono::steady_clock::now() - begin, kLimit * 2);
        EXPECT_TRUE(comm.agree(0));
      },
      kLimit);
}

TYPED_TEST(Together, WhatFailsOnOneRankFailsOnAllWithTheReasonOnThatOne) {
  for (const milliseconds limit : {kLimit, milliseconds(0)})
    this->on_ranks(
        3,
        [](Communicator& comm) {
          const bool mine = index_of(comm.rank()) == 2;
          const auto failed = comm.together("reading", [&]() -> Result<> {
            if (mine) return Error{Code::io, "a bad block"};
            return {};
          });
          ASSERT_FALSE(failed);
          EXPECT_EQ(failed.error().code, mine ? Code::io : Code::peer);
          EXPECT_EQ(failed.error().message, mine ? "a bad block" : "rank 2 failed while reading");
          EXPECT_TRUE(comm.agree(0));
        },
        limit);
}

TYPED_TEST(Together, ARankThatDiesMeanwhileIsNotWaitedFor) {
  this->on_ranks(
      2,
      [](Communicator& comm) {
        if (index_of(comm.rank()) == 1) return;
        const auto alone = comm.together("sleeping", []() -> Result<> { return {}; });
        ASSERT_FALSE(alone);
        EXPECT_EQ(alone.error().code, Code::peer);
        EXPECT_EQ(alone.error().message, "rank 1 gave up");
      },
      kLimit);
}

TEST(TogetherOfProcesses, ARankThatCannotStartAThreadSaysSoAndTheOthersHearIt) {
  ProcessKind::run(2, kLimit, [](Communicator& comm) {
    const bool mine = index_of(comm.rank()) == 1;
    std::optional<test::NoThreads> none;
    if (mine) none.emplace();
    const auto refused = comm.together("sleeping", []() -> Result<> { return {}; });
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, mine ? Code::no_memory : Code::peer);
  });
}

}  // namespace
}  // namespace ebb::libmuon::together_tests
