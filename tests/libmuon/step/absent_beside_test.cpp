// Parameters that have no gradient, beside what else may happen to a step.
#include <gtest/gtest.h>

#include "tests/libmuon/support/failing_world.h"
#include "tests/libmuon/support/said_gradients.h"

namespace ebb::test {
namespace {

using libmuon::Communicator;
using libmuon::EngineConfig;
using libmuon::WithoutGradient;

Said some_are_not(std::uint32_t param, std::uint64_t step) {
  if (!in_some(param) || step != 2) return always(param, step);
  const bool zero = param % 2 == 1;
  return {.noise = {}, .none = zero ? WithoutGradient::zero : WithoutGradient::untouched};
}

// Of rank 1, behind three steps; `second` makes the second one, whose gradients are handed in.
using Second = std::function<Result<>(FailingWorld&, Communicator&, RankEngine&)>;
std::vector<float> weights_of(const EngineConfig& config, const Second& second) {
  std::vector<float> weights;
  FailingWorld failing;
  expect_well(failing.world.run([&](Communicator& ranks) -> Result<> {
    EBB_TRY_ASSIGN(auto rank, RankEngine::open(failing.world, ranks, config));
    EBB_TRY(rank.hand_in(1));
    EBB_TRY(rank.step());
    EBB_TRY(second(failing, ranks, rank));
    EXPECT_EQ(rank.engine().step_count(), 2u);
    EBB_TRY(rank.hand_in(3));
    EBB_TRY(rank.step());
    if (ranks.rank() == Rank{1}) weights = rank.flat_weights();
    return {};
  }));
  return weights;
}

Result<> plain(FailingWorld&, Communicator&, RankEngine& rank) {
  EBB_TRY(hand_in(rank, 2, some_are_not));
  EBB_TRY(rank.step());
  return {};
}

EngineConfig little(std::uint64_t room = 0,
                    libmuon::Placement placement = libmuon::Placement::owner) {
  EngineConfig config = config_with(kLittle, 3, {}, placement);
  config.early_gradient_bytes = room;
  config.budget_bytes = kLittle;
  add_what_tiles_need_beside(config);
  return config;
}

TEST(AbsentGradientsBeside, OfAStepThatIsSkippedOrNotBegunAreForgottenOrStay) {
  const auto wanted = weights_of(config_with(kMuch), plain);
  const auto weights =
      weights_of(little(1u << 20), [&](FailingWorld&, Communicator&, RankEngine& rank) -> Result<> {
        EBB_TRY(hand_in(rank, 7, [](std::uint32_t param, std::uint64_t step) -> Said {
          if (param == 2) return always(param, step);
          return {.noise = {}, .none = WithoutGradient::untouched};
        }));
        EBB_TRY_ASSIGN(const auto skipped, rank.step({.inv_scale = 1e38}));
        EXPECT_TRUE(skipped.skipped);
        EBB_TRY(hand_in(rank, 2, some_are_not));
        EXPECT_FALSE(rank.step({.inv_scale = -1}));
        EBB_TRY(rank.step());
        return {};
      });
  EXPECT_EQ(weights, wanted);
}

// Installing hands out all weights, whatever the last step left alone.
TEST(AbsentGradientsBeside, WeightsThatAreBoundAnewAreInstalled) {
  const auto config = little();
  FailingWorld failing;
  expect_well(failing.world.run([&](Communicator& ranks) -> Result<> {
    EBB_TRY_ASSIGN(auto rank, RankEngine::open(failing.world, ranks, config));
    EBB_TRY(plain(failing, ranks, rank));
    const auto before = rank.flat_weights();
    for (auto& weights : rank.weights()) std::ranges::fill(weights, 0.0f);
    EBB_TRY(rank.engine().install_weights());
    EXPECT_EQ(rank.flat_weights(), before);
    return {};
  }));
}

TEST(AbsentGradientsBeside, AreSaidOnceAndForNothingThatHasOne) {
  auto config = config_with(kMuch);
  config.partition.hand_in = libmuon::HandIn::added;
  FailingWorld failing;
  expect_well(failing.world.run([&](Communicator& ranks) -> Result<> {
    EBB_TRY_ASSIGN(auto rank, RankEngine::open(failing.world, ranks, config));
    rank.make_gradients(1);
    libmuon::Engine& engine = rank.engine();
    const auto none = [&](std::uint32_t param) {
      return engine.no_gradient(param, WithoutGradient::zero);
    };
    EBB_TRY(engine.add_gradient(0, rank.gradients()[0]));
    expect_error(none(0), Code::state, "some was added");
    EBB_TRY(none(1));
    expect_error(none(1), Code::state, "twice");
    expect_error(engine.add_gradient(1, rank.gradients()[1]), Code::state, "there is none");
    expect_error(none(99), Code::usage, "no such parameter");
    for (std::uint32_t param = 2; param + 1 < rank.gradients().size(); ++param)
      EBB_TRY(none(param));
    const auto forgotten = engine.step({});
    expect_error(forgotten, Code::usage, "nothing is said of the last");
    EXPECT_EQ(forgotten.error().message,
              compose("step 1: parameter head has no gradient on rank {}", index_of(ranks.rank())));
    EBB_TRY(none(static_cast<std::uint32_t>(rank.gradients().size()) - 1));
    EBB_TRY(rank.step());
    return {};
  }));
}

// One rank has a gradient, the other has not, or means another thing by it.
TEST(AbsentGradientsBeside, ThatRanksDoNotAgreeOnAreNamedAndNothingHasChanged) {
  for (const std::uint64_t room : {std::uint64_t{0}, std::uint64_t{1} << 20}) {
    const auto weights = weights_of(
        little(room), [&](FailingWorld&, Communicator& ranks, RankEngine& rank) -> Result<> {
          const auto before = rank.flat_weights();
          const auto dispute = [&](std::uint32_t me, std::uint32_t param, std::uint64_t) -> Said {
            if (param == 4) return {.noise = {}, .none = WithoutGradient::zero};
            if (param != 5 || me == 0) return always(param, 7);
            return {.noise = {}, .none = WithoutGradient::untouched};
          };
          EBB_TRY(hand_in(rank, 2, [&](std::uint32_t param, std::uint64_t step) {
            return dispute(index_of(ranks.rank()), param, step);
          }));
          const auto refused = rank.step();
          expect_error(refused, Code::usage, "a dispute");
          EXPECT_EQ(refused.error().message,
                    "the gradient of blk.0.up is not the same on all ranks: handed in on rank 0; "
                    "none, untouched on rank 1");
          EXPECT_EQ(rank.flat_weights(), before);
          EXPECT_EQ(rank.engine().step_count(), 1u);
          EBB_TRY(rank.hand_in(2));
          EBB_TRY(rank.step());
          return {};
        });
    EXPECT_EQ(weights, weights_after(3));
  }
}

}  // namespace
}  // namespace ebb::test
