// What an engine has of groups whose trainer keeps the masters: no master, less to page, and
// nothing to be handed out but by a step.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>

#include "ebb/formats/describe.h"
#include "ebb/libswap/queue/io_queue.h"
#include "ebb/libswap/tree/file_tree.h"
#include "tests/libmuon/support/failing_world.h"
#include "tests/libmuon/support/keeping_trainer.h"

namespace ebb::test {
namespace {

using libmuon::Communicator;
using libmuon::Engine;
using libmuon::EngineConfig;
using libmuon::MuonSpec;
using libmuon::Placement;

EngineConfig config_for(const Training& setup) { return config_of(setup, setup.model); }

// Both groups of matrices, on two ranks, a few tiles in memory, several chunks.
Training on_two_ranks(Placement placement) {
  return {.ranks = 2,
          .gradients = Policy::zero3,
          .weights = Policy::zero3,
          .placement = placement,
          .chunk_bytes = 20000,
          .budget_bytes = kLittle,
          .model = keeping_model({0, 2})};
}

// No step that is skipped, no installation, and nothing of what is untouched.
TEST(OutUpdateState, NothingButAStepHandsOutUpdates) {
  for (const auto placement : kPlacements) {
    FailingWorld world;
    const Training setup = on_two_ranks(placement);
    expect_well(world.world.run([&](Communicator& ranks) -> Result<> {
      EBB_TRY_ASSIGN(auto trainer, KeepingTrainer::open(world.world, ranks, config_for(setup)));
      for (std::uint32_t param = 0; param < setup.model.params.size(); ++param)
        if (out_of(setup.model, param) == libmuon::Out::update) {
          const auto updates = trainer.handed_out()[param];
          EXPECT_TRUE(std::ranges::all_of(updates, [](float u) { return u == 0; })) << param;
        }
      EBB_TRY(trainer.train(1));
      const auto before = trainer.handed_out();
      EBB_TRY(trainer.hand_in(1e30f));
      EBB_TRY_ASSIGN(const auto skipped, trainer.step({.inv_scale = 1e30}));
      EXPECT_TRUE(skipped.skipped);
      EXPECT_EQ(trainer.handed_out(), before);
      EBB_TRY(trainer.engine().install_weights());
      EXPECT_EQ(trainer.handed_out(), before);
      constexpr std::uint32_t kUntouched = 5;
      EBB_TRY(trainer.hand_in_but(kUntouched));
      EBB_TRY(trainer.step());
      const auto behind = trainer.handed_out();
      for (std::uint32_t param : {2u, 5u, 9u})
        EXPECT_EQ(behind[param] == before[param], param == kUntouched) << param;
      return {};
    }));
  }
}

// Momentum is all that a store has of them; masters that are missing are not made up.
TEST(OutUpdateState, AStoreGoesFromTheEnginesMastersToTheTrainersAndNotBack) {
  const TempDir directory;
  World world(disk(), directory.path(), 2);
  const auto open_as = [&](const std::vector<std::uint32_t>& updates, std::uint32_t ranks_now,
                           const std::string& origin) {
    world.reopen(ranks_now);
    const Training setup{.ranks = ranks_now, .model = keeping_model(updates)};
    return world.run([&](Communicator& ranks) -> Result<> {
      EBB_TRY_ASSIGN(auto trainer, KeepingTrainer::open(world, ranks, config_for(setup)));
      EXPECT_EQ(trainer.engine().origin(), origin);
      EBB_TRY(trainer.train(1));
      return trainer.commit();
    });
  };
  expect_well(open_as({}, 2, "created at step 0"));
  expect_well(open_as({3}, 2,
                      "transferred the store of 2 ranks at step 1 (group 3: out is update, was "
                      "weights; masters left to the trainer: third.up, third.down)"));
  expect_well(open_as({3}, 2, "resumed the store at step 2"));
  expect_well(open_as({3}, 3, "transferred the store of 2 ranks at step 3"));
  for (const auto& answer : open_as({}, 3, "")) {
    ASSERT_FALSE(answer);
    if (answer.error().code == Code::peer) continue;
    EXPECT_EQ(answer.error().code, Code::incomplete);
    EXPECT_NE(answer.error().message.find("no master of third.up"), std::string::npos)
        << answer.error().message;
  }
}

// Its masters are the trainer's to load; its momentum is taken.
TEST(OutUpdateState, BeginsFromACheckpointThatHasMasters) {
  const TempDir whole, directory;
  {
    World world(disk(), whole.path(), 2);
    const Training setup{.ranks = 2, .model = keeping_model({})};
    expect_well(world.run([&](Communicator& ranks) -> Result<> {
      EBB_TRY_ASSIGN(auto trainer, KeepingTrainer::open(world, ranks, config_for(setup)));
      EBB_TRY(trainer.train(2));
      return trainer.commit();
    }));
  }
  const Tensors wanted = trained_alone(keeping_model({}), 4), at_two = tensors_of(whole.path());
  auto tree = libswap::open_tree(whole.path());
  ASSERT_TRUE(tree);
  const auto checkpoint = formats::describe(std::move(*tree));
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;
  World world(disk(), directory.path(), 3);
  const Training setup{.ranks = 3, .weights = Policy::zero3, .model = keeping_model({0, 2})};
  expect_well(world.run([&](Communicator& ranks) -> Result<> {
    EBB_TRY_ASSIGN(auto trainer, KeepingTrainer::open(world, ranks, config_for(setup), &at_two,
                                                      checkpoint->get()));
    EXPECT_EQ(trainer.engine().step_count(), 2u);
    EBB_TRY(trainer.train(2));
    EXPECT_EQ(trainer.differing(wanted), "") << "from a checkpoint";
    return {};
  }));
}

// Of the engine's own communicator, once, on all ranks.
class FailsOnce : public RanksBelow {
 public:
  template <typename Below>
  FailsOnce(Below&& below, bool& due) : RanksBelow(std::forward<Below>(below)), due_(due) {}
  Result<std::unique_ptr<Communicator>> duplicate() override {
    EBB_TRY_ASSIGN(auto below, RanksBelow::duplicate());
    return std::unique_ptr<Communicator>(std::make_unique<FailsOnce>(std::move(below), due_));
  }
  Result<libswap::Event> begin_exchange(std::span<const libmuon::SendBuffer> sends,
                                        std::span<const libmuon::ReceiveBuffer> receives,
                                        std::span<const libswap::Event> after) override {
    if (std::exchange(due_, false)) return Error{Code::peer, "the network broke once"};
    return RanksBelow::begin_exchange(sends, receives, after);
  }

 private:
  bool& due_;
};

// Weights that did not arrive can be read again; an update was made once.
TEST(OutUpdateState, AnUpdateThatTheNetworkLostIsNotPassedOver) {
  FailingWorld world;
  const Training setup{.ranks = 2,
                       .gradients = Policy::replicated,
                       .weights = Policy::zero3,
                       .chunk_bytes = 1u << 28,
                       .model = keeping_model({0, 2, 3})};
  const Tensors wanted = trained_alone(keeping_model({}), 3);
  expect_well(world.world.run([&](Communicator& below) -> Result<> {
    bool due = false;
    FailsOnce ranks(below, due);
    EBB_TRY_ASSIGN(auto trainer, KeepingTrainer::open(world.world, ranks, config_for(setup)));
    EBB_TRY(trainer.train(1));
    EBB_TRY(trainer.commit());
    EBB_TRY(trainer.hand_in());
    due = true;
    expect_error(trainer.step(), Code::peer, "the exchange");
    EXPECT_EQ(trainer.engine().step_count(), 2u);
    expect_error(trainer.step(), Code::state, "the next step");
    const auto installed = trainer.engine().install_weights();
    expect_error(installed, Code::state, "what can be installed");
    EXPECT_NE(installed.error().hint.find("abandon_step()"), std::string::npos)
        << installed.error().hint;
    EBB_TRY(trainer.engine().abandon_step());
    EXPECT_EQ(trainer.engine().step_count(), 1u);
    EBB_TRY(trainer.train(2));
    EXPECT_EQ(trainer.differing(wanted), "") << "gone back";
    return {};
  }));
}

TEST(OutUpdateState, WhatIsNotFiniteIsNotHandedOut) {
  for (const auto placement : kPlacements) {
    Training setup = on_two_ranks(placement);
    for (auto& step : std::get<MuonSpec>(setup.model.groups[0]).iterations) step.a = 1e20f;
    FailingWorld world;
    expect_well(world.world.run([&](Communicator& ranks) -> Result<> {
      EBB_TRY_ASSIGN(auto trainer, KeepingTrainer::open(world.world, ranks, config_for(setup)));
      EBB_TRY(trainer.hand_in());
      EXPECT_FALSE(trainer.step());
      const auto updates = trainer.handed_out();
      for (std::uint32_t param = 0; param < updates.size(); ++param)
        if (setup.model.params[param].group == 0) {
          EXPECT_TRUE(std::ranges::all_of(updates[param], [](float u) { return u == 0; }))
              << setup.model.params[param].name;
        }
      return {};
    }));
  }
}

TEST(OutUpdateState, ADecayOfWeightsThatTheEngineHasNotIsRefused) {
  Training setup = on_two_ranks(Placement::owner);
  std::get<MuonSpec>(setup.model.groups[2]).weight_decay = 0.1;
  const auto refused = Engine::plan(config_for(setup), Rank{0});
  expect_error(refused, Code::usage, "decay");
  EXPECT_EQ(refused.error().message, "setting out: an update has no weights to decay");
  FailingWorld world;
  expect_well(world.world.run([&](Communicator& ranks) -> Result<> {
    EBB_TRY_ASSIGN(auto trainer, KeepingTrainer::open(world.world, ranks,
                                                      config_for(on_two_ranks(Placement::owner))));
    const auto later = trainer.engine().set(2, "weight_decay", 0.1);
    EXPECT_FALSE(later);
    EXPECT_NE(later.error().message.find("an update has no weights to decay"), std::string::npos)
        << later.error().message;
    return trainer.train(1);
  }));
}

}  // namespace
}  // namespace ebb::test
