// Ranks over a trainer's NCCL communicators, which the stub joins: the verbs, what does not match,
// and who does not come.
#include <array>
#include <functional>
#include <limits>
#include <thread>

#include "ebb/libmuon/comm/check_communicator.h"
#include "ebb/libmuon/comm/plugin_ranks.h"
#include "tests/libmuon/comm/rounds.h"
#include "tests/libmuon/cuda/plugged.h"

namespace ebb::libmuon {
namespace {

using std::chrono::milliseconds;
using test::Plugged;
using test::There;

// `world` ranks as threads; each has two groups, one for a duplicate.
class Groups {
 public:
  Groups(Plugged& plugged, std::uint32_t world, std::uint32_t blocking = 1)
      : plugged_(plugged), groups_(2 * world) {
    for (const std::uint32_t first : {0u, world})
      plugged.call(ebb_stub_groups, "ebb_stub_groups", world, blocking, groups_.data() + first);
  }
  ~Groups() {
    for (void* const group : groups_)
      plugged_.call(ebb_stub_end_group, "ebb_stub_end_group", group);
  }
  void abort() {
    for (void* const group : groups_) plugged_.call(ebb_stub_abort, "ebb_stub_abort", group);
  }
  void run(const std::function<void(Communicator&)>& body, milliseconds limit = kPeerLimit) {
    const std::size_t world = groups_.size() / 2;
    std::vector<std::thread> threads;
    for (std::size_t rank = 0; rank < world; ++rank)
      threads.emplace_back([&, rank] {
        auto made =
            make_plugin_ranks(plugged_.device(), {groups_[rank], groups_[world + rank]}, limit);
        ASSERT_TRUE(made) << made.error().message;
        body(**made);
      });
    for (std::thread& thread : threads) thread.join();
  }

 private:
  Plugged& plugged_;
  std::vector<void*> groups_;
};

TEST(CudaStubRanks, AgreeSumAndExchangeAsAnyCommunicatorDoes) {
  for (const std::uint32_t world : {1u, 2u, 3u}) {
    Plugged plugged(50);
    Groups(plugged, world, world % 2).run([&](Communicator& ranks) {
      EXPECT_EQ(ranks.world(), world);
      EXPECT_TRUE(ranks.takes(plugged.device()));
      const auto checked = check_communicator(ranks);
      EXPECT_TRUE(checked) << checked.error().message;
      constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
      const std::int64_t me = index_of(ranks.rank());
      std::vector<std::int64_t> numbers = {me, me == 0 ? kMax : -me, -5};
      ASSERT_TRUE(ranks.sum(numbers));
      const std::int64_t all = world * (world - 1) / 2;
      EXPECT_EQ(numbers, (std::vector<std::int64_t>{all, kMax - all, -5 * std::int64_t{world}}));
      for (int repeat = 0; repeat < 3; ++repeat) {
        Round round(ranks);
        ASSERT_TRUE(ranks.exchange(round.sends, round.receives));
        EXPECT_TRUE(round.arrived(ranks));
      }
    });
  }
}

TEST(CudaStubRanks, ExchangeWhatLiesOnTheDevice) {
  Plugged plugged(50);
  Groups(plugged, 2).run([&](Communicator& ranks) {
    const std::uint32_t me = index_of(ranks.rank());
    const Rank peer{1 - me};
    There<float> out(plugged.device(), std::vector<float>(1000, static_cast<float>(me)),
                     DType::f32);
    There<float> in(plugged.device(), std::vector<float>(1000, -1), DType::f32);
    const auto through = ranks.begin_exchange(std::vector<SendBuffer>{{peer, out.buffer()}},
                                              std::vector<ReceiveBuffer>{{peer, in.buffer()}}, {});
    ASSERT_TRUE(through) << through.error().message;
    EXPECT_EQ(in.back(*through), std::vector<float>(1000, static_cast<float>(1 - me)));
  });
}

TEST(CudaStubRanks, AMismatchIsALayoutErrorOnEveryRankAndTheWorldGoesOn) {
  Plugged plugged;
  Groups(plugged, 3).run([](Communicator& ranks) {
    const std::uint32_t me = index_of(ranks.rank());
    std::vector<std::byte> bytes(100);
    const auto part = [&](std::uint64_t count) {
      return libswap::buffer_of(std::span(bytes)).sub(0, count);
    };
    const auto refused = [](const Result<>& answer) {
      ASSERT_FALSE(answer);
      EXPECT_EQ(answer.error().code, Code::layout) << answer.error().message;
    };
    std::vector<SendBuffer> sends;
    std::vector<ReceiveBuffer> receives;
    if (me == 1) sends = {{Rank{2}, part(100)}};
    if (me == 2) receives = {{Rank{1}, part(96)}};
    refused(ranks.exchange(sends, receives));
    // The same bytes in another order.
    if (me == 1) sends = {{Rank{2}, part(10)}, {Rank{2}, part(20)}};
    if (me == 2) receives = {{Rank{1}, part(20)}, {Rank{1}, part(10)}};
    refused(ranks.exchange(sends, receives));
    receives.clear();
    refused(ranks.exchange(sends, receives));
    std::vector<std::int64_t> numbers(me == 2 ? 4 : 3);
    refused(ranks.sum(numbers));
    refused(me == 1 ? ranks.sum(numbers) : ranks.exchange({}, {}));
    std::vector<std::int64_t> large = {std::numeric_limits<std::int64_t>::max()};
    const auto too_large = ranks.sum(large);
    ASSERT_FALSE(too_large);
    EXPECT_EQ(too_large.error().message, "sum: number 0 does not fit 64 bits");
    EXPECT_EQ(large[0], std::numeric_limits<std::int64_t>::max());
    EXPECT_TRUE(ranks.agree(0));
  });
}

// Another thread, another group: neither waits for the other. There is one duplicate here.
TEST(CudaStubRanks, DuplicatesAreTheCommunicatorsThatWereHandedIn) {
  Plugged plugged(50);
  Groups(plugged, 2).run([](Communicator& ranks) {
    const auto other = ranks.duplicate();
    ASSERT_TRUE(other);
    const bool first = ranks.rank() == Rank{0};
    std::thread beside([&] { EXPECT_TRUE((first ? **other : ranks).agree(1)); });
    EXPECT_TRUE((first ? ranks : **other).agree(1));
    beside.join();
    const auto third = ranks.duplicate();
    ASSERT_FALSE(third);
    EXPECT_EQ(third.error().code, Code::usage);
  });
}

TEST(CudaStubRanks, ARankThatDoesNotComeEndsTheWorldWithinItsLimit) {
  Plugged plugged;
  Groups groups(plugged, 2);
  groups.run(
      [&](Communicator& ranks) {
        ASSERT_TRUE(ranks.agree(0));
        if (ranks.rank() == Rank{1}) return;
        const auto silent = ranks.agree(0);
        ASSERT_FALSE(silent);
        EXPECT_EQ(silent.error().code, Code::peer);
        EXPECT_EQ(silent.error().message,
                  "a rank kept the others waiting in agree for 300 ms, which is the limit");
        const auto later = ranks.agree(0);
        ASSERT_FALSE(later);
        EXPECT_EQ(later.error().message, silent.error().message);
        groups.abort();
      },
      milliseconds(300));
}

TEST(CudaStubRanks, WhatNcclReportsIsAnError) {
  Plugged plugged;
  Groups groups(plugged, 2);
  groups.run([&](Communicator& ranks) {
    ASSERT_TRUE(ranks.agree(0));
    if (ranks.rank() == Rank{1}) return;
    plugged.fail("NCCL");
    const auto troubled = ranks.agree(0);
    ASSERT_FALSE(troubled);
    EXPECT_EQ(troubled.error().code, Code::peer);
    EXPECT_EQ(troubled.error().message, "agree: NCCL: failed as asked");
    groups.abort();
  });
}

TEST(CudaStubRanks, OfAnotherDeviceAreRefused) {
  Plugged plugged;
  plugged.fail("ncclCommCuDevice");
  std::array<void*, 1> group{};
  plugged.call(ebb_stub_groups, "ebb_stub_groups", 1u, 1u, group.data());
  const auto ranks = make_plugin_ranks(plugged.device(), {group[0]});
  ASSERT_FALSE(ranks);
  EXPECT_EQ(ranks.error().message, "Stub 0: the communicator is of device 1, not of 0");
  EXPECT_EQ(make_plugin_ranks(plugged.device(), {}).error().code, Code::usage);
  plugged.call(ebb_stub_end_group, "ebb_stub_end_group", group[0]);
}

}  // namespace
}  // namespace ebb::libmuon
