// Settings of groups by name: what a trainer with schedules reads and writes, and what it is told.
#include <gtest/gtest.h>

#include "tests/libmuon/support/failing_world.h"

namespace ebb {
namespace {

using libmuon::Engine;
using test::FailingWorld;
using test::RankEngine;

std::string value_of(const Engine& engine, std::uint32_t group, const std::string& name) {
  const auto all = engine.group(group);
  EXPECT_TRUE(all);
  for (const auto& [known, value] : (*all).settings)
    if (known == name) return value;
  return "none";
}

// Set between steps, it is as if the engine had been opened with it behind the step before.
TEST(GroupSettings, AreThoseOfTheNextStep) {
  const auto weights = [](bool by_name) {
    std::vector<float> all;
    FailingWorld failing;
    auto config = test::config_with(test::kMuch);
    auto& muon = std::get<libmuon::MuonSpec>(config.model.groups[0]);
    auto& adam = std::get<libmuon::AdamSpec>(config.model.groups[1]);
    const auto second = [&] { muon.beta = 0.5, muon.weight_decay = 0.25, adam.beta2 = 0.9; };
    test::expect_well(failing.world.run([&](libmuon::Communicator& ranks) -> Result<> {
      EBB_TRY_ASSIGN(auto rank, RankEngine::open(failing.world, ranks, config));
      EBB_TRY(test::step_to(rank, 1));
      if (by_name) {
        EBB_TRY(rank.engine().set(0, "beta", 0.5));
        EBB_TRY(rank.engine().set(0, "weight_decay", 0.25));
        EBB_TRY(rank.engine().set(1, "beta2", 0.9));
        EXPECT_EQ(value_of(rank.engine(), 0, "beta"), "0.5");
        EXPECT_EQ(value_of(rank.engine(), 1, "beta2"), "0.9");
        EBB_TRY(test::step_to(rank, 3));
        if (ranks.rank() == Rank{1}) all = rank.flat_weights();
      }
      EBB_TRY_ASSIGN([[maybe_unused]] const auto generation, rank.commit());
      return {};
    }));
    if (by_name) return all;
    second();
    failing.world.reopen(2);
    test::expect_well(failing.world.run([&](libmuon::Communicator& ranks) -> Result<> {
      EBB_TRY_ASSIGN(auto rank, RankEngine::open(failing.world, ranks, config));
      EBB_TRY(test::step_to(rank, 3));
      if (ranks.rank() == Rank{1}) all = rank.flat_weights();
      return {};
    }));
    return all;
  };
  const auto named = weights(true);
  EXPECT_FALSE(named.empty());
  EXPECT_EQ(named, weights(false));
}

TEST(GroupSettings, ThatAreNotTheGroupsAreRefusedAndTheirPlaceIsNamed) {
  FailingWorld failing;
  const auto refused = [](const Result<>& answer, Code code, const std::string& message,
                          const std::string& hint) {
    test::expect_error(answer, code, message);
    EXPECT_NE(answer.error().message.find(message), std::string::npos) << answer.error().message;
    EXPECT_NE(answer.error().hint.find(hint), std::string::npos) << answer.error().hint;
  };
  test::expect_well(failing.world.run([&](libmuon::Communicator& ranks) -> Result<> {
    EBB_TRY_ASSIGN(auto rank,
                   RankEngine::open(failing.world, ranks, test::config_with(test::kMuch)));
    Engine& engine = rank.engine();
    refused(engine.set(0, "beta1", 0.9), Code::usage, "group 0 (muon) has no setting beta1",
            "group 1 is adamw and has it");
    refused(engine.set(1, "max_norm", 1), Code::usage, "group 1 (adamw) has no setting max_norm",
            "StepArgs takes it");
    refused(engine.set(0, "tile_bytes", 4096), Code::usage, "no setting tile_bytes",
            "EngineConfig takes it");
    refused(engine.set(0, "weight_deacy", 0.1), Code::usage, "no setting weight_deacy",
            "did you mean weight_decay?");
    refused(engine.set(0, "norm_factor", 2), Code::unsupported,
            "group 0 (muon): norm_factor does not change between steps", "EngineConfig::model");
    refused(engine.set(0, "beta", 1), Code::usage, "beta", "");
    refused(engine.set(7, "lr", 1), Code::usage, "there is no group 7", "");
    EXPECT_EQ(value_of(engine, 0, "beta"), "0.95");
    EXPECT_FALSE(engine.group(7));
    if (ranks.rank() == Rank{1}) {
      EBB_TRY(engine.set(1, "eps", 1e-6));
    }
    EBB_TRY(rank.hand_in(1));
    refused(rank.step().has_value() ? Result<>() : Result<>(rank.step().error()), Code::usage,
            "eps of group 1", "");
    return {};
  }));
}

}  // namespace
}  // namespace ebb
