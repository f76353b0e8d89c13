// Steps in flight: what a trainer may do meanwhile, what ends them, and when weights are there.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <thread>

#include "ebb/libmuon/plan/chunks.h"
#include "tests/libmuon/support/failing_world.h"

namespace ebb::test {
namespace {

using libmuon::Communicator;

// Closed, it holds back what an engine's own communicator exchanges; open, it may slow it down.
class Gate {
 public:
  std::chrono::milliseconds delay{0};
  void set(bool open) {
    open_ = open;
    open_.notify_all();
  }
  void pass() const {
    open_.wait(false);
    std::this_thread::sleep_for(delay);
  }

 private:
  std::atomic<bool> open_ = true;
};

class Gated : public RanksBelow {
 public:
  template <typename Below>
  Gated(Below&& below, const Gate& gate) : RanksBelow(std::forward<Below>(below)), gate_(gate) {}
  Result<libswap::Event> begin_exchange(std::span<const libmuon::SendBuffer> sends,
                                        std::span<const libmuon::ReceiveBuffer> receives,
                                        std::span<const libswap::Event> after) override {
    gate_.pass();
    return RanksBelow::begin_exchange(sends, receives, after);
  }
  Result<std::unique_ptr<Communicator>> duplicate() override {
    EBB_TRY_ASSIGN(auto below, RanksBelow::duplicate());
    return std::unique_ptr<Communicator>(std::make_unique<Gated>(std::move(below), gate_));
  }

 private:
  const Gate& gate_;
};

// Two ranks whose exchanges pass a gate.
void behind_gates(FailingWorld& world,
                  const std::function<Result<>(RankEngine&, Communicator& ranks, Gate& gate)>& body,
                  libmuon::Placement placement = libmuon::Placement::owner) {
  std::array<Gate, 2> gates;
  expect_well(world.world.run([&](Communicator& real) -> Result<> {
    Gate& gate = gates[index_of(real.rank())];
    Gated ranks(real, gate);
    EBB_TRY_ASSIGN(auto rank,
                   RankEngine::open(world.world, ranks, config_with(kLittle, 3, {}, placement)));
    return body(rank, ranks, gate);
  }));
}

// A step of two ranks, begun and held before its first gradients, or updates, have travelled.
void in_flight(const std::function<Result<>(RankEngine&, Communicator&, Gate&)>& body) {
  for (const auto placement : kPlacements) {
    FailingWorld world;
    const auto begun_and_held = [&](RankEngine& rank, Communicator& ranks, Gate& gate) -> Result<> {
      EBB_TRY(rank.hand_in(1));
      gate.set(false);
      EBB_TRY_ASSIGN(const auto begun, rank.engine().begin_step({}));
      EXPECT_FALSE(begun.skipped);
      EXPECT_GT(begun.norm, 0);
      return body(rank, ranks, gate);
    };
    behind_gates(world, begun_and_held, placement);
  }
}

// Then nothing is written before it has travelled. On shards some weights need not travel: nobody
// may read them before they are ready.
bool on_owners(RankEngine& rank) {
  return rank.engine().state_plan().placement() == libmuon::Placement::owner;
}

TEST(StepInFlight, AnswersTheNormAndGoesOnBehindTheCallerWhoseRanksAreFree) {
  const auto wanted = weights_after(1);
  in_flight([&](RankEngine& rank, Communicator& ranks, Gate& gate) -> Result<> {
    EBB_TRY_ASSIGN(const std::int64_t all, ranks.agree(index_of(ranks.rank())));
    EXPECT_EQ(all, 0);
    if (on_owners(rank)) {
      EXPECT_NE(rank.flat_weights(), wanted);
    }
    EXPECT_EQ(rank.engine().step_count(), 0u);
    gate.set(true);
    EBB_TRY_ASSIGN(const auto result, rank.engine().wait_step());
    EXPECT_GT(result.norm, 0);
    EXPECT_EQ(rank.engine().step_count(), 1u);
    EXPECT_EQ(rank.flat_weights(), wanted);
    EXPECT_TRUE(rank.engine().wait_step()) << "as often as it is asked";
    return {};
  });
}

TEST(StepInFlight, WeightsAreReadyWhenTheyLieWhereTheyAreBoundAndNotBefore) {
  in_flight([](RankEngine& rank, Communicator&, Gate& gate) -> Result<> {
    std::vector<std::vector<float>> before;
    for (std::uint32_t param = 0; param < rank.weights().size(); ++param)
      noisy_weights(param, {0, rank.weights()[param].size()},
                    before.emplace_back(rank.weights()[param].size()));
    std::vector<std::vector<float>> ready(before.size());
    std::atomic<std::size_t> told = 0;
    std::vector<std::thread> threads;
    for (std::uint32_t param = 0; param < before.size(); ++param)
      threads.emplace_back([&, param] {
        EXPECT_TRUE(rank.engine().weights_ready(param));
        ready[param] = rank.weights()[param];
        ++told;
      });
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_EQ(told, 0u);
    if (on_owners(rank)) {
      EXPECT_EQ(rank.weights(), before);
    }
    gate.set(true);
    for (std::thread& thread : threads) thread.join();
    EBB_TRY(rank.engine().wait_step());
    EXPECT_EQ(ready, rank.weights());
    EXPECT_NE(ready, before);
    expect_error(rank.engine().weights_ready(99), Code::usage, "no such parameter");
    return {};
  });
}

// Each of these waits for its end; none is refused.
TEST(StepInFlight, EndsBeforeWhateverWouldChangeWhatItUses) {
  using Call = std::function<Result<>(RankEngine&)>;
  const std::vector<Call> calls = {
      [](RankEngine& rank) { return rank.engine().gradient_ready(0, rank.gradients()[0]); },
      [](RankEngine& rank) { return rank.engine().set_learning_rate(0, 0.5); },
      [](RankEngine& rank) { return rank.engine().set_blob("key", {}); },
      [](RankEngine& rank) { return rank.engine().bind_weights(0, rank.weights()[0]); },
      [](RankEngine& rank) { return rank.engine().install_weights(); },
      [](RankEngine& rank) -> Result<> {
        EBB_TRY(rank.commit());
        EXPECT_EQ(rank.engine().committed_step(), 1u);
        return {};
      },
      [](RankEngine& rank) -> Result<> {
        const auto again = rank.engine().begin_step({});
        expect_error(again, Code::usage, "gradients are used once");
        return {};
      },
      [](RankEngine& rank) -> Result<> {
        expect_error(rank.engine().continue_step(), Code::state, "nothing is stopped");
        return {};
      }};
  for (const Call& call : calls)
    in_flight([&](RankEngine& rank, Communicator&, Gate& gate) -> Result<> {
      std::thread opens([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
        gate.set(true);
      });
      const Result<> called = call(rank);
      opens.join();
      EXPECT_EQ(rank.engine().step_count(), 1u);
      return called;
    });
  in_flight([](RankEngine& rank, Communicator&, Gate& gate) -> Result<> {
    gate.set(true);
    const RankEngine gone = std::move(rank);
    return {};
  });
  in_flight([](RankEngine& rank, Communicator&, Gate& gate) -> Result<> {
    gate.set(true);
    EBB_TRY(rank.engine().abandon_step());
    EXPECT_EQ(rank.engine().step_count(), 0u);
    return rank.engine().weights_ready(0);
  });
}

TEST(StepInFlight, AStopIsToldToWhoeverWaitsAndTheStepGoesOn) {
  const auto wanted = weights_after(2);
  FailingWorld failing;
  expect_well(failing.world.run([&](Communicator& ranks) -> Result<> {
    EBB_TRY_ASSIGN(auto rank, RankEngine::open(failing.world, ranks, config_with(kLittle)));
    libmuon::Engine& engine = rank.engine();
    expect_error(engine.wait_step(), Code::state, "no step was begun");
    EBB_TRY(step_to(rank, 1));
    EBB_TRY(failing.fail_reads(ranks, 5));
    EBB_TRY(rank.hand_in(2));
    EBB_TRY(engine.begin_step({}));
    const Code mine = ranks.rank() == Rank{1} ? Code::io : Code::peer;
    expect_error(engine.weights_ready(10), mine, "those of the last chunk");
    expect_error(engine.wait_step(), mine, "wait_step");
    expect_error(engine.begin_step({}), Code::state, "the next step");
    EBB_TRY(failing.meanwhile(ranks, [&] { failing.faults->clear(); }));
    EBB_TRY(engine.continue_step());
    EBB_TRY(engine.wait_step());
    EBB_TRY(engine.weights_ready(10));
    if (ranks.rank() == Rank{1}) {
      EXPECT_EQ(rank.flat_weights(), wanted);
    }
    return {};
  }));
}

// A network so slow that chunks wait for it, and are swept while it brings the next ones.
// Network and disk are slow enough for both to be under way at once on a busy machine too.
TEST(StepInFlight, ExchangesBesideTheSweepAndCountsWhatNoSweepHid) {
  FailingWorld world;
  behind_gates(world, [&](RankEngine& rank, Communicator& ranks, Gate& gate) -> Result<> {
    EBB_TRY(step_to(rank, 1));
    gate.delay = std::chrono::milliseconds(3);
    EBB_TRY(world.meanwhile(ranks, [&] {
      world.faults->add({.on = libswap::FaultOn::read,
                         .count = libswap::FaultPlan::kForEver,
                         .kind = libswap::FaultKind::late,
                         .delay = std::chrono::milliseconds(10)});
    }));
    const libmuon::EngineStats before = rank.engine().stats();
    EBB_TRY(step_to(rank, 2));
    const libmuon::EngineStats after = rank.engine().stats();
    const double all = after.exchange_s - before.exchange_s;
    const double exposed = after.exposed_exchange_s - before.exposed_exchange_s;
    EXPECT_GT(exposed, 0);
    EXPECT_LT(exposed, all);
    EXPECT_LE(all, after.step_s - before.step_s);
    return {};
  });
}

TEST(StepInFlight, ASkippedStepIsOverAtOnce) {
  FailingWorld world;
  expect_well(world.world.run([&](Communicator& ranks) -> Result<> {
    EBB_TRY_ASSIGN(auto rank, RankEngine::open(world.world, ranks, config_with(kLittle)));
    EBB_TRY(rank.hand_in(1, 1e30f));
    EBB_TRY_ASSIGN(const auto begun, rank.engine().begin_step({.inv_scale = 1e30}));
    EXPECT_TRUE(begun.skipped);
    EBB_TRY(rank.engine().weights_ready(0));
    EBB_TRY_ASSIGN(const auto ended, rank.engine().wait_step());
    EXPECT_TRUE(ended.skipped);
    return step_to(rank, 1);
  }));
}

// How many chunks of its schedule a rank has swept that read so many tiles of it, none resident.
std::size_t chunks_swept(const libmuon::Engine& engine, std::uint64_t bytes) {
  const libmuon::Chunks chunks(engine.state_plan(), config_with(kLittle).chunk_bytes);
  std::size_t swept = 0;
  while (swept < chunks.count() && chunks.visits_end(swept) * 4096 <= bytes) ++swept;
  return swept;
}

// The disk of one rank fails while the other sweeps on: its own chunk and, where it is quick, the
// next.
TEST(ContinueStep, GivesTheSameBitsWhereTheOtherRankIsAChunkAhead) {
  const auto wanted = weights_after(3);
  int ahead = 0, stopped = 0;
  for (std::uint64_t at = 0; at < 24; ++at) {
    FailingWorld failing;
    std::array<std::size_t, 2> swept{};
    expect_well(failing.world.run([&](Communicator& ranks) -> Result<> {
      EBB_TRY_ASSIGN(auto rank, RankEngine::open(failing.world, ranks, config_with(kLittle)));
      EBB_TRY(step_to(rank, 1));
      EBB_TRY(failing.fail_reads(ranks, at));
      const std::uint64_t before = rank.engine().stats().read_bytes;
      EBB_TRY(rank.hand_in(2));
      const auto cut = rank.step();
      swept[index_of(ranks.rank())] =
          chunks_swept(rank.engine(), rank.engine().stats().read_bytes - before);
      EBB_TRY_ASSIGN(const bool went_on, failing.mend(ranks, rank, cut));
      if (went_on && ranks.rank() == Rank{0}) ++stopped;
      EBB_TRY(step_to(rank, 3));
      if (ranks.rank() == Rank{1}) {
        EXPECT_EQ(rank.flat_weights(), wanted) << "read " << at;
      }
      return {};
    }));
    EXPECT_LE(swept[0], swept[1] + 2) << "read " << at;
    ahead += swept[0] > swept[1] + 1 ? 1 : 0;
  }
  EXPECT_GE(stopped, 5);
  EXPECT_GE(ahead, 1) << "no rank ever was";
}

}  // namespace
}  // namespace ebb::test
