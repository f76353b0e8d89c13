// The three verbs over threads of one process.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <functional>
#include <limits>
#include <thread>

#include "ebb/libmuon/comm/communicator.h"

namespace ebb::libmuon {
namespace {

// Runs body(communicator) on one thread a rank and joins them.
void on_ranks(std::vector<std::unique_ptr<Communicator>>& ranks,
              const std::function<void(Communicator&)>& body) {
  std::vector<std::thread> threads;
  for (auto& rank : ranks) threads.emplace_back([&body, &rank] { body(*rank); });
  for (std::thread& thread : threads) thread.join();
}

std::vector<std::byte> pattern(std::uint32_t from, std::uint32_t to, std::size_t size) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i)
    bytes[i] = static_cast<std::byte>((i * 7 + from * 31 + to * 131) & 0xff);
  return bytes;
}

// Buffers of a full exchange: (from + 2 to) * 100 bytes for each ordered pair, itself included.
struct Round {
  std::vector<std::vector<std::byte>> out, in;
  std::vector<SendBuffer> sends;
  std::vector<ReceiveBuffer> receives;

  explicit Round(const Communicator& comm) {
    const std::uint32_t me = index_of(comm.rank());
    for (std::uint32_t peer = 0; peer < comm.world(); ++peer) {
      out.push_back(pattern(me, peer, (me + 2 * peer) * 100));
      in.emplace_back((peer + 2 * me) * 100);
    }
    for (std::uint32_t peer = 0; peer < comm.world(); ++peer) {
      sends.push_back({Rank{peer}, out[peer]});
      receives.push_back({Rank{peer}, in[peer]});
    }
  }
};

TEST(ThreadRanks, AgreeOnTheSmallestNumber) {
  auto ranks = make_thread_ranks(5);
  on_ranks(ranks, [](Communicator& comm) {
    for (std::int64_t round = 0; round < 100; ++round) {
      const std::int64_t me = index_of(comm.rank());
      const auto worst = comm.agree((me + round) % 5 - 3);
      ASSERT_TRUE(worst);
      EXPECT_EQ(*worst, -3);
    }
  });
}

TEST(ThreadRanks, SumExactlyWhateverThePartialSums) {
  auto ranks = make_thread_ranks(3);
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
  on_ranks(ranks, [](Communicator& comm) {
    const std::int64_t me = index_of(comm.rank());
    std::vector<std::int64_t> numbers = {me, me == 2 ? -kMax : kMax, -me};
    ASSERT_TRUE(comm.sum(numbers));
    EXPECT_EQ(numbers, (std::vector<std::int64_t>{3, kMax, -3}));
  });
}

TEST(ThreadRanks, ASumThatDoesNotFitIsRefusedOnAllAndChangesNothing) {
  auto ranks = make_thread_ranks(2);
  on_ranks(ranks, [](Communicator& comm) {
    std::vector<std::int64_t> numbers = {std::numeric_limits<std::int64_t>::max()};
    const auto summed = comm.sum(numbers);
    ASSERT_FALSE(summed);
    EXPECT_EQ(summed.error().code, Code::limit);
    EXPECT_EQ(numbers[0], std::numeric_limits<std::int64_t>::max());
  });
}

TEST(ThreadRanks, ExchangeDeliversEveryPairAlsoToOneself) {
  for (const std::uint32_t world : {1u, 2u, 3u, 8u}) {
    auto ranks = make_thread_ranks(world);
    on_ranks(ranks, [](Communicator& comm) {
      for (int repeat = 0; repeat < 50; ++repeat) {
        Round round(comm);
        ASSERT_TRUE(comm.exchange(round.sends, round.receives));
        for (std::uint32_t peer = 0; peer < comm.world(); ++peer)
          EXPECT_EQ(round.in[peer], pattern(peer, index_of(comm.rank()), round.in[peer].size()));
      }
    });
  }
}

TEST(ThreadRanks, SendsOfAPairMatchReceivesInOrder) {
  auto ranks = make_thread_ranks(2);
  on_ranks(ranks, [](Communicator& comm) {
    const auto a = pattern(1, 1, 10), b = pattern(2, 2, 10);
    std::vector<std::byte> first(10), second(10);
    const Rank peer{1 - index_of(comm.rank())};
    const std::vector<SendBuffer> sends = {{peer, a}, {peer, b}};
    const std::vector<ReceiveBuffer> receives = {{peer, first}, {peer, second}};
    ASSERT_TRUE(comm.exchange(sends, receives));
    EXPECT_EQ(first, a);
    EXPECT_EQ(second, b);
  });
}

TEST(ThreadRanks, AMismatchIsALayoutErrorOnEveryRankAndTheWorldGoesOn) {
  auto ranks = make_thread_ranks(3);
  on_ranks(ranks, [](Communicator& comm) {
    const std::uint32_t me = index_of(comm.rank());
    std::vector<std::byte> bytes(100);
    std::vector<SendBuffer> sends;
    std::vector<ReceiveBuffer> receives;
    if (me == 1) sends.push_back({Rank{2}, bytes});
    if (me == 2) receives.push_back({Rank{1}, std::span(bytes).first(96)});
    const auto sizes = comm.exchange(sends, receives);
    ASSERT_FALSE(sizes);
    EXPECT_EQ(sizes.error().code, Code::layout);
    EXPECT_EQ(sizes.error().message,
              "exchange from rank 1 to rank 2: buffer 0 has 100 bytes, expected 96");

    receives.clear();
    const auto counts = comm.exchange(sends, receives);
    ASSERT_FALSE(counts);
    EXPECT_EQ(counts.error().message, "exchange from rank 1 to rank 2: 1 buffers sent, 0 expected");

    std::vector<std::int64_t> numbers(me == 2 ? 4 : 3);
    const auto summed = comm.sum(numbers);
    ASSERT_FALSE(summed);
    EXPECT_EQ(summed.error().message, "sum: rank 0 brings 3 numbers, rank 2 brings 4");

    const auto other = me == 1 ? comm.sum(numbers) : comm.exchange({}, {});
    ASSERT_FALSE(other);
    EXPECT_EQ(other.error().message, "rank 0 calls exchange while rank 1 calls sum");
    EXPECT_TRUE(comm.agree(0));
  });
}

TEST(ThreadRanks, UnknownPeersAndRoundsOverTheLimitAreRefused) {
  auto ranks = make_thread_ranks(2);
  on_ranks(ranks, [](Communicator& comm) {
    const std::uint32_t me = index_of(comm.rank());
    std::vector<std::byte> bytes(8);
    std::vector<SendBuffer> sends;
    if (me == 0) sends.push_back({Rank{2}, bytes});
    const auto unknown = comm.exchange(sends, {});
    ASSERT_FALSE(unknown);
    EXPECT_EQ(unknown.error().code, Code::usage);
    EXPECT_EQ(unknown.error().message, "exchange: rank 0 sends to rank 2 in a world of 2");

    // Never read: the round is refused by its size alone.
    const std::span<const std::byte> huge(bytes.data(), (256u << 20) + 1);
    sends.clear();
    if (me == 1) sends.push_back({Rank{0}, huge});
    const auto large = comm.exchange(sends, {});
    ASSERT_FALSE(large);
    EXPECT_EQ(large.error().code, Code::limit);
  });
}

// Rank 1 gives up after `calls` collectives, at each of the verbs in turn.
TEST(ThreadRanks, AnAbortAtAnyCallWakesEverybody) {
  for (int calls = 0; calls < 12; ++calls) {
    auto ranks = make_thread_ranks(4);
    std::atomic<int> peer_errors = 0;
    on_ranks(ranks, [&](Communicator& comm) {
      for (int call = 0; call < 12; ++call) {
        if (index_of(comm.rank()) == 1 && call == calls) comm.abort();
        Round round(comm);
        std::vector<std::int64_t> numbers(20, 1);
        Result<> done;
        if (call % 3 == 0) done = comm.sum(numbers);
        if (call % 3 == 1) done = comm.exchange(round.sends, round.receives);
        if (call % 3 == 2) {
          const auto worst = comm.agree(1);
          if (!worst) done = worst.error();
        }
        EXPECT_EQ(done.has_value(), call < calls);
        if (done) continue;
        EXPECT_EQ(done.error().code, Code::peer);
        EXPECT_EQ(done.error().message, "rank 1 gave up");
        ++peer_errors;
      }
    });
    EXPECT_EQ(peer_errors, 4 * (12 - calls));
  }
}

TEST(ThreadRanks, ARankThatIsDestroyedDoesNotLeaveTheOthersWaiting) {
  auto ranks = make_thread_ranks(3);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < 3; ++i)
    threads.emplace_back([&ranks, i] {
      ASSERT_TRUE(ranks[i]->agree(0));
      if (i == 0) return ranks[i].reset();
      const auto worst = ranks[i]->agree(0);
      ASSERT_FALSE(worst);
      EXPECT_EQ(worst.error().code, Code::peer);
    });
  for (std::thread& thread : threads) thread.join();
}

// The sender's buffer dies right after its call: a receiver still copying would be caught by TSan
// or ASan, and here by the bytes.
TEST(ThreadRanks, AbortsFromAnotherThreadNeverPullBuffersAway) {
  for (int repeat = 0; repeat < 50; ++repeat) {
    auto ranks = make_thread_ranks(3);
    std::thread intruder([&ranks] { ranks[1]->abort(); });
    on_ranks(ranks, [](Communicator& comm) {
      for (int call = 0; call < 20; ++call) {
        auto round = std::make_unique<Round>(comm);
        if (!comm.exchange(round->sends, round->receives)) return;
        for (std::uint32_t peer = 0; peer < comm.world(); ++peer)
          EXPECT_EQ(round->in[peer], pattern(peer, index_of(comm.rank()), round->in[peer].size()));
      }
    });
    intruder.join();
  }
}

}  // namespace
}  // namespace ebb::libmuon
