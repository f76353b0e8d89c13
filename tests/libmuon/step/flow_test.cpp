// The threads of a step, over chunks that are nothing but their numbers.
#include "ebb/libmuon/step/flow.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/alarm.h"

namespace ebb::libmuon {
namespace {

using std::chrono::milliseconds;
using Clock = Flow::Clock;
using How = Flow::Ended::How;

constexpr std::size_t kChunks = 5;
constexpr std::size_t kEarly = 3;  // pieces that may come before a work
constexpr milliseconds kLimit(400);
constexpr std::chrono::seconds kNever(20);  // a test that waits so long has failed

// What has happened so far, for several threads.
class Log {
 public:
  void add(const std::string& what) {
    const libswap::MutexLock lock(mutex_);
    all_.push_back(what);
    changed_.notify_all();
  }
  bool has(const std::string& what) {
    const libswap::MutexLock lock(mutex_);
    return std::ranges::find(all_, what) != all_.end();
  }
  void clear() {
    const libswap::MutexLock lock(mutex_);
    all_.clear();
  }
  // Whether it came.
  bool wait_for(const std::string& what) {
    const auto end = Clock::now() + kNever;
    const libswap::MutexLock lock(mutex_);
    while (std::ranges::find(all_, what) == all_.end() && Clock::now() < end)
      changed_.wait_for(mutex_, end - Clock::now());
    return std::ranges::find(all_, what) != all_.end();
  }
  // Those that begin like this, in their order.
  std::vector<std::string> of(std::string_view first, std::string_view second = "-") {
    const libswap::MutexLock lock(mutex_);
    std::vector<std::string> found;
    for (const std::string& what : all_)
      if (what.starts_with(first) || what.starts_with(second)) found.push_back(what);
    return found;
  }

 private:
  libswap::Mutex mutex_;
  libswap::Condition changed_;
  std::vector<std::string> all_ EBB_GUARDED_BY(mutex_);
};

std::string of_chunk(std::string_view what, std::size_t chunk) {
  return compose("{} {}", what, chunk);
}

// A rank: its flow, what it did, and what its sweep of a chunk is to do.
struct OneRank {
  Communicator& ranks;
  std::array<Log, 3>& logs;  // of all ranks
  std::function<Result<>(std::size_t chunk)> sweep = [](std::size_t) { return Result<>(); };
  std::function<Result<>(std::size_t chunk)> in = [](std::size_t) { return Result<>(); };
  std::function<Result<>(std::size_t chunk)> out = [](std::size_t) { return Result<>(); };
  std::function<Result<>(std::size_t piece)> early = [](std::size_t) { return Result<>(); };
  std::unique_ptr<Communicator> own = *ranks.duplicate();
  std::unique_ptr<Flow> flow = *Flow::start(*own, {.count = kEarly, .bring = [this](auto piece) {
                                                     log().add(of_chunk("early", piece));
                                                     return early(piece);
                                                   }});

  Log& log() const { return logs[index_of(ranks.rank())]; }

  Flow::Work work() {
    return {.chunks = kChunks,
            .in =
                [this](std::size_t chunk) {
                  log().add(of_chunk("in", chunk));
                  return in(chunk);
                },
            .out =
                [this](std::size_t chunk) {
                  log().add(of_chunk("out", chunk));
                  return out(chunk);
                },
            .sweep = [this]() -> Result<> {
              for (std::size_t c = flow->next_to_sweep(); flow->may_sweep(c); ++c) {
                log().add(of_chunk("sweep", c));
                EBB_TRY(sweep(c));
                log().add(of_chunk("swept", c));
                flow->swept();
              }
              return {};
            },
            .doing = "trying",
            .leaves_early = EarlyPieces::Left::none};
  }
  Flow::Ended run() {
    flow->begin(work());
    return flow->wait();
  }
  Flow::Ended go_on() {
    flow->go_on();
    return flow->wait();
  }
};

using Body = std::function<void(OneRank&)>;

void on_ranks(std::uint32_t world, const Body& body, milliseconds limit = kPeerLimit) {
  auto ranks = make_thread_ranks(world, limit);
  std::array<Log, 3> logs;
  std::vector<std::thread> threads;
  for (auto& rank : ranks)
    threads.emplace_back([&] {
      OneRank one{*rank, logs};
      body(one);
    });
  for (std::thread& thread : threads) thread.join();
}

void expect_whole(OneRank& rank) {
  const std::vector<std::string> calls = {"in 0", "in 1",  "out 0", "in 2",  "out 1",
                                          "in 3", "out 2", "in 4",  "out 3", "out 4"};
  EXPECT_EQ(rank.log().of("in", "out"), calls);
  std::vector<std::string> swept;
  for (std::size_t chunk = 0; chunk < kChunks; ++chunk) swept.push_back(of_chunk("swept", chunk));
  EXPECT_EQ(rank.log().of("swept"), swept);
}

TEST(Flow, MakesTheSameCallsInTheSameOrderOnAllRanks) {
  for (const std::uint32_t world : {1u, 2u, 3u})
    on_ranks(world, [](OneRank& rank) {
      rank.sweep = [&](std::size_t chunk) -> Result<> {
        std::this_thread::sleep_for(milliseconds((index_of(rank.ranks.rank()) + chunk) % 3));
        EXPECT_TRUE(rank.log().has(of_chunk("in", chunk)));
        return {};
      };
      const Flow::Ended ended = rank.run();
      EXPECT_EQ(ended.how, How::whole);
      EXPECT_TRUE(ended.begun);
      EXPECT_FALSE(ended.why || ended.not_out);
      expect_whole(rank);
    });
}

// A chunk's sweep does not end before its neighbours have travelled: what ran one after the other
// would never get there.
TEST(Flow, SweepsAChunkWhileItsNeighboursTravel) {
  on_ranks(2, [](OneRank& rank) {
    rank.sweep = [&](std::size_t chunk) -> Result<> {
      if (chunk > 0) {
        EXPECT_TRUE(rank.log().wait_for(of_chunk("out", chunk - 1)));
      }
      if (chunk + 1 < kChunks) {
        EXPECT_TRUE(rank.log().wait_for(of_chunk("in", chunk + 1)));
      }
      return {};
    };
    EXPECT_EQ(rank.run().how, How::whole);
  });
}

TEST(Flow, TellsOtherThreadsWhenAChunkIsOut) {
  on_ranks(2, [](OneRank& rank) {
    EXPECT_EQ(rank.flow->wait_for_out(0).error().code, Code::state) << "nothing was begun";
    Log told;
    rank.sweep = [&](std::size_t chunk) -> Result<> {
      if (chunk == 3) {
        EXPECT_TRUE(told.wait_for("chunk 1"));
      }
      return {};
    };
    rank.flow->begin(rank.work());
    std::thread waits([&] {
      for (const std::size_t chunk : {1u, 4u}) {
        EXPECT_TRUE(rank.flow->wait_for_out(chunk));
        EXPECT_TRUE(rank.log().has(of_chunk("out", chunk)));
        told.add(of_chunk("chunk", chunk));
      }
    });
    waits.join();
    EXPECT_EQ(rank.flow->wait().how, How::whole);
    EXPECT_TRUE(rank.flow->wait_for_out(0));
  });
}

// Rank 1 fails once in a chunk, before which rank 0 has swept the next one too.
TEST(Flow, AFailedSweepStopsAllAtThatChunkAndAllGoOnWhereTheyAre) {
  for (std::size_t at = 0; at < kChunks; ++at)
    on_ranks(2, [&](OneRank& rank) {
      const bool fails = rank.ranks.rank() == Rank{1};
      bool failed = false;
      rank.sweep = [&](std::size_t chunk) -> Result<> {
        if (!fails || chunk != at || std::exchange(failed, true)) return {};
        EXPECT_TRUE(rank.logs[0].wait_for(of_chunk("swept", std::min(at + 1, kChunks - 1))));
        return Error{Code::io, "the disk is ill"};
      };
      const Flow::Ended stopped = rank.run();
      EXPECT_EQ(stopped.how, How::stopped);
      EXPECT_EQ(stopped.why->code, fails ? Code::io : Code::peer);
      EXPECT_EQ(rank.log().of("out").size(), at);
      EXPECT_EQ(rank.log().of("swept").size(), fails ? at : std::min(at + 2, kChunks));
      if (at > 0) {
        EXPECT_TRUE(rank.flow->wait_for_out(at - 1));
      }
      EXPECT_EQ(rank.flow->wait_for_out(at).error().code, stopped.why->code);
      const Flow::Ended ended = rank.go_on();
      EXPECT_EQ(ended.how, How::whole);
      EXPECT_TRUE(rank.flow->wait_for_out(kChunks - 1));
      expect_whole(rank);
    });
}

// What later chunks are made of is made whatever became of weights; an error of it ends the work.
TEST(Flow, WhatComesBetweenIsMadeWhateverCouldNotGoOutAndItsErrorEndsTheWork) {
  for (const std::size_t fails : {std::size_t{2}, kChunks})
    on_ranks(2, [&](OneRank& rank) {
      rank.out = [](std::size_t chunk) {
        return chunk == 1 ? Result<>(Error{Code::peer, "the network broke"}) : Result<>();
      };
      Flow::Work work = rank.work();
      work.between = [&](std::size_t chunk) {
        rank.log().add(of_chunk("between", chunk));
        EXPECT_TRUE(rank.log().has(of_chunk("swept", chunk)));
        EXPECT_FALSE(rank.log().has(of_chunk("out", chunk)));
        return chunk == fails ? Result<>(Error{Code::peer, "no way"}) : Result<>();
      };
      rank.flow->begin(std::move(work));
      const Flow::Ended ended = rank.flow->wait();
      EXPECT_EQ(ended.how, fails == kChunks ? How::whole : How::apart);
      EXPECT_EQ(rank.log().of("between").size(), std::min(fails + 1, kChunks));
      EXPECT_EQ(rank.log().of("out").size(), 2u);
      EXPECT_TRUE(ended.not_out);
    });
}

// Both fail, in chunks that follow each other: the one that is ahead says so at its own vote.
TEST(Flow, TwoFailuresAreTwoStops) {
  on_ranks(2, [](OneRank& rank) {
    const std::size_t at = rank.ranks.rank() == Rank{0} ? 3 : 2;
    bool failed = false;
    rank.sweep = [&](std::size_t chunk) -> Result<> {
      if (at == 2 && chunk == 2) {
        EXPECT_TRUE(rank.logs[0].wait_for("sweep 3"));
      }
      if (chunk != at || failed) return {};
      failed = true;
      return Error{Code::io, "the disk is ill"};
    };
    EXPECT_EQ(rank.run().how, How::stopped);
    Flow::Ended ended = rank.go_on();
    for (int again = 0; ended.how == How::stopped && again < 2; ++again) ended = rank.go_on();
    EXPECT_EQ(ended.how, How::whole);
    expect_whole(rank);
  });
}

TEST(Flow, ASweepThatTakesManyTimesTheLimitIsNoSilence) {
  on_ranks(
      3,
      [](OneRank& rank) {
        rank.sweep = [&](std::size_t chunk) -> Result<> {
          if (rank.ranks.rank() == Rank{1} && chunk == 1) std::this_thread::sleep_for(4 * kLimit);
          return {};
        };
        EXPECT_EQ(rank.run().how, How::whole);
        expect_whole(rank);
      },
      kLimit);
}

// The others come back, and can meet this rank, only when it has come to rest.
TEST(Flow, ARankThatIsAheadAndSlowIsWaitedForWhenAllStop) {
  on_ranks(
      2,
      [](OneRank& rank) {
        const bool fails = rank.ranks.rank() == Rank{1};
        rank.sweep = [&](std::size_t chunk) -> Result<> {
          if (fails && chunk == 1) {
            EXPECT_TRUE(rank.logs[0].wait_for("sweep 2"));
            return Error{Code::io, "the disk is ill"};
          }
          if (!fails && chunk == 2) std::this_thread::sleep_for(3 * kLimit);
          return {};
        };
        EXPECT_EQ(rank.run().how, How::stopped);
        EXPECT_TRUE(rank.logs[0].has("swept 2"));
        EXPECT_TRUE(rank.ranks.agree(0));
      },
      kLimit);
}

TEST(Flow, ASilentRankEndsItOnAllSoonerThanInTwiceTheLimit) {
  on_ranks(
      3,
      [](OneRank& rank) {
        const bool silent = rank.ranks.rank() == Rank{1};
        rank.out = [&](std::size_t chunk) -> Result<> {
          if (silent && chunk == 1) std::this_thread::sleep_for(kLimit * 3);
          return {};
        };
        rank.in = [&](std::size_t) -> Result<> {
          EBB_TRY(rank.ranks.agree(0));
          return {};
        };
        const test_support::Alarm alarm(2 * kLimit);
        const Flow::Ended ended = rank.run();
        EXPECT_EQ(ended.how, How::apart);
        EXPECT_EQ(ended.why->code, Code::peer);
        EXPECT_NE(ended.why->message.find("rank 1 kept the others waiting"), std::string::npos);
        EXPECT_TRUE(silent || !alarm.rang());
        EXPECT_EQ(rank.flow->wait_for_out(4).error().code, Code::peer);
        EXPECT_FALSE(rank.ranks.agree(0));
      },
      kLimit);
}

TEST(Flow, WhatCannotComeInEndsItAndSaysWhetherAnythingHadBegun) {
  for (std::size_t at = 0; at < kChunks; ++at)
    on_ranks(2, [&](OneRank& rank) {
      rank.in = [&](std::size_t chunk) {
        return chunk == at ? Error{Code::peer, "the network broke"} : Result<>();
      };
      const Flow::Ended ended = rank.run();
      EXPECT_EQ(ended.how, How::apart);
      EXPECT_EQ(ended.begun, at > 0);
      EXPECT_EQ(ended.why->message, "the network broke");
      EXPECT_LE(rank.log().of("sweep").size(), at);
    });
}

TEST(Flow, WeightsThatCannotGoOutDoNotHoldBackTheState) {
  on_ranks(2, [](OneRank& rank) {
    rank.out = [&](std::size_t chunk) {
      return chunk == 2 ? Error{Code::peer, "the network broke"} : Result<>();
    };
    const Flow::Ended ended = rank.run();
    EXPECT_EQ(ended.how, How::whole);
    EXPECT_EQ(ended.not_out->message, "the network broke");
    EXPECT_EQ(rank.log().of("swept").size(), kChunks);
    EXPECT_EQ(rank.log().of("out").size(), 3u);
    EXPECT_TRUE(rank.flow->wait_for_out(1));
    EXPECT_FALSE(rank.flow->wait_for_out(2));
    EXPECT_FALSE(rank.flow->wait_for_out(4));
  });
}

const std::vector<std::string> kAllEarly = {"early 0", "early 1", "early 2"};

TEST(Flow, BringsWhatIsReadyOnAllRanksBetweenTwoWorksInOrder) {
  on_ranks(3, [](OneRank& rank) {
    const std::uint32_t me = index_of(rank.ranks.rank());
    for (int work = 0; work < 3; ++work) {
      rank.flow->ready_early(1);
      EXPECT_TRUE(rank.log().wait_for("early 0"));
      EXPECT_FALSE(rank.log().has("early 1"));
      EXPECT_TRUE(rank.ranks.agree(0));
      if (me == 1) std::this_thread::sleep_for(milliseconds(20));
      rank.flow->ready_early(kEarly);
      EXPECT_TRUE(rank.log().wait_for("early 2"));
      EXPECT_EQ(rank.log().of("early"), kAllEarly);
      EXPECT_EQ(rank.run().how, How::whole);
      expect_whole(rank);
      EXPECT_TRUE(rank.ranks.agree(0));
      rank.log().clear();
      EXPECT_TRUE(rank.ranks.agree(0));
    }
  });
}

// What came early is known to the work; the rest is not waited for.
TEST(Flow, AWorkCallsOffWhatIsNotReadyAndKnowsWhatCame) {
  on_ranks(2, [](OneRank& rank) {
    std::size_t came = 99;
    rank.in = [&](std::size_t chunk) -> Result<> {
      if (chunk == 0) came = rank.flow->came_early();
      return {};
    };
    rank.flow->ready_early(rank.ranks.rank() == Rank{0} ? kEarly : 1);
    EXPECT_TRUE(rank.log().wait_for("early 0"));
    if (rank.ranks.rank() == Rank{1}) std::this_thread::sleep_for(milliseconds(20));
    EXPECT_EQ(rank.run().how, How::whole);
    EXPECT_EQ(came, 1u);
    EXPECT_EQ(rank.log().of("early").size(), 1u);
    expect_whole(rank);
  });
}

// What has looked at all of it needs none of the rest.
TEST(Flow, AWorkLeavesWhatCameEarlyToTheNextOrAllOfIt) {
  using Left = EarlyPieces::Left;
  for (const Left left : {Left::what_came, Left::all})
    on_ranks(2, [left](OneRank& rank) {
      rank.flow->ready_early(1);
      EXPECT_TRUE(rank.log().wait_for("early 0"));
      Flow::Work other = rank.work();
      other.leaves_early = left;
      rank.flow->begin(std::move(other));
      EXPECT_EQ(rank.flow->wait().how, How::whole);
      rank.flow->ready_early(2);
      EXPECT_TRUE(left == Left::all || rank.log().wait_for("early 1"));
      std::size_t came = 0;
      rank.in = [&](std::size_t chunk) -> Result<> {
        if (chunk == 0) came = rank.flow->came_early();
        return {};
      };
      EXPECT_EQ(rank.run().how, How::whole);
      EXPECT_EQ(rank.log().of("early").size(), left == Left::all ? 1u : 2u);
      EXPECT_EQ(came == 2, left == Left::what_came);
    });
}

TEST(Flow, AStoppedWorkKeepsWhatCameUntilItIsWhole) {
  on_ranks(2, [](OneRank& rank) {
    std::vector<std::size_t> came;
    bool failed = rank.ranks.rank() == Rank{0};
    rank.sweep = [&](std::size_t chunk) -> Result<> {
      came.push_back(rank.flow->came_early());
      if (chunk != 2 || std::exchange(failed, true)) return {};
      return Error{Code::io, "the disk is ill"};
    };
    rank.flow->ready_early(2);
    EXPECT_TRUE(rank.log().wait_for("early 1"));
    EXPECT_EQ(rank.run().how, How::stopped);
    rank.flow->ready_early(kEarly);
    std::this_thread::sleep_for(milliseconds(10));
    EXPECT_EQ(rank.go_on().how, How::whole);
    EXPECT_EQ(came, std::vector<std::size_t>(came.size(), 2));
    EXPECT_EQ(rank.log().of("early").size(), 2u);
  });
}

TEST(Flow, WhatCameEarlyAndIsDroppedComesAgain) {
  on_ranks(2, [](OneRank& rank) {
    rank.flow->ready_early(rank.ranks.rank() == Rank{0} ? kEarly : 2);
    EXPECT_TRUE(rank.log().wait_for("early 1"));
    rank.flow->drop_early();
    rank.log().clear();
    EXPECT_TRUE(rank.ranks.agree(0));
    rank.flow->ready_early(kEarly);
    EXPECT_TRUE(rank.log().wait_for("early 2"));
    EXPECT_EQ(rank.log().of("early"), kAllEarly);
  });
}

TEST(Flow, ARankThatIsNotReadyForManyTimesTheLimitIsNoSilence) {
  on_ranks(
      3,
      [](OneRank& rank) {
        if (rank.ranks.rank() == Rank{2}) std::this_thread::sleep_for(4 * kLimit);
        rank.flow->ready_early(kEarly);
        EXPECT_TRUE(rank.log().wait_for("early 2"));
        EXPECT_EQ(rank.run().how, How::whole);
      },
      kLimit);
}

TEST(Flow, WhatCannotComeEarlyEndsTheNextWork) {
  on_ranks(2, [](OneRank& rank) {
    rank.early = [](std::size_t piece) {
      return piece == 1 ? Error{Code::peer, "the network broke"} : Result<>();
    };
    rank.flow->ready_early(kEarly);
    EXPECT_TRUE(rank.log().wait_for("early 1"));
    const Flow::Ended ended = rank.run();
    EXPECT_EQ(ended.how, How::apart);
    EXPECT_FALSE(ended.begun);
    EXPECT_EQ(ended.why->message, "the network broke");
    EXPECT_FALSE(rank.log().has("sweep 0"));
  });
}

// Others may be far from ready.
TEST(Flow, IsDestroyedWithoutWaitingForOthersToBeReady) {
  on_ranks(2, [](OneRank& rank) {
    if (rank.ranks.rank() == Rank{0}) rank.flow->ready_early(1);
    const auto begin = Clock::now();
    rank.flow.reset();
    rank.own.reset();  // as an engine does
    EXPECT_LT(Clock::now() - begin, kNever / 2);
  });
}

}  // namespace
}  // namespace ebb::libmuon
