// Masters that are bound weights, or whose high halves are, where something is wrong: disks that
// fail, weights that somebody else wrote, and what is refused.
#include <gtest/gtest.h>

#include <array>
#include <limits>

#include "tests/libmuon/support/bound_masters.h"
#include "tests/libmuon/support/failing_world.h"
#include "tests/libmuon/support/late_accelerator.h"
#include "tests/libmuon/support/training.h"

namespace ebb::test {
namespace {

using libmuon::Communicator;
using libmuon::Masters;
using libmuon::Placement;
using libswap::FaultOn;
using libswap::FaultPlan;

// --- disks that fail, and going back ---

struct Where {
  Policy weights;
  Placement placement = Placement::owner;
  Masters masters = Masters::halves;
};
constexpr std::array kWhere = {Where{Policy::replicated},
                               Where{Policy::zero3},
                               Where{Policy::zero3, Placement::shard},
                               Where{Policy::replicated, Placement::owner, Masters::bound},
                               Where{Policy::zero3, Placement::owner, Masters::bound},
                               Where{Policy::zero3, Placement::shard, Masters::bound}};

libmuon::EngineConfig config_for(const Where& where, std::uint64_t budget,
                                 std::uint32_t slots = 3) {
  return config_of(bound(where.masters, {.ranks = 2,
                                         .gradients = Policy::zero3,
                                         .weights = where.weights,
                                         .placement = where.placement,
                                         .chunk_bytes = 20000,
                                         .budget_bytes = budget,
                                         .slots = slots}),
                   model_of(where.masters));
}

// What rank 0 is to have of masters behind the last step.
std::vector<float> wanted(const Where& where) {
  return handed_out(bound(where.masters, {.ranks = 2, .weights = where.weights}),
                    reference(kSteps));
}

// A write of what is bound that fails costs the snapshot, or the next step waits for it.
TEST(BoundMastersFaults, AFailingDiskCostsASnapshotAndNoBit) {
  for (const Where& where : kWhere)
    for (std::uint64_t at = 0; at < 8; ++at) {
      FailingWorld failing;
      expect_well(failing.world.run([&](Communicator& ranks) -> Result<> {
        EBB_TRY_ASSIGN(auto rank,
                       RankEngine::open(failing.world, ranks, config_for(where, kLittle)));
        EBB_TRY(step_to(rank, 2));
        EBB_TRY(failing.meanwhile(ranks, [&] {
          failing.faults->add({.on = FaultOn::write,
                               .at = at,
                               .count = FaultPlan::kForEver,
                               .path_part = "rank-00001"});
        }));
        const auto begun = rank.engine().snapshot();
        if (begun) {
          static_cast<void>(rank.engine().wait_snapshot().has_value());
        }
        EBB_TRY(failing.meanwhile(ranks, [&] { failing.faults->clear(); }));
        for (std::uint64_t step = 3; step <= kSteps; ++step) {
          EBB_TRY(rank.hand_in(step));
          if (!rank.step()) EBB_TRY(rank.engine().continue_step());
        }
        static_cast<void>(rank.engine().wait_snapshot().has_value());
        EBB_TRY(rank.commit());
        EXPECT_EQ(rank.engine().committed_step(), kSteps);
        if (ranks.rank() == Rank{0}) {
          EXPECT_EQ(rank.flat_weights(), wanted(where));
        }
        return {};
      }));
    }
}

TEST(BoundMastersFaults, GoBackToTheLastGenerationOrToAnotherDisk) {
  for (const Where& where : kWhere) {
    FailingWorld failing;
    auto other = libswap::SwapDirectory::open(failing.world.io(), "/other");
    ASSERT_TRUE(other);
    expect_well(failing.world.run([&](Communicator& ranks) -> Result<> {
      EBB_TRY_ASSIGN(auto rank, RankEngine::open(failing.world, ranks, config_for(where, kLittle)));
      EBB_TRY(step_to(rank, 1));
      EBB_TRY(rank.commit());
      EBB_TRY(step_to(rank, 3));
      EBB_TRY(rank.engine().abandon_step());  // weights are those of step 1 again
      EXPECT_EQ(rank.engine().step_count(), 1u);
      EBB_TRY(step_to(rank, 2));
      EBB_TRY(rank.engine().install_weights());  // tiles of what is bound are behind
      EBB_TRY(step_to(rank, 3));
      EBB_TRY(rank.engine().save_to(**other));
      EBB_TRY(step_to(rank, kSteps));
      if (ranks.rank() == Rank{0}) {
        EXPECT_EQ(rank.flat_weights(), wanted(where));
      }
      return {};
    }));
  }
}

// From when a test says so the second exchange fails, and no other.
class LosesOne : public RanksBelow {
 public:
  struct State {
    bool begun = false;
    int exchanges = 0;
  };
  template <typename Below>
  LosesOne(Below&& below, std::shared_ptr<State> state)
      : RanksBelow(std::forward<Below>(below)), state_(std::move(state)) {}
  Result<libswap::Event> begin_exchange(std::span<const libmuon::SendBuffer> sends,
                                        std::span<const libmuon::ReceiveBuffer> receives,
                                        std::span<const libswap::Event> after) override {
    if (state_->begun && ++state_->exchanges == 2) return Error{Code::peer, "the network broke"};
    return RanksBelow::begin_exchange(sends, receives, after);
  }
  Result<std::unique_ptr<Communicator>> duplicate() override {
    EBB_TRY_ASSIGN(auto below, RanksBelow::duplicate());
    return std::unique_ptr<Communicator>(std::make_unique<LosesOne>(std::move(below), state_));
  }

 private:
  std::shared_ptr<State> state_;
};

// What is handed out first and does not arrive is nowhere else.
void expect_to_end_the_engine(Masters masters) {
  FailingWorld failing;
  const Where where = {Policy::replicated, Placement::owner, masters};
  const auto config =
      config_of(bound(masters, {.ranks = 2, .gradients = Policy::zero3, .budget_bytes = kLittle}),
                model_of(masters));
  expect_well(failing.world.run([&](Communicator& real) -> Result<> {
    const auto state = std::make_shared<LosesOne::State>();
    LosesOne ranks(real, state);
    EBB_TRY_ASSIGN(auto rank, RankEngine::open(failing.world, ranks, config));
    EBB_TRY(step_to(rank, 1));
    EBB_TRY(rank.commit());
    state->begun = true;
    EBB_TRY(rank.hand_in(2));
    expect_error(rank.step(), Code::peer, "the step");
    const auto next = rank.engine().install_weights();
    expect_error(next, Code::state, "the next call");
    EXPECT_NE(next.error().hint.find("open the store again"), std::string::npos);
    return {};
  }));
  failing.world.reopen(2);
  expect_well(failing.world.run([&](Communicator& ranks) -> Result<> {
    EBB_TRY_ASSIGN(auto rank, RankEngine::open(failing.world, ranks, config));
    EXPECT_EQ(rank.engine().step_count(), 1u);
    EBB_TRY(step_to(rank, kSteps));
    if (ranks.rank() == Rank{0}) {
      EXPECT_EQ(rank.flat_weights(), wanted(where));
    }
    return {};
  }));
}

TEST(BoundMastersFaults, WeightsThatWereNotHandedOutEndTheEngine) {
  for (const Masters masters : kBoundMasters) expect_to_end_the_engine(masters);
}

// --- weights that somebody else wrote ---

TEST(HalvesFaults, AWeightThatWasChangedIsRefusedByNameBeforeAnythingIsWritten) {
  for (const Where& where : kWhere) {
    if (where.masters != Masters::halves) continue;
    FailingWorld failing;
    expect_well(failing.world.run([&](Communicator& ranks) -> Result<> {
      EBB_TRY_ASSIGN(auto rank, RankEngine::open(failing.world, ranks, config_for(where, kLittle)));
      EBB_TRY(step_to(rank, 2));
      const bool changes = ranks.rank() == Rank{1};
      // Of what this rank owns, or of its shard.
      const libmuon::StatePlan& plan = rank.engine().state_plan();
      std::uint32_t param = 0;
      std::uint64_t element = 0;
      for (std::uint32_t i = 0; i < model_in_halves().params.size(); ++i)
        for (const FlatRange run : where.weights == Policy::replicated
                                       ? plan.own_ranges(i)
                                       : plan.weights().runs(i, Rank{1}))
          if (run.count > 0) param = i, element = run.first + run.count - 1;
      const auto flip = [&] {
        auto bits = rank.bf16_weights(param).buffer().bf16s();
        bits[plan.weights().place(param, Rank{1}, element)] ^= 1u;
      };
      EBB_TRY(rank.hand_in(3));
      if (changes) flip();
      const auto said = compose("parameter {}: its weights on rank 1 are not those",
                                model_in_halves().params[param].name);
      const auto refuses = [&](const auto& answer) {
        ASSERT_FALSE(answer);
        EXPECT_EQ(answer.error().code, changes ? Code::state : Code::peer);
        EXPECT_EQ(answer.error().message.find(said) != std::string::npos, changes)
            << answer.error().message;
      };
      refuses(rank.step());
      refuses(rank.engine().snapshot());
      EXPECT_EQ(rank.engine().step_count(), 2u);
      if (changes) flip();
      EBB_TRY(rank.step());  // with the gradients that are there
      EBB_TRY(step_to(rank, kSteps));
      if (ranks.rank() == Rank{0}) {
        EXPECT_EQ(rank.flat_weights(), wanted(where));
      }
      return {};
    }));
  }
}

// Whole masters may be written between two steps, or two snapshots of one step: a snapshot has what
// they are then, and to go back brings that.
TEST(BoundMastersFaults, WhatTheTrainerWritesIsInTheNextSnapshot) {
  for (const Where& where : kWhere) {
    if (where.masters != Masters::bound) continue;
    const TempDir folder;
    FailingWorld failing(folder);
    expect_well(failing.world.run([&](Communicator& ranks) -> Result<> {
      EBB_TRY_ASSIGN(auto rank, RankEngine::open(failing.world, ranks, config_for(where, kLittle)));
      EBB_TRY(step_to(rank, 2));
      EBB_TRY(rank.commit());
      const auto write = [&](float value) {
        rank.edit_weights([&](std::uint32_t param, std::uint64_t element, float& weight) {
          if (param % 2 == 0) weight = value + static_cast<float>(element);
        });
      };
      write(3);
      EBB_TRY_ASSIGN(const Stored stored, rank.stored());
      const std::vector<float> then = rank.flat_weights();
      for (std::uint32_t param = 0; param < model_of(where.masters).params.size(); param += 2)
        EXPECT_EQ(stored.at(model_of(where.masters).params[param].name + " master")[0], 3);
      EBB_TRY(step_to(rank, 3));
      write(7);
      EBB_TRY(rank.engine().abandon_step());
      EXPECT_EQ(rank.engine().step_count(), 2u);
      EXPECT_EQ(rank.flat_weights(), then);
      return {};
    }));
  }
}

void expect_refused_before_weights_are_handed_out(Masters masters) {
  FailingWorld failing;
  expect_well(failing.world.run([&](Communicator& ranks) -> Result<> {
    const auto config = config_for({Policy::replicated, Placement::owner, masters}, kLittle);
    EBB_TRY_ASSIGN(auto engine,
                   libmuon::Engine::open(config, ranks, failing.world.io(), failing.world.swap(),
                                         {.initial = noisy_weights}));
    std::vector<TrainerBuffer> weights;
    const libmuon::StatePlan& plan = engine->state_plan();
    const libmuon::ModelSpec model = model_of(masters);
    for (std::uint32_t param = 0; param < model.params.size(); ++param) {
      weights.emplace_back(nullptr, plan.weights().local_elems(param, ranks.rank()),
                           model.params[param].weight);
      EBB_TRY(engine->bind_weights(param, weights.back().buffer()));
      EBB_TRY(engine->no_gradient(param, libmuon::WithoutGradient::zero));
    }
    const auto early = engine->step({});
    expect_error(early, Code::usage, "a step");
    EXPECT_NE(early.error().message.find("not handed out yet"), std::string::npos);
    EBB_TRY(engine->install_weights());
    EBB_TRY(engine->step({}));
    return {};
  }));
}

TEST(BoundMastersFaults, NothingIsSteppedBeforeWeightsAreHandedOut) {
  for (const Masters masters : kBoundMasters) expect_refused_before_weights_are_handed_out(masters);
}

// --- refusals ---

std::string refused(const Training& setup) {
  const TempDir directory;
  return train(setup, directory.path(), 1).error;
}

TEST(BoundMastersFaults, AreRefusedByNameWhereWeightsAreInBf16) {
  Training bf16 = bound(Masters::bound, {});
  bf16.model.params[3].weight = DType::bf16;
  EXPECT_EQ(refused(bf16),
            "parameter blk.0.proj: its master as none, the trainer's weights being the masters, "
            "wants weights of F32, and they are BF16");
}

TEST(HalvesFaults, AreRefusedByNameWhereThereAreNone) {
  Training fp32 = in_halves({});
  fp32.model.params[3].weight = DType::f32;
  EXPECT_EQ(
      refused(fp32),
      "parameter blk.0.proj: its master as U16, the low half of fp32, wants the other half in "
      "weights of BF16, and they are F32");
  Training decayed = in_halves({});
  std::get<libmuon::MuonSpec>(decayed.model.groups[0]).decay = libmuon::Decay::l2;
  EXPECT_TRUE(refused(decayed).starts_with(
      "parameter blk.0.qkv: its master as U16, the low half of fp32, and decay = l2"));
  Training updates = in_halves({});
  std::get<libmuon::MuonSpec>(updates.model.groups[0]).weight_decay = 0;
  std::get<libmuon::MuonSpec>(updates.model.groups[0]).out = libmuon::Out::update;
  EXPECT_TRUE(refused(updates).starts_with(
      "parameter blk.0.qkv: its master as U16, the low half of fp32, and out = update"));
  LateAccelerator accelerator(1, 50);
  EXPECT_NE(refused(in_halves({.accelerator = &accelerator, .weights_on = libmuon::Side::device}))
                .find("master is not kept as U16 of weights that lie on "),
            std::string::npos);
}

TEST(HalvesFaults, OfWhatIsNotFiniteAreRefusedByName) {
  for (const float bad :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    FailingWorld failing;
    const auto initial = [&](std::uint32_t param, FlatRange range, std::span<float> into) {
      noisy_weights(param, range, into);
      if (param == 5) into.back() = bad;
    };
    for (const auto& answer : failing.world.run([&](Communicator& ranks) -> Result<> {
           EBB_TRY(libmuon::Engine::open(config_for({Policy::zero3}, kLittle), ranks,
                                         failing.world.io(), failing.world.swap(),
                                         {.initial = initial}));
           return {};
         })) {
      ASSERT_FALSE(answer);
      if (answer.error().code == Code::peer) continue;
      EXPECT_TRUE(answer.error().message.starts_with(
          "the initial weights of blk.0.up are not finite among elements"))
          << answer.error().message;
    }
  }
}

}  // namespace
}  // namespace ebb::test
