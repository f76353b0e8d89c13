#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "ebb/libmuon/kernels/kernels.h"
#include "tests/libmuon/support/no_threads.h"

namespace ebb::libmuon {
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

TEST(Pool, AWorkerThatCannotStartIsAnError) {
  const test::NoThreads none;
  const auto pool = Pool::start(3);
  ASSERT_FALSE(pool);
  EXPECT_EQ(pool.error().code, Code::no_memory);
  EXPECT_TRUE(Pool::start(1)) << "the caller is one already";
}

}  // namespace
}  // namespace ebb::libmuon
