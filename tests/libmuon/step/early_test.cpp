// Gradients that travel before the step: the same bits, earlier.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <numeric>
#include <thread>

#include "tests/libmuon/support/failing_world.h"

namespace ebb::test {
namespace {

using libmuon::Communicator;

constexpr std::uint64_t kRoom = 1u << 20;

libmuon::EngineConfig early_config(std::uint64_t room = kRoom) {
  libmuon::EngineConfig config = config_with(kLittle);
  config.early_gradient_bytes = room;
  config.budget_bytes = kLittle;
  add_what_tiles_need_beside(config);
  return config;
}

// Counts what all its duplicates send.
class Counted : public RanksBelow {
 public:
  template <typename Below>
  Counted(Below&& below, std::atomic<std::uint64_t>& sent)
      : RanksBelow(std::forward<Below>(below)), sent_(sent) {}
  Result<libswap::Event> begin_exchange(std::span<const libmuon::SendBuffer> sends,
                                        std::span<const libmuon::ReceiveBuffer> receives,
                                        std::span<const libswap::Event> after) override {
    EBB_TRY_ASSIGN(const auto through, RanksBelow::begin_exchange(sends, receives, after));
    for (const auto& send : sends) sent_ += send.data.size();
    return through;
  }
  Result<std::unique_ptr<Communicator>> duplicate() override {
    EBB_TRY_ASSIGN(auto below, RanksBelow::duplicate());
    return std::unique_ptr<Communicator>(std::make_unique<Counted>(std::move(below), sent_));
  }

 private:
  std::atomic<std::uint64_t>& sent_;
};

bool comes(const std::atomic<std::uint64_t>& sent, std::uint64_t bytes) {
  for (int tries = 0; tries < 2000 && sent < bytes; ++tries)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  return sent >= bytes;
}

TEST(EarlyGradients, TravelWhenTheyAreThereOnAllRanksInWhateverOrderTheyCome) {
  const auto wanted = weights_after(3);
  FailingWorld world;
  std::array<std::atomic<std::uint64_t>, 2> sent{};
  expect_well(world.world.run([&](Communicator& real) -> Result<> {
    const std::uint32_t me = index_of(real.rank());
    Counted ranks(real, sent[me]);
    EBB_TRY_ASSIGN(auto rank, RankEngine::open(world.world, ranks, early_config()));
    for (std::uint64_t step = 1; step <= 3; ++step) {
      rank.make_gradients(step);
      const std::uint64_t before = sent[me];
      std::vector<std::uint32_t> order(rank.gradients().size());
      std::iota(order.begin(), order.end(), 0u);
      std::rotate(order.begin(), order.begin() + 3 * (me + 1), order.end());
      std::vector<std::thread> threads;
      for (const std::uint32_t param : order)
        threads.emplace_back([&, param] {
          EXPECT_TRUE(rank.engine().gradient_ready(param, rank.gradients()[param]));
        });
      for (std::thread& thread : threads) thread.join();
      EXPECT_TRUE(comes(sent[me], before + 1)) << "no gradient travelled before the step";
      EBB_TRY(rank.step());
    }
    if (me == 1) {
      EXPECT_EQ(rank.flat_weights(), wanted);
    }
    return {};
  }));
}

// Nothing travels while a gradient of the piece is missing anywhere.
TEST(EarlyGradients, DoNotTravelBeforeTheyAreThere) {
  FailingWorld world;
  std::array<std::atomic<std::uint64_t>, 2> sent{};
  expect_well(world.world.run([&](Communicator& real) -> Result<> {
    const std::uint32_t me = index_of(real.rank());
    Counted ranks(real, sent[me]);
    libmuon::EngineConfig config = early_config();
    config.chunk_bytes = 1u << 28;  // one chunk, all of it early
    EBB_TRY_ASSIGN(auto rank, RankEngine::open(world.world, ranks, config));
    const std::uint64_t before = sent[me];
    rank.make_gradients(1);
    const auto hand_in = [&](std::uint32_t first, std::uint32_t last) -> Result<> {
      for (std::uint32_t param = first; param < last; ++param)
        EBB_TRY(rank.engine().gradient_ready(param, rank.gradients()[param]));
      return {};
    };
    const auto all = static_cast<std::uint32_t>(rank.gradients().size());
    const std::uint32_t held_back = me == 0 ? all : 5;
    EBB_TRY(hand_in(0, held_back));
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    EXPECT_EQ(sent[me], before);
    EBB_TRY(ranks.agree(0));
    EBB_TRY(hand_in(held_back, all));
    EXPECT_TRUE(comes(sent[me], before + 1));
    EBB_TRY(rank.step());
    return {};
  }));
}

// What came for a step that is not made is not used for the next.
TEST(EarlyGradients, OfASkippedOrAbandonedStepAreForgotten) {
  const auto wanted = weights_after(3);
  FailingWorld world;
  expect_well(world.world.run([&](Communicator& ranks) -> Result<> {
    EBB_TRY_ASSIGN(auto rank, RankEngine::open(world.world, ranks, early_config()));
    EBB_TRY(step_to(rank, 1));
    EBB_TRY(rank.commit());
    EBB_TRY(rank.hand_in(1, 1e30f));
    EBB_TRY_ASSIGN(const auto skipped, rank.step({.inv_scale = 1e30}));
    EXPECT_TRUE(skipped.skipped);
    EBB_TRY(step_to(rank, 2));
    rank.make_gradients(7);  // some of a step that never comes
    for (const std::uint32_t param : {10u, 9u, 7u, 6u})
      EBB_TRY(rank.engine().gradient_ready(param, rank.gradients()[param]));
    EBB_TRY(rank.engine().abandon_step());
    EXPECT_EQ(rank.engine().step_count(), 1u);
    EBB_TRY(step_to(rank, 3));
    if (ranks.rank() == Rank{1}) {
      EXPECT_EQ(rank.flat_weights(), wanted);
    }
    return {};
  }));
}

TEST(EarlyGradients, OutliveWhatTheTrainerDoesBetweenTheirArrivalAndTheStep) {
  const auto wanted = weights_after(2);
  FailingWorld world;
  expect_well(world.world.run([&](Communicator& ranks) -> Result<> {
    EBB_TRY_ASSIGN(auto rank, RankEngine::open(world.world, ranks, early_config()));
    EBB_TRY(step_to(rank, 1));
    rank.make_gradients(2);
    const auto all = static_cast<std::uint32_t>(rank.gradients().size());
    for (std::uint32_t param = all; param-- > 0;) {
      if (param == 4) {
        EBB_TRY(rank.engine().install_weights());
        EBB_TRY(rank.commit());
        expect_error(rank.engine().begin_step({}), Code::usage, "gradients are missing");
      }
      EBB_TRY(rank.engine().gradient_ready(param, rank.gradients()[param]));
    }
    EBB_TRY(rank.step());
    if (ranks.rank() == Rank{1}) {
      EXPECT_EQ(rank.flat_weights(), wanted);
    }
    return {};
  }));
}

TEST(EarlyGradients, TheirRoomIsPlannedAndTheSameOnAllRanks) {
  const libmuon::EngineConfig none = early_config(0), some = early_config();
  const auto least = libmuon::Engine::plan(none, Rank{0});
  const auto most = libmuon::Engine::plan(some, Rank{0});
  ASSERT_TRUE(least && most);
  EXPECT_EQ((*least).early_chunks, 0u);
  EXPECT_EQ((*most).early_chunks, (*most).chunks);
  EXPECT_LE((*most).staging_bytes, (*least).staging_bytes + kRoom);
  FailingWorld world;
  for (const auto& answer : world.world.run([&](Communicator& ranks) -> Result<> {
         EBB_TRY(RankEngine::open(world.world, ranks, early_config(1000 * index_of(ranks.rank()))));
         return {};
       }))
    expect_error(answer, Code::usage, "the room for early gradients");
}

}  // namespace
}  // namespace ebb::test
