#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <string>
#include <thread>

#include "ebb/libswap/pool.h"
#include "ebb/libswap/read/in_parallel.h"
#include "ebb/libswap/sys/process.h"
#include "tests/support/no_memory.h"
#include "tests/support/no_threads.h"

namespace ebb::libswap {
namespace {

TEST(Pool, RunsEachJobOnceAndReturnsWhenAllAreDone) {
  for (const std::uint32_t threads : {1u, 2u, 5u}) {
    const auto started = Pool::start(threads);
    ASSERT_TRUE(started);
    Pool& pool = **started;
    EXPECT_EQ(pool.threads(), threads);
    for (const std::size_t count : {0u, 1u, 2u, 7u, 300u}) {
      std::vector<std::atomic<int>> runs(count);
      pool.run(count, [&](std::size_t i) { ++runs[i]; });
      for (const auto& times : runs) EXPECT_EQ(times, 1);
    }
  }
}

TEST(Pool, ServesSeveralCallersAtOnce) {
  const auto started = Pool::start(3);
  ASSERT_TRUE(started);
  Pool& pool = **started;
  std::atomic<int> total = 0;
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; ++caller)
    callers.emplace_back([&] {
      for (int round = 0; round < 50; ++round) {
        std::atomic<int> mine = 0;
        pool.run(9, [&](std::size_t) { ++mine; });
        EXPECT_EQ(mine, 9);
        total += mine;
      }
    });
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(total, 4 * 50 * 9);
}

TEST(Pool, AJobMayRunJobsOfItsOwn) {
  const auto started = Pool::start(2);
  ASSERT_TRUE(started);
  Pool& pool = **started;
  std::atomic<int> total = 0;
  pool.run(4, [&](std::size_t) { pool.run(4, [&](std::size_t) { ++total; }); });
  EXPECT_EQ(total, 16);
}

TEST(Pool, AChainDoesItsStagesInOrderAndChainsFollowEachOther) {
  for (const std::uint32_t threads : {1u, 2u, 5u}) {
    const auto started = Pool::start(threads);
    ASSERT_TRUE(started);
    Pool& pool = **started;
    std::atomic<int> done = 0;
    std::vector<Event> ends;
    for (int chain = 0; chain < 20; ++chain) {
      const auto stage = [&done](int before) {
        return [&done, before](std::size_t) {
          EXPECT_GE(done, before) << "a job of the stage before was not done";
          EXPECT_LT(done, before + 7);
          ++done;
        };
      };
      ends.push_back(pool.begin({{7, stage(chain * 14)}, {0, {}}, {7, stage(chain * 14 + 7)}}));
    }
    ends.push_back(pool.begin({}));
    pool.help_until([&] { return ends.back().passed(); });
    EXPECT_EQ(done, 20 * 14);
    for (const Event& end : ends) pool.help_until(end);
  }
}

TEST(Pool, WhatIsPostedGoesBeforeAChain) {
  Pool pool;  // nobody works before somebody waits
  std::string order;
  const Event end = pool.begin({{2, [&](std::size_t) { order += 'c'; }}});
  pool.post([&] { order += 'p'; });
  pool.post([&] { order += 'q'; });
  EXPECT_EQ(order, "");
  pool.help_until([&] { return end.passed(); });
  EXPECT_EQ(order, "pqcc");
}

TEST(Pool, AChainMayBeStartedByTheEndOfAnother) {
  for (const std::uint32_t threads : {1u, 3u}) {
    const auto started = Pool::start(threads);
    ASSERT_TRUE(started);
    Pool& pool = **started;
    std::atomic<int> ended = 0;
    std::function<void()> again = [&] {
      if (++ended < 50) pool.begin({{3, [](std::size_t) {}}}).then(again);
    };
    pool.begin({}).then(again);
    pool.help_until([&] { return ended == 50; });
    EXPECT_EQ(ended, 50);
  }
}

TEST(Pool, WhoHelpsSleepsWhileThereIsNothingToDoAndIsWoken) {
  Pool pool;
  std::atomic<bool> asked = false, ready = false;
  std::thread other([&] {
    asked.wait(false);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    ready = true;
    pool.wake();
  });
  const double slept = pool.help_until([&] {
    asked = true;
    asked.notify_one();
    return ready.load();
  });
  EXPECT_GE(slept, 0.03);
  other.join();
}

TEST(Pool, AWorkerThatCannotStartIsAnError) {
  const test::NoThreads none;
  const auto pool = Pool::start(3);
  ASSERT_FALSE(pool);
  EXPECT_EQ(pool.error().code, Code::no_memory);
  EXPECT_TRUE(Pool::start(1)) << "the caller is one already";
}

TEST(Pool, WhoeverRunsJobsHearsOfMemoryThatOneDidNotFindBehindTheLast) {
  for (const std::uint32_t threads : {1u, 4u}) {
    const auto pool = std::move(*Pool::start(threads));
    std::atomic<int> begun = 0, ended = 0;
    const auto job = [&](std::size_t i) {
      ++begun;
      if (i % 7 == 3) test::find_no_memory();
      ++ended;
    };
    EXPECT_THROW(pool->run(40, job), std::bad_alloc);
    if (threads > 1) {
      EXPECT_EQ(begun, 40);
      EXPECT_EQ(ended, 34);
    }
    pool->run(3, [&](std::size_t) { ++ended; });
  }
}

TEST(Pool, IsIdleWhenWhatWasBegunAndPostedHasEnded) {
  const auto pool = std::move(*Pool::start(2));
  std::atomic<int> ended = 0;
  const auto slow = [&](std::size_t) {
    sleep_for_seconds(0.002);
    ++ended;
  };
  pool->begin({{8, slow}, {0, slow}, {4, slow}});
  pool->begin({{2, slow}});
  pool->post([&] { slow(0); });
  pool->help_until_idle();
  EXPECT_EQ(ended, 15);
}

TEST(InParallel, WorkThatFindsNoMemoryAnswersSoOnWhicheverThread) {
  for (const std::uint32_t unlucky : {0u, 1u, 2u}) {
    std::atomic<std::uint32_t> next = 0;
    const auto answer = in_parallel(3, [&](const std::atomic<bool>&) -> Result<> {
      if (next++ == unlucky) test::find_no_memory();
      return {};
    });
    ASSERT_FALSE(answer);
    EXPECT_EQ(answer.error().code, Code::no_memory);
  }
}

// On a machine of many cores a herd that wakes for every tile costs more than the tile's checksum.
TEST(Pool, AJobThatIsPostedWakesOneWorkerNotAll) {
  const auto pool = std::move(*Pool::start(17));
  constexpr int kJobs = 200;
  const auto switches = [] {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_nvcsw;
  };
  sleep_for_seconds(0.05);  // until all workers sleep
  const auto before = switches();
  std::atomic<int> done = 0;
  for (int i = 0; i < kJobs; ++i) {
    pool->post([&] {
      ++done;
      done.notify_one();
    });
    done.wait(i);
  }
  EXPECT_LT(switches() - before, 8 * kJobs) << "16 workers sleep";
}

}  // namespace
}  // namespace ebb::libswap
