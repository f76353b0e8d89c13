// Gradients of micro-batches that the engine adds up: the step is that of their sum, made once.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "tests/libmuon/support/failing_world.h"
#include "tests/libmuon/support/late_accelerator.h"
#include "tests/libmuon/support/training.h"

namespace ebb {
namespace {

using libmuon::Engine;
using libmuon::HandIn;
using libmuon::Side;
using test::LateAccelerator;
using test::Outcome;
using test::TempDir;
using test::train;
using test::Training;

Outcome trained(const Training& setup, std::uint64_t steps = 3) {
  const TempDir directory;
  Outcome outcome = train(setup, directory.path(), steps);
  EXPECT_EQ(outcome.error, "");
  return outcome;
}

// Against a trainer that adds them up itself.
void expect_the_sums_bits(Training setup, const std::string& what) {
  setup.hand_in = HandIn::reduced;
  const Outcome reduced = trained(setup);
  setup.hand_in = HandIn::added;
  if (setup.bf16_gradients)
    for (libmuon::ParamSpec& param : setup.model.params) param.gradient = DType::bf16;
  const Outcome added = trained(setup);
  EXPECT_TRUE(added == reduced) << what;
  ASSERT_EQ(added.results.size(), reduced.results.size());
  for (std::size_t i = 0; i < added.results.size(); ++i) {
    EXPECT_EQ(added.results[i].skipped, reduced.results[i].skipped) << what;
    if (added.results[i].skipped) continue;
    EXPECT_EQ(added.results[i].norm, reduced.results[i].norm) << what;
  }
  for (std::uint32_t rank = 0; rank < setup.ranks; ++rank)
    EXPECT_EQ(added.stats[rank].sent_bytes, reduced.stats[rank].sent_bytes) << what;
}

TEST(AddedGradients, GiveTheBitsOfTheirSumInEveryLayout) {
  for (const Policy policy :
       {Policy::replicated, Policy::zero12, Policy::zero3, Policy::uneven_rows, Policy::layer_wise})
    for (const std::uint32_t batches : {1u, 2u, 5u})
      for (const bool bf16 : {false, true})
        expect_the_sums_bits({.ranks = 3,
                              .gradients = policy,
                              .placement = test::kPlacements[batches % 2],
                              .chunk_bytes = 20000,
                              .poison_step = 2,
                              .max_norm = 3,
                              .micro_batches = batches,
                              .bf16_gradients = bf16},
                             compose("{}, {} batches", name_of(policy), batches));
}

TEST(AddedGradients, TakeTheRoomOfAnFp32CopyThatIsPlanned) {
  Training setup{.ranks = 3, .gradients = Policy::zero3};
  LateAccelerator accelerator(1, 20);
  for (const bool device : {false, true})
    for (std::uint32_t rank = 0; rank < setup.ranks; ++rank) {
      if (device) setup.accelerator = &accelerator, setup.gradients_on = Side::device;
      const auto plan_of = [&](HandIn hand_in) {
        setup.hand_in = hand_in;
        auto config = test::config_of(setup, setup.model);
        config.budget_bytes = 1u << 30;
        const auto plan = Engine::plan(config, Rank{rank});
        EXPECT_TRUE(plan) << plan.error().message;
        return *plan;
      };
      const auto reduced = plan_of(HandIn::reduced), added = plan_of(HandIn::added);
      EXPECT_EQ(reduced.gradient_sum_bytes, 0u);
      std::uint64_t elems = 0;
      const auto config = test::config_of(setup, setup.model);
      const auto state = libmuon::StatePlan::make(config.model, config.partition, config.tile_bytes,
                                                  Rank{rank}, 1u << 20, {});
      for (std::uint32_t param = 0; param < setup.model.params.size(); ++param)
        elems += (*state).gradients().local_elems(param, Rank{rank});
      EXPECT_EQ(added.gradient_sum_bytes, elems * sizeof(float));
      EXPECT_EQ((device ? added.device_bytes : added.memory_bytes) - elems * sizeof(float),
                device ? reduced.device_bytes : reduced.memory_bytes);
    }
}

struct Trainer {
  libmuon::EngineConfig config = test::config_with(test::kMuch);
  std::vector<std::vector<float>> weights, batch;
  std::unique_ptr<Engine> engine;

  Result<> open(test::World& world, libmuon::Communicator& ranks) {
    config.partition.hand_in = HandIn::added;
    EBB_TRY_ASSIGN(engine, Engine::open(config, ranks, world.io(), world.swap(),
                                        {.initial = test::noisy_weights}));
    const auto& plan = engine->state_plan();
    for (std::uint32_t param = 0; param < config.model.params.size(); ++param) {
      weights.emplace_back(plan.weights().local_elems(param, ranks.rank()));
      batch.emplace_back(plan.gradients().local_elems(param, ranks.rank()));
      EBB_TRY(engine->bind_weights(param, weights.back()));
    }
    return engine->install_weights();
  }
  Result<> add(float value) {
    for (std::uint32_t param = 0; param < batch.size(); ++param) {
      std::ranges::fill(batch[param], value);
      EBB_TRY(engine->add_gradient(param, batch[param]));
    }
    return {};
  }
  std::vector<float> flat() const {
    std::vector<float> all;
    for (const auto& weight : weights) all.insert(all.end(), weight.begin(), weight.end());
    return all;
  }
};

// What a step used, or could not use, is in no later sum; what it only could not begin with is.
TEST(AddedGradients, BeginAnewBehindEveryStepThatTookThem) {
  const auto train_with = [](bool trouble) {
    std::vector<float> weights;
    test::FailingWorld failing;
    test::expect_well(failing.world.run([&](libmuon::Communicator& ranks) -> Result<> {
      Trainer trainer;
      EBB_TRY(trainer.open(failing.world, ranks));
      if (trouble) {
        EBB_TRY(trainer.add(1));
        EBB_TRY(trainer.add(std::numeric_limits<float>::infinity()));
        EBB_TRY_ASSIGN(const auto skipped, trainer.engine->step({}));
        EXPECT_TRUE(skipped.skipped);
      }
      for (const float value : {0.25f, -0.5f}) {
        EBB_TRY(trainer.add(value));
        EBB_TRY(trainer.add(2 * value));
        if (trouble) {
          EXPECT_FALSE(trainer.engine->step({.inv_scale = -1}));
        }
        EBB_TRY_ASSIGN(const auto result, trainer.engine->step({}));
        EXPECT_FALSE(result.skipped);
      }
      if (ranks.rank() == Rank{1}) weights = trainer.flat();
      return {};
    }));
    return weights;
  };
  EXPECT_EQ(train_with(true), train_with(false));
}

TEST(AddedGradients, AreRefusedWhereTheyCannotBeAdded) {
  test::FailingWorld failing;
  const auto refused = [](const auto& answer, Code code, const std::string& words) {
    test::expect_error(answer, code, words);
    EXPECT_NE(answer.error().message.find(words), std::string::npos) << answer.error().message;
  };
  test::expect_well(failing.world.run([&](libmuon::Communicator& ranks) -> Result<> {
    Trainer trainer;
    EBB_TRY(trainer.open(failing.world, ranks));
    for (std::uint32_t param = 1; param < trainer.batch.size(); ++param)
      EBB_TRY(trainer.engine->add_gradient(param, trainer.batch[param]));
    refused(trainer.engine->step({}), Code::usage, "parameter emb has no gradient");
    EBB_TRY(trainer.engine->gradient_ready(0, trainer.batch[0]));
    refused(trainer.engine->add_gradient(0, trainer.batch[0]), Code::state,
            "parameter emb has its gradient of step 1 already");
    EBB_TRY_ASSIGN(const auto result, trainer.engine->step({}));
    EXPECT_FALSE(result.skipped);
    return {};
  }));
  test::FailingWorld other;
  test::expect_well(other.world.run([&](libmuon::Communicator& ranks) -> Result<> {
    auto config = test::config_with(test::kMuch);
    if (ranks.rank() == Rank{1}) config.partition.hand_in = HandIn::added;
    const auto open = [&] {
      return Engine::open(config, ranks, other.world.io(), other.world.swap(),
                          {.initial = test::noisy_weights});
    };
    refused(open(), Code::usage, "what gradients are handed in");
    config.partition.hand_in = HandIn::reduced;
    EBB_TRY_ASSIGN(const auto engine, open());
    refused(engine->add_gradient(0, std::span<const float>()), Code::usage,
            "takes one gradient a step");
    return {};
  }));
}

}  // namespace
}  // namespace ebb
