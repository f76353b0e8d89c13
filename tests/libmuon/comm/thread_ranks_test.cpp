// What only ranks that share their memory can do to each other.
#include <gtest/gtest.h>

#include <thread>

#include "tests/libmuon/comm/rounds.h"

namespace ebb::libmuon {
namespace {

// The sender's buffer dies right after its call: a receiver still copying would be caught by TSan
// or ASan, and here by the bytes.
TEST(ThreadRanks, AbortsFromAnotherThreadNeverPullBuffersAway) {
  for (int repeat = 0; repeat < 50; ++repeat) {
    auto ranks = make_thread_ranks(3);
    std::thread intruder([&ranks] { ranks[1]->abort(); });
    std::vector<std::thread> threads;
    for (auto& rank : ranks)
      threads.emplace_back([&comm = *rank] {
        for (int call = 0; call < 20; ++call) {
          const auto round = std::make_unique<Round>(comm);
          if (!comm.exchange(round->sends, round->receives)) return;
          EXPECT_TRUE(round->arrived(comm));
        }
      });
    for (std::thread& thread : threads) thread.join();
    intruder.join();
  }
}

TEST(ThreadRanks, WaitHalfAnHourForEachOtherUnlessToldOtherwise) {
  EXPECT_EQ(make_thread_ranks(1)[0]->limit(), std::chrono::minutes(30));
  EXPECT_EQ(make_thread_ranks(1, std::chrono::milliseconds(0))[0]->limit().count(), 0);
}

}  // namespace
}  // namespace ebb::libmuon
