// What every Communicator owes its ranks, of whatever kind: instantiated by each program for the
// kinds that it can start.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "tests/libmuon/comm/any_kind.h"
#include "tests/libmuon/comm/rounds.h"
#include "tests/support/alarm.h"
#include "tests/support/in_child.h"

namespace ebb::libmuon {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;
using test_support::Alarm;

inline constexpr milliseconds kLimit(400);

inline void expect_error(const Result<>& answer, Code code, const std::string& message) {
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code, code);
  EXPECT_EQ(answer.error().message, message);
}

inline libswap::Buffer of(const std::vector<std::byte>& bytes) {
  return libswap::buffer_of(std::span(bytes));
}

inline Result<> agreed(Communicator& comm, std::int64_t mine) {
  EBB_TRY(comm.agree(mine));
  return {};
}

// The verbs in turn.
inline Result<> call(Communicator& comm, int number) {
  Round round(comm);
  std::vector<std::int64_t> numbers(20, 1);
  if (number % 3 == 0) return comm.sum(numbers);
  if (number % 3 == 1) return comm.exchange(round.sends, round.receives);
  return agreed(comm, 1);
}

TYPED_TEST_SUITE_P(RanksOfAnyKind);

TYPED_TEST_P(RanksOfAnyKind, AgreeOnTheSmallestNumber) {
  this->on_ranks(5, [](Communicator& comm) {
    for (std::int64_t round = 0; round < 100; ++round) {
      const std::int64_t me = index_of(comm.rank());
      const auto worst = comm.agree((me + round) % 5 - 3);
      ASSERT_TRUE(worst);
      EXPECT_EQ(*worst, -3);
    }
  });
}

TYPED_TEST_P(RanksOfAnyKind, SumExactlyWhateverThePartialSums) {
  this->on_ranks(3, [](Communicator& comm) {
    constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
    const std::int64_t me = index_of(comm.rank());
    std::vector<std::int64_t> numbers = {me, me == 2 ? -kMax : kMax, -me};
    ASSERT_TRUE(comm.sum(numbers));
    EXPECT_EQ(numbers, (std::vector<std::int64_t>{3, kMax, -3}));
  });
}

TYPED_TEST_P(RanksOfAnyKind, ASumThatDoesNotFitIsRefusedOnAllAndChangesNothing) {
  this->on_ranks(2, [](Communicator& comm) {
    std::vector<std::int64_t> numbers = {std::numeric_limits<std::int64_t>::max()};
    expect_error(comm.sum(numbers), Code::limit, "sum: number 0 does not fit 64 bits");
    EXPECT_EQ(numbers[0], std::numeric_limits<std::int64_t>::max());
  });
}

TYPED_TEST_P(RanksOfAnyKind, ExchangeDeliversEveryPairAlsoToOneself) {
  for (const std::uint32_t world : {1u, 2u, 3u, 8u})
    this->on_ranks(world, [](Communicator& comm) {
      for (int repeat = 0; repeat < 50; ++repeat) {
        Round round(comm);
        ASSERT_TRUE(comm.exchange(round.sends, round.receives));
        EXPECT_TRUE(round.arrived(comm));
      }
    });
}

TYPED_TEST_P(RanksOfAnyKind, ExchangeRoundsFarLargerThanWhatTheSystemBuffers) {
  this->on_ranks(3, [](Communicator& comm) {
    Round round(comm, 1u << 20);
    ASSERT_TRUE(comm.exchange(round.sends, round.receives));
    EXPECT_TRUE(round.arrived(comm));
  });
}

TYPED_TEST_P(RanksOfAnyKind, SendsOfAPairMatchReceivesInOrder) {
  this->on_ranks(2, [](Communicator& comm) {
    const auto a = pattern(1, 1, 10), b = pattern(2, 2, 10);
    std::vector<std::byte> first(10), second(10);
    const Rank peer{1 - index_of(comm.rank())};
    const std::vector<SendBuffer> sends = {{peer, of(a)}, {peer, of(b)}};
    const std::vector<ReceiveBuffer> receives = {{peer, of(first)}, {peer, of(second)}};
    ASSERT_TRUE(comm.exchange(sends, receives));
    EXPECT_EQ(first, a);
    EXPECT_EQ(second, b);
  });
}

TYPED_TEST_P(RanksOfAnyKind, AMismatchIsALayoutErrorOnEveryRankAndTheWorldGoesOn) {
  this->on_ranks(3, [](Communicator& comm) {
    const std::uint32_t me = index_of(comm.rank());
    std::vector<std::byte> bytes(100);
    std::vector<SendBuffer> sends;
    std::vector<ReceiveBuffer> receives;
    if (me == 1) sends.push_back({Rank{2}, of(bytes)});
    if (me == 2) receives.push_back({Rank{1}, of(bytes).sub(0, 96)});
    expect_error(comm.exchange(sends, receives), Code::layout,
                 "exchange from rank 1 to rank 2: buffer 0 has 100 bytes, expected 96");
    receives.clear();
    expect_error(comm.exchange(sends, receives), Code::layout,
                 "exchange from rank 1 to rank 2: 1 buffers sent, 0 expected");
    std::vector<std::int64_t> numbers(me == 2 ? 4 : 3);
    expect_error(comm.sum(numbers), Code::layout, "sum: rank 0 brings 3 numbers, rank 2 brings 4");
    expect_error(me == 1 ? comm.sum(numbers) : comm.exchange({}, {}), Code::layout,
                 "rank 0 calls exchange while rank 1 calls sum");
    EXPECT_TRUE(comm.agree(0));
  });
}

TYPED_TEST_P(RanksOfAnyKind, UnknownPeersAndRoundsOverTheLimitAreRefused) {
  this->on_ranks(2, [](Communicator& comm) {
    const std::uint32_t me = index_of(comm.rank());
    std::vector<std::byte> bytes(8);
    std::vector<SendBuffer> sends;
    if (me == 0) sends.push_back({Rank{2}, of(bytes)});
    expect_error(comm.exchange(sends, {}), Code::usage,
                 "exchange: rank 0 sends to rank 2 in a world of 2");
    // Never read: the round is refused by its size alone.
    const std::span<const std::byte> huge(bytes.data(), (256u << 20) + 1);
    sends.clear();
    if (me == 1) sends.push_back({Rank{0}, libswap::buffer_of(huge)});
    const auto large = comm.exchange(sends, {});
    ASSERT_FALSE(large);
    EXPECT_EQ(large.error().code, Code::limit);
  });
}

TYPED_TEST_P(RanksOfAnyKind, MemoryAtNoAddressIsRefusedOnAllAndTheWorldGoesOn) {
  this->on_ranks(2, [](Communicator& comm) {
    const std::uint32_t me = index_of(comm.rank());
    const Rank peer{1 - me};
    std::vector<std::byte> bytes(8);
    const libswap::Buffer nowhere{nullptr, DType::u8, 8, nullptr};
    const std::vector<SendBuffer> sends = {{peer, me == 1 ? nowhere : of(bytes)}};
    std::vector<ReceiveBuffer> receives = {{peer, of(bytes)}};
    expect_error(comm.exchange(sends, receives), Code::usage,
                 "exchange: rank 1 sends to rank 0 8 bytes at no address");
    if (me == 0) receives = {{peer, nowhere}};
    expect_error(comm.exchange({}, receives), Code::usage,
                 "exchange: rank 0 receives from rank 1 8 bytes at no address");
    const libswap::Buffer none{nullptr, DType::u8, 0, nullptr};
    EXPECT_TRUE(comm.exchange(std::vector<SendBuffer>{{peer, none}},
                              std::vector<ReceiveBuffer>{{peer, none}}));
    std::vector<std::int64_t> numbers(3);
    const std::span<std::int64_t> no_numbers(static_cast<std::int64_t*>(nullptr), 3);
    expect_error(comm.sum(me == 1 ? no_numbers : numbers), Code::layout,
                 "sum: rank 0 brings 3 numbers, rank 1 brings 0");
    EXPECT_TRUE(comm.agree(0));
  });
}

// Rank 1 gives up after `calls` collectives, at each of the verbs in turn.
TYPED_TEST_P(RanksOfAnyKind, AnAbortAtAnyCallWakesEverybody) {
  for (int calls = 0; calls < 12; ++calls)
    this->on_ranks(4, [&](Communicator& comm) {
      for (int number = 0; number < 12; ++number) {
        if (index_of(comm.rank()) == 1 && number == calls) comm.abort();
        const auto done = call(comm, number);
        EXPECT_EQ(done.has_value(), number < calls) << number;
        if (!done) expect_error(done, Code::peer, "rank 1 gave up");
      }
    });
}

TYPED_TEST_P(RanksOfAnyKind, ARankThatLeavesDoesNotLeaveTheOthersWaiting) {
  for (int number = 0; number < 3; ++number)
    this->on_ranks(3, [&](Communicator& comm) {
      ASSERT_TRUE(comm.agree(0));
      if (index_of(comm.rank()) == 0) return;
      expect_error(call(comm, number), Code::peer, "rank 0 gave up");
    });
}

TYPED_TEST_P(RanksOfAnyKind, ASilentRankEndsTheWorldSoonerThanInTwiceItsLimit) {
  for (int number = 0; number < 3; ++number)
    this->on_ranks(
        3,
        [&](Communicator& comm) {
          ASSERT_TRUE(comm.agree(0));
          const std::uint32_t me = index_of(comm.rank());
          if (me == 1) std::this_thread::sleep_for(kLimit * 3);
          if (me == 2) std::this_thread::sleep_for(kLimit / 2);
          const std::array<std::string, 3> names = {"sum", "exchange", "agree"};
          const std::string message = "rank 1 kept the others waiting in " + names[number] +
                                      " for 400 ms, which is the limit";
          // Counted from when the first one waited; who comes afterwards does not wait at all.
          const Alarm alarm(me == 1 ? kLimit / 2 : kLimit * 2);
          const auto begin = Clock::now();
          expect_error(call(comm, number), Code::peer, message);
          EXPECT_FALSE(alarm.rang());
          if (me == 0) {
            EXPECT_GE(Clock::now() - begin, kLimit);
          }
          expect_error(call(comm, number), Code::peer, message);
        },
        kLimit);
}

TYPED_TEST_P(RanksOfAnyKind, AllSilentRanksAreNamed) {
  this->on_ranks(
      3,
      [](Communicator& comm) {
        if (index_of(comm.rank()) != 1) std::this_thread::sleep_for(milliseconds(400));
        expect_error(agreed(comm, 0), Code::peer,
                     "ranks 0, 2 kept the others waiting in agree for 200 ms, which is the limit");
      },
      milliseconds(200));
}

TYPED_TEST_P(RanksOfAnyKind, ARankThatIsSlowInsideTheLimitIsNotDead) {
  static constexpr milliseconds kLong = kLimit * 3;  // a busy machine may be late, too
  this->on_ranks(
      3,
      [](Communicator& comm) {
        for (int number = 0; number < 3; ++number) {
          if (index_of(comm.rank()) == 1) std::this_thread::sleep_for(kLong / 12);
          EXPECT_TRUE(call(comm, number));
        }
        // Nobody waits for anybody, so nothing is counted.
        std::this_thread::sleep_for(kLong + kLong / 12);
        EXPECT_TRUE(comm.agree(0));
      },
      kLong);
}

TYPED_TEST_P(RanksOfAnyKind, WithoutALimitNobodyIsDead) {
  this->on_ranks(
      2,
      [](Communicator& comm) {
        if (index_of(comm.rank()) == 1) std::this_thread::sleep_for(milliseconds(300));
        EXPECT_TRUE(comm.agree(0));
      },
      milliseconds(0));
}

// Rank 0 is in the duplicate first, rank 1 in the original: neither call waits for the other.
TYPED_TEST_P(RanksOfAnyKind, CallsOnADuplicateAndOnTheOriginalDoNotWaitForEachOther) {
  this->on_ranks(2, [](Communicator& comm) {
    const auto other = comm.duplicate(), third = comm.duplicate();
    ASSERT_TRUE(other && third);
    EXPECT_EQ((*other)->rank(), comm.rank());
    EXPECT_EQ((*other)->world(), 2u);
    EXPECT_EQ((*other)->limit(), comm.limit());
    const bool first = comm.rank() == Rank{0};
    const auto calls = [&](Communicator& ranks) {
      for (int number = 0; number < 30; ++number) EXPECT_TRUE(call(ranks, number)) << number;
    };
    std::thread beside([&] { calls(first ? **other : comm); });
    calls(first ? comm : **other);
    beside.join();
    EXPECT_TRUE(call(**third, 1));
  });
}

TYPED_TEST_P(RanksOfAnyKind, AWorldThatIsOverIsOverInAllDuplicates) {
  for (const bool in_duplicate : {false, true})
    this->on_ranks(3, [&](Communicator& comm) {
      const auto other = comm.duplicate();
      ASSERT_TRUE(other);
      ASSERT_TRUE(call(**other, 1));
      Communicator& waiting = in_duplicate ? **other : comm;
      Communicator& ended = in_duplicate ? comm : **other;
      if (comm.rank() == Rank{1}) std::this_thread::sleep_for(milliseconds(50));
      const auto answer =
          comm.rank() == Rank{1} ? (ended.abort(), agreed(ended, 0)) : agreed(waiting, 0);
      ASSERT_FALSE(answer);
      EXPECT_EQ(answer.error().code, Code::peer);
      for (Communicator* each : {&waiting, &ended}) {
        const auto later = agreed(*each, 0);
        ASSERT_FALSE(later);
        EXPECT_EQ(later.error().code, Code::peer);
      }
    });
}

TYPED_TEST_P(RanksOfAnyKind, ARankThatIsSilentInADuplicateIsSoEverywhere) {
  this->on_ranks(
      2,
      [](Communicator& comm) {
        const auto other = comm.duplicate();
        ASSERT_TRUE(other);
        if (comm.rank() == Rank{1}) std::this_thread::sleep_for(kLimit * 3);
        const Alarm alarm(kLimit * 2);
        EXPECT_FALSE(agreed(**other, 0));
        EXPECT_FALSE(agreed(comm, 0));
        EXPECT_FALSE(alarm.rang());
      },
      kLimit);
}

TYPED_TEST_P(RanksOfAnyKind, ADuplicateThatIsDestroyedEndsAlone) {
  this->on_ranks(2, [](Communicator& comm) {
    auto other = comm.duplicate();
    ASSERT_TRUE(other);
    ASSERT_TRUE(agreed(**other, 0));
    if (comm.rank() == Rank{1})
      other->reset();
    else
      expect_error(agreed(**other, 0), Code::peer, "rank 1 gave up");
    EXPECT_TRUE(agreed(comm, 0));
    const auto next = comm.duplicate();
    ASSERT_TRUE(next);
    EXPECT_TRUE(agreed(**next, 0));
  });
}

TYPED_TEST_P(RanksOfAnyKind, AChildOfARankIsRefusedAndItsEndIsNobodysBusiness) {
  this->on_ranks(3, [](Communicator& comm) {
    auto other = comm.duplicate();
    ASSERT_TRUE(other);
    for (int round = 0; round < 20; ++round) {
      if (comm.rank() == Rank{0}) {
        EXPECT_EQ(test_support::in_child([&] {
                    test_support::Refused calls;
                    calls.expect("agree", comm.agree(1));
                    std::vector<std::int64_t> numbers(3, 1);
                    calls.expect("sum", comm.sum(numbers));
                    calls.expect("exchange", comm.begin_exchange({}, {}, {}));
                    calls.expect("duplicate", comm.duplicate());
                    other->reset();
                    comm.abort();
                    return calls.others();
                  }),
                  "");
      }
      EXPECT_TRUE(agreed(comm, 0));
      EXPECT_TRUE(agreed(**other, 0));
    }
  });
}

REGISTER_TYPED_TEST_SUITE_P(
    RanksOfAnyKind, AgreeOnTheSmallestNumber, SumExactlyWhateverThePartialSums,
    ASumThatDoesNotFitIsRefusedOnAllAndChangesNothing, ExchangeDeliversEveryPairAlsoToOneself,
    ExchangeRoundsFarLargerThanWhatTheSystemBuffers, SendsOfAPairMatchReceivesInOrder,
    AMismatchIsALayoutErrorOnEveryRankAndTheWorldGoesOn,
    UnknownPeersAndRoundsOverTheLimitAreRefused, MemoryAtNoAddressIsRefusedOnAllAndTheWorldGoesOn,
    AnAbortAtAnyCallWakesEverybody, ARankThatLeavesDoesNotLeaveTheOthersWaiting,
    ASilentRankEndsTheWorldSoonerThanInTwiceItsLimit, AllSilentRanksAreNamed,
    ARankThatIsSlowInsideTheLimitIsNotDead, WithoutALimitNobodyIsDead,
    CallsOnADuplicateAndOnTheOriginalDoNotWaitForEachOther, AWorldThatIsOverIsOverInAllDuplicates,
    ARankThatIsSilentInADuplicateIsSoEverywhere, ADuplicateThatIsDestroyedEndsAlone,
    AChildOfARankIsRefusedAndItsEndIsNobodysBusiness);

}  // namespace ebb::libmuon
