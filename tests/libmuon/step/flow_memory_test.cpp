// Threads of a step that find no memory in the middle of a work.
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "ebb/libmuon/step/flow.h"
#include "tests/support/no_memory.h"

namespace ebb::libmuon {
namespace {

constexpr std::size_t kChunksWithout = 4;

// What `work` makes of each of two ranks; the second is the unlucky one.
struct Unlucky {
  Communicator& ranks;
  Communicator& own;  // the flow's
  Flow& flow;
  bool unlucky = false;
};
void on_two_ranks(const std::function<void(const Unlucky&)>& body) {
  auto ranks = make_thread_ranks(2, kPeerLimit);
  std::vector<std::thread> threads;
  for (auto& rank : ranks)
    threads.emplace_back([&] {
      const auto own = *rank->duplicate();
      const auto flow = *Flow::start(*own, {});
      body({*rank, *own, *flow, rank->rank() == Rank{1}});
    });
  for (std::thread& thread : threads) thread.join();
}

Flow::Ended run_work(Flow& flow, const std::function<void(std::size_t)>& sweep,
                     const std::function<Result<>(std::size_t)>& in,
                     const std::function<Result<>(std::size_t)>& out) {
  const auto all = [&]() -> Result<> {
    for (std::size_t c = flow.next_to_sweep(); flow.may_sweep(c); ++c) {
      sweep(c);
      flow.swept();
    }
    return {};
  };
  flow.begin({.chunks = kChunksWithout, .in = in, .out = out, .sweep = all, .doing = "trying"});
  return flow.wait();
}

Result<> no_travel(std::size_t) { return {}; }

TEST(FlowWithoutMemory, ASweepIsLostOnItsRankAndInvalidOnTheOthers) {
  for (std::size_t at = 0; at < kChunksWithout; ++at)
    on_two_ranks([&](const Unlucky& rank) {
      const auto sweep = [&](std::size_t chunk) {
        if (rank.unlucky && chunk == at) test::find_no_memory();
      };
      const Flow::Ended ended = run_work(rank.flow, sweep, no_travel, no_travel);
      EXPECT_EQ(ended.how, rank.unlucky ? Flow::Ended::How::lost : Flow::Ended::How::invalid);
      EXPECT_EQ(ended.why->code, rank.unlucky ? Code::no_memory : Code::peer);
      EXPECT_EQ(rank.flow.wait_for_out(at).error().code, ended.why->code);
      EXPECT_TRUE(rank.ranks.agree(0)) << "they still meet";
    });
}

TEST(FlowWithoutMemory, AMeetingIsLostAndKeepsNobodyWaiting) {
  for (const bool going_out : {false, true})
    on_two_ranks([&](const Unlucky& rank) {
      const auto meets = [&](std::size_t chunk) -> Result<> {
        if (rank.unlucky && chunk == 1) test::find_no_memory();
        EBB_TRY(rank.own.agree(0));
        return {};
      };
      const auto idle = [](std::size_t) {};
      const Flow::Ended ended = going_out ? run_work(rank.flow, idle, no_travel, meets)
                                          : run_work(rank.flow, idle, meets, no_travel);
      EXPECT_EQ(ended.how, rank.unlucky ? Flow::Ended::How::lost : Flow::Ended::How::apart);
      EXPECT_EQ(ended.why->code, rank.unlucky ? Code::no_memory : Code::peer);
    });
}

}  // namespace
}  // namespace ebb::libmuon
