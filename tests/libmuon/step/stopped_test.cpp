// Steps that an I/O error cut, on two ranks: going on with them gives the bits of an undisturbed
// step, wherever it was cut, and going back the last generation's.
#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "tests/libmuon/support/failing_world.h"

namespace ebb::test {
namespace {

using libmuon::Communicator;
using libswap::FaultOn;
using libswap::FaultPlan;

std::string file_of(std::uint32_t rank) { return compose("rank-0000{}", rank); }

// Steps to `last`; a step that a failing disk stops is continued once the disk is well. How many
// were.
Result<std::uint64_t> step_through(FailingWorld& failing, Communicator& ranks, RankEngine& rank,
                                   std::uint64_t last) {
  std::uint64_t stopped = 0;
  while (rank.engine().step_count() < last) {
    EBB_TRY(rank.hand_in(rank.engine().step_count() + 1));
    auto stepped = rank.step();
    if (stepped) continue;
    EXPECT_TRUE(stepped.error().code == Code::io || stepped.error().code == Code::peer)
        << stepped.error().message;
    ++stopped;
    EBB_TRY(failing.meanwhile(ranks, [&] { failing.faults->clear(); }));
    stepped = rank.engine().continue_step();
    if (!stepped) return std::move(stepped).error();
    EXPECT_FALSE((*stepped).skipped);
    EXPECT_GT((*stepped).norm, 0);
  }
  return stopped;
}

struct Cut {
  FaultOn on = FaultOn::read;
  std::uint32_t rank = 0;
  std::uint64_t at = 0;  // the operation that fails, and all behind it
  std::uint64_t budget = kLittle;
  bool snapshot = false;  // one is under way meanwhile
  libmuon::Placement placement = libmuon::Placement::owner;
};

libmuon::EngineConfig config_of(const Cut& cut) {
  return config_with(cut.budget, 3, {}, cut.placement);
}

// Whether a step was stopped at all: the operation may lie behind the last one.
bool goes_on_with_the_same_bits(const Cut& cut, const std::vector<float>& wanted) {
  const std::string what =
      compose("{} {} of rank {}", cut.on == FaultOn::read ? "read" : "write", cut.at, cut.rank);
  FailingWorld failing;
  std::uint64_t stopped = 0;
  expect_well(failing.world.run([&](Communicator& ranks) -> Result<> {
    EBB_TRY_ASSIGN(auto rank, RankEngine::open(failing.world, ranks, config_of(cut)));
    EBB_TRY(step_to(rank, 1));
    EBB_TRY(failing.meanwhile(ranks, [&] {
      failing.faults->add({.on = cut.on,
                           .at = cut.at,
                           .count = FaultPlan::kForEver,
                           .path_part = file_of(cut.rank)});
    }));
    if (cut.snapshot) {
      EBB_TRY(rank.engine().snapshot());
    }
    EBB_TRY_ASSIGN(const std::uint64_t mine, step_through(failing, ranks, rank, 3));
    EBB_TRY(failing.meanwhile(ranks, [&] { failing.faults->clear(); }));
    EXPECT_EQ(rank.engine().step_count(), 3u) << what;
    // The snapshot that the fault hit may be abandoned; the next one is not.
    if (cut.snapshot) {
      static_cast<void>(rank.engine().wait_snapshot().has_value());
    }
    EBB_TRY(rank.commit());
    EXPECT_EQ(rank.engine().committed_step(), 3u) << what;
    EBB_TRY(step_to(rank, 4));
    if (ranks.rank() == Rank{1}) {
      EXPECT_EQ(rank.flat_weights(), wanted) << what;
      stopped = mine;
    }
    return {};
  }));
  failing.world.reopen(2);
  expect_well(failing.world.run([&](Communicator& ranks) -> Result<> {
    EBB_TRY_ASSIGN(auto rank, RankEngine::open(failing.world, ranks, config_of(cut)));
    EXPECT_EQ(rank.engine().origin(), "resumed the store at step 3") << what;
    EBB_TRY(step_to(rank, 4));
    if (ranks.rank() == Rank{1}) {
      EXPECT_EQ(rank.flat_weights(), wanted) << what;
    }
    return {};
  }));
  return stopped > 0;
}

// From the first operation to beyond the last.
void expect_to_go_on_everywhere(Cut cut, std::uint64_t least) {
  const auto wanted = weights_after(4);
  std::uint64_t stopped = 0;
  while (goes_on_with_the_same_bits(cut, wanted) && !testing::Test::HasFailure()) {
    ++stopped;
    ++cut.at;
  }
  EXPECT_GE(stopped, least);
}

TEST(ContinueStep, GivesTheSameBitsWhicheverReadFailed) {
  for (const auto placement : kPlacements)
    for (const std::uint32_t rank : {0u, 1u})
      expect_to_go_on_everywhere({.on = FaultOn::read, .rank = rank, .placement = placement}, 10);
}

TEST(ContinueStep, GivesTheSameBitsWhicheverWriteFailed) {
  for (const auto placement : kPlacements)
    for (const std::uint32_t rank : {0u, 1u})
      expect_to_go_on_everywhere({.on = FaultOn::write, .rank = rank, .placement = placement}, 10);
}

// Writes of the cut and of the sweep fail, whichever come; some belong to the step, some cost the
// snapshot.
TEST(ContinueStep, GivesTheSameBitsBesideASnapshotThatFails) {
  const auto wanted = weights_after(4);
  for (const std::uint32_t rank : {0u, 1u})
    for (std::uint64_t at = 0; at < 16; ++at)
      goes_on_with_the_same_bits({.on = FaultOn::write,
                                  .rank = rank,
                                  .at = at,
                                  .budget = kHalf,
                                  .snapshot = true,
                                  .placement = kPlacements[at % 2]},
                                 wanted);
}

TEST(ContinueStep, IsNotNeededWhereTheDiskIsWellAgainWithinTheRetries) {
  const auto wanted = weights_after(3);
  for (const FaultOn on : {FaultOn::read, FaultOn::write})
    for (const std::uint64_t budget : {kLittle, kHalf}) {
      FailingWorld failing;
      expect_well(failing.world.run([&](Communicator& ranks) -> Result<> {
        EBB_TRY_ASSIGN(auto rank, RankEngine::open(failing.world, ranks, config_with(budget)));
        EBB_TRY(step_to(rank, 1));
        EBB_TRY(failing.meanwhile(ranks, [&] {
          failing.faults->add({.on = on, .at = 2, .count = 2, .path_part = "-00001.data"});
        }));
        EBB_TRY(rank.engine().snapshot());
        EBB_TRY(step_to(rank, 3));
        EBB_TRY(rank.engine().wait_snapshot());
        EXPECT_EQ(rank.engine().committed_step(), 1u);
        if (ranks.rank() == Rank{1}) {
          EXPECT_EQ(rank.flat_weights(), wanted);
          EXPECT_EQ(rank.engine().stats().retries, 2u);
        }
        return {};
      }));
    }
}

// A world in which rank 1's disk stops every step from the second on.
Result<RankEngine> stopped_in_step_3(FailingWorld& failing, Communicator& ranks,
                                     libmuon::Placement placement = libmuon::Placement::owner) {
  EBB_TRY_ASSIGN(auto rank,
                 RankEngine::open(failing.world, ranks, config_with(kLittle, 3, {}, placement)));
  EBB_TRY(step_to(rank, 2));
  EBB_TRY(rank.commit());
  EBB_TRY(failing.meanwhile(ranks, [&] {
    failing.faults->add(
        {.on = FaultOn::write, .count = FaultPlan::kForEver, .path_part = file_of(1)});
  }));
  EBB_TRY(rank.hand_in(3));
  expect_error(rank.step(), ranks.rank() == Rank{1} ? Code::io : Code::peer, "step 3");
  return rank;
}

TEST(StoppedStep, AnswersNothingButToGoOnOrBack) {
  FailingWorld failing;
  expect_well(failing.world.run([&](Communicator& ranks) -> Result<> {
    EBB_TRY_ASSIGN(auto rank, stopped_in_step_3(failing, ranks));
    libmuon::Engine& engine = rank.engine();
    const auto refuses = [](const auto& answer, const std::string& what) {
      expect_error(answer, Code::state, what);
      EXPECT_NE(answer.error().message.find("in the middle of step 3"), std::string::npos) << what;
      EXPECT_NE(answer.error().hint.find("continue_step()"), std::string::npos) << what;
    };
    refuses(rank.step(), "step");
    refuses(engine.snapshot(), "snapshot");
    refuses(engine.wait_snapshot(), "wait_snapshot");
    refuses(engine.open_export(), "open_export");
    refuses(engine.gradient_ready(0, rank.gradients()[0]), "gradient_ready");
    refuses(engine.bind_weights(0, rank.weights()[0]), "bind_weights");
    refuses(engine.set_learning_rate(0, 1), "set_learning_rate");
    refuses(engine.set_blob("key", {}), "set_blob");
    refuses(engine.install_weights(), "install_weights");
    EXPECT_EQ(engine.step_count(), 2u);
    const auto again = engine.continue_step();
    expect_error(again, ranks.rank() == Rank{1} ? Code::io : Code::peer, "the disk is still ill");
    EBB_TRY(failing.meanwhile(ranks, [&] { failing.faults->clear(); }));
    EBB_TRY(engine.continue_step());
    expect_error(engine.continue_step(), Code::state, "nothing is stopped");
    EBB_TRY(engine.set_blob("key", {}));
    return {};
  }));
}

TEST(AbandonStep, GoesBackToTheLastGenerationInTheSameProcess) {
  const auto at_2 = weights_after(2), wanted = weights_after(5);
  for (const unsigned number : {0u, 1u, 2u, 3u}) {
    const bool mended = number % 2 == 1;
    FailingWorld failing;
    expect_well(failing.world.run([&](Communicator& ranks) -> Result<> {
      EBB_TRY_ASSIGN(auto rank, stopped_in_step_3(failing, ranks, kPlacements[number / 2]));
      if (mended) {
        EBB_TRY(failing.meanwhile(ranks, [&] { failing.faults->clear(); }));
        EBB_TRY(rank.engine().continue_step());
      }
      EBB_TRY(failing.meanwhile(ranks, [&] { failing.faults->clear(); }));
      EBB_TRY(rank.engine().abandon_step());
      EXPECT_EQ(rank.engine().step_count(), 2u);
      if (ranks.rank() == Rank{1}) {
        EXPECT_EQ(rank.flat_weights(), at_2);
      }
      EBB_TRY(step_to(rank, 5));
      EBB_TRY(rank.commit());
      if (ranks.rank() == Rank{1}) {
        EXPECT_EQ(rank.flat_weights(), wanted);
      }
      return {};
    }));
  }
}

TEST(AbandonStep, IsTheWayBackFromADiskThatDidNotKeepItsPromise) {
  const auto wanted = weights_after(5);
  FailingWorld failing;
  expect_well(failing.world.run([&](Communicator& ranks) -> Result<> {
    EBB_TRY_ASSIGN(auto rank, RankEngine::open(failing.world, ranks, config_with(kLittle)));
    EBB_TRY(step_to(rank, 2));
    EBB_TRY(rank.commit());
    EBB_TRY(step_to(rank, 3));
    EBB_TRY(failing.meanwhile(
        ranks, [&] { failing.faults->add({.on = FaultOn::sync, .path_part = file_of(0)}); }));
    EBB_TRY(rank.engine().snapshot());
    EXPECT_FALSE(rank.engine().wait_snapshot());
    EBB_TRY(rank.hand_in(4));
    expect_error(rank.step(), Code::state, "step");
    EBB_TRY(rank.engine().abandon_step());
    EXPECT_EQ(rank.engine().step_count(), 2u);
    EBB_TRY(step_to(rank, 5));
    EBB_TRY(rank.commit());
    if (ranks.rank() == Rank{1}) {
      EXPECT_EQ(rank.flat_weights(), wanted);
    }
    return {};
  }));
}

// A tile's last write fails when its step has been answered: no step will be continued.
TEST(WrittenBehind, WhatFailedBehindTheLastStepIsWrittenForTheNextSnapshot) {
  for (std::uint64_t at = 0; at < 24; ++at) {
    FailingWorld failing;
    expect_well(failing.world.run([&](Communicator& ranks) -> Result<> {
      EBB_TRY_ASSIGN(auto rank, RankEngine::open(failing.world, ranks, config_with(kHalf)));
      EBB_TRY(step_to(rank, 1));
      EBB_TRY(failing.meanwhile(ranks, [&] {
        failing.faults->add(
            {.on = FaultOn::write, .at = at, .count = 1000, .path_part = file_of(1)});
      }));
      EBB_TRY(rank.hand_in(2));
      const auto stepped = rank.step();
      static_cast<void>(rank.commit().has_value());
      EBB_TRY(failing.meanwhile(ranks, [&] { failing.faults->clear(); }));
      if (!stepped) EBB_TRY(rank.engine().continue_step());
      const auto committed = rank.commit();
      EXPECT_TRUE(committed) << at << ": " << committed.error().message;
      EXPECT_EQ(rank.engine().committed_step(), 2u) << at;
      return {};
    }));
  }
}

TEST(AbandonStep, GoesBackBehindAGenerationThatTheDiskDidNotKeep) {
  FailingWorld failing;
  expect_well(failing.world.run([&](Communicator& ranks) -> Result<> {
    EBB_TRY_ASSIGN(auto rank, RankEngine::open(failing.world, ranks, config_with(kLittle)));
    EBB_TRY(step_to(rank, 2));
    EBB_TRY(rank.commit());
    EBB_TRY(step_to(rank, 3));
    EBB_TRY(failing.meanwhile(
        ranks, [&] { failing.faults->add({.on = FaultOn::sync, .path_part = file_of(0)}); }));
    EBB_TRY(rank.engine().snapshot());
    EBB_TRY(rank.engine().abandon_step());
    EXPECT_EQ(rank.engine().step_count(), 2u);
    EBB_TRY(step_to(rank, 4));
    return rank.commit().has_value() ? Result<>() : Error{Code::state, "it cannot be committed"};
  }));
}

TEST(AbandonStep, WaitsForExports) {
  FailingWorld failing;
  expect_well(failing.world.run([&](Communicator& ranks) -> Result<> {
    EBB_TRY_ASSIGN(auto rank, RankEngine::open(failing.world, ranks, config_with(kLittle)));
    EBB_TRY(step_to(rank, 1));
    {
      EBB_TRY_ASSIGN(const auto pinned, rank.engine().open_export());
      expect_error(rank.engine().abandon_step(), Code::busy, "an export is open");
    }
    EBB_TRY(step_to(rank, 2));
    EBB_TRY(rank.engine().abandon_step());
    EXPECT_EQ(rank.engine().step_count(), 0u);
    return step_to(rank, 1);
  }));
}

// Agreeing fails on all ranks, from when a test says so.
class BrokenNetwork : public RanksBelow {
 public:
  struct State {
    bool breaks = false, broken = false, failed = false;
  };
  template <typename Below>
  BrokenNetwork(Below&& below, std::shared_ptr<State> state)
      : RanksBelow(std::forward<Below>(below)), state_(std::move(state)) {}
  Result<std::int64_t> agree(std::int64_t mine) override {
    EBB_TRY_ASSIGN(const std::int64_t all, RanksBelow::agree(mine));
    if (state_->broken && !std::exchange(state_->failed, true))
      return Error{Code::peer, "the network broke"};
    return all;
  }
  Result<libswap::Event> begin_exchange(std::span<const libmuon::SendBuffer> sends,
                                        std::span<const libmuon::ReceiveBuffer> receives,
                                        std::span<const libswap::Event> after) override {
    state_->broken = state_->broken || state_->breaks;
    return RanksBelow::begin_exchange(sends, receives, after);
  }
  Result<std::unique_ptr<Communicator>> duplicate() override {
    EBB_TRY_ASSIGN(auto below, RanksBelow::duplicate());
    return std::unique_ptr<Communicator>(std::make_unique<BrokenNetwork>(std::move(below), state_));
  }

 private:
  std::shared_ptr<State> state_;
};

void expect_to_be_reopened(libmuon::Placement placement) {
  FailingWorld failing;
  expect_well(failing.world.run([&](Communicator& real) -> Result<> {
    const auto network = std::make_shared<BrokenNetwork::State>();
    BrokenNetwork ranks(real, network);
    EBB_TRY_ASSIGN(auto rank,
                   RankEngine::open(failing.world, ranks, config_with(kLittle, 3, {}, placement)));
    EBB_TRY(step_to(rank, 1));
    EBB_TRY(rank.hand_in(2));
    network->breaks = true;
    expect_error(rank.step(), Code::peer, "step");
    expect_error(rank.step(), Code::state, "step again");
    const auto refused = rank.engine().continue_step();
    expect_error(refused, Code::state, "continue_step");
    EXPECT_NE(refused.error().hint.find("open the store again"), std::string::npos);
    expect_error(rank.engine().abandon_step(), Code::state, "abandon_step");
    return {};
  }));
}

TEST(StoppedStep, MustBeReopenedWhereTheRanksCouldNotAgree) {
  for (const auto placement : kPlacements) expect_to_be_reopened(placement);
}

}  // namespace
}  // namespace ebb::test
