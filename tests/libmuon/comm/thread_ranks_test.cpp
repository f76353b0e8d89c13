// What only ranks that share their memory can do to each other.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <thread>

#include "ebb/libswap/testing/late_device.h"
#include "tests/libmuon/comm/rounds.h"
#include "tests/libmuon/support/trainer_buffer.h"

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

// Each rank has a device of its own, or none. What is sent comes late, and so does what is
// received: behind the event it is there, and what was sent may be written again.
TEST(ThreadRanks, ExchangeTheMemoryOfTheirDevicesBehindEvents) {
  constexpr std::uint32_t kWorld = 3;
  constexpr std::uint64_t kElems = 1000;
  libswap::LateDevice first(1, 300), second(2, 300);
  const std::array<libswap::Device*, kWorld> devices = {&first, &second, nullptr};
  const auto value = [](std::uint32_t from, std::uint32_t to, int round) {
    return static_cast<float>(100 * round + 10 * static_cast<int>(from) + static_cast<int>(to));
  };
  auto ranks = make_thread_ranks(kWorld);
  std::vector<std::thread> threads;
  for (auto& rank : ranks)
    threads.emplace_back([&, &comm = *rank] {
      const std::uint32_t me = index_of(comm.rank());
      std::vector<test::TrainerBuffer> out, in;
      for (std::uint32_t peer = 0; peer < kWorld; ++peer) {
        out.emplace_back(devices[me], kElems);
        in.emplace_back(devices[me], kElems);
      }
      EXPECT_TRUE(comm.takes(first));
      for (int round = 0; round < 20; ++round) {
        std::vector<SendBuffer> sends;
        std::vector<ReceiveBuffer> receives;
        std::vector<libswap::Event> there;
        for (std::uint32_t peer = 0; peer < kWorld; ++peer) {
          std::ranges::fill(out[peer].values(), value(me, peer, round));
          there.push_back(out[peer].send());
          sends.push_back({Rank{peer}, out[peer].buffer()});
          receives.push_back({Rank{peer}, in[peer].buffer()});
        }
        const auto through = comm.begin_exchange(sends, receives, there);
        ASSERT_TRUE(through);
        (*through).wait();
        for (std::uint32_t peer = 0; peer < kWorld; ++peer)
          for (const float number : in[peer].fetch())
            ASSERT_EQ(number, value(peer, me, round)) << peer << " to " << me;
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(first.copied_inside(), 0u);
}

TEST(ThreadRanks, WaitHalfAnHourForEachOtherUnlessToldOtherwise) {
  EXPECT_EQ(make_thread_ranks(1)[0]->limit(), std::chrono::minutes(30));
  EXPECT_EQ(make_thread_ranks(1, std::chrono::milliseconds(0))[0]->limit().count(), 0);
}

}  // namespace
}  // namespace ebb::libmuon
