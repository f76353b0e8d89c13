// What a step refuses or skips, on every rank and before a bit of the state has moved.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <limits>
#include <string>

#include "ebb/libswap/testing/memory_backend.h"
#include "tests/libmuon/support/training.h"
#include "tests/libmuon/support/world.h"
#include "tests/support/cpu_time.h"

namespace ebb::test {
namespace {

using libmuon::Communicator;
using libmuon::StepArgs;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

World in_memory(std::uint32_t ranks) {
  return {libswap::make_memory_backend(libswap::MemoryDisk::create(1u << 28)), "/swap", ranks};
}

libmuon::EngineConfig config_for(std::uint32_t ranks, Policy gradients, std::uint32_t copies = 1) {
  auto config = config_of(Training{.ranks = ranks * copies}, nuisance_model());
  config.partition.gradients = {.policy = gradients, .mesh = {ranks, copies}, .align_elems = 16};
  return config;
}

void expect_all(const std::vector<Result<>>& answers, Code code, const std::string& part) {
  for (const auto& answer : answers) {
    ASSERT_FALSE(answer);
    EXPECT_EQ(answer.error().code, code) << answer.error().message;
    EXPECT_NE(answer.error().message.find(part), std::string::npos) << answer.error().message;
  }
}

void expect_well(const std::vector<Result<>>& answers) {
  for (const auto& answer : answers) EXPECT_TRUE(answer) << answer.error().message;
}

// A step with bad gradients is skipped on every rank; the next is the one it would have been.
void expect_skipped(const libmuon::EngineConfig& config, const StepArgs& args, float scale,
                    const std::function<void(RankEngine&, Rank)>& spoil, const std::string& what) {
  const std::uint32_t world_size = config.partition.gradients.mesh.world();
  const auto run = [&](bool with_bad_step) {
    World world = in_memory(world_size);
    std::vector<std::vector<float>> weights(world_size);
    expect_well(world.run([&](Communicator& ranks) -> Result<> {
      EBB_TRY_ASSIGN(auto rank, RankEngine::open(world, ranks, config));
      EBB_TRY(rank.hand_in(1));
      EBB_TRY(rank.step());
      if (with_bad_step) {
        EBB_TRY(rank.hand_in(2, scale));
        spoil(rank, ranks.rank());
        EBB_TRY_ASSIGN(const auto result, rank.step(args));
        EXPECT_TRUE(result.skipped) << what << ", rank " << index_of(ranks.rank());
        EXPECT_EQ(rank.engine().step_count(), 1u) << what;
      }
      EBB_TRY(rank.hand_in(3));
      EBB_TRY_ASSIGN(const auto result, rank.step());
      EXPECT_FALSE(result.skipped);
      weights[index_of(ranks.rank())] = rank.flat_weights();
      return {};
    }));
    return weights;
  };
  EXPECT_EQ(run(true), run(false)) << what;
}

TEST(StepGuards, ANumberThatIsNotFiniteIsSeenOnWhicheverRankAndReplicaItIs) {
  struct Case {
    Policy policy;
    std::uint32_t ranks, copies;
  };
  for (const Case& one : {Case{Policy::replicated, 3, 1}, Case{Policy::zero3, 2, 2},
                          Case{Policy::rows, 1, 3}, Case{Policy::zero12, 4, 1}})
    for (std::uint32_t bad = 0; bad < one.ranks * one.copies; ++bad)
      expect_skipped(
          config_for(one.ranks, one.policy, one.copies), {}, 1,
          [&](RankEngine& rank, Rank number) {
            if (index_of(number) != bad) return;
            for (auto& gradient : rank.gradients())
              if (!gradient.empty()) gradient.back() = bad % 2 == 0 ? kNan : -kInfinity;
          },
          std::string(name_of(one.policy)) + " rank " + std::to_string(bad));
}

TEST(StepGuards, FiniteGradientsThatOverflowWhenTheyAreScaledAreSkipped) {
  const auto leave = [](RankEngine&, Rank) {};
  expect_skipped(config_for(2, Policy::zero12), {.inv_scale = 1e30}, 1e10f, leave, "scaled");
}

TEST(StepGuards, GradientsThatWouldOverflowTheStateAreSkipped) {
  const auto leave = [](RankEngine&, Rank) {};
  expect_skipped(config_for(2, Policy::zero12), {}, 1e25f, leave, "squares of AdamW");
  auto config = config_for(2, Policy::replicated);
  auto& muon = std::get<libmuon::MuonSpec>(config.model.groups[0]);
  muon.momentum = libmuon::Momentum::sum;
  for (auto& param : config.model.params) param.group = 0;
  std::erase_if(config.model.params, [](const auto& param) { return param.shape.size() != 2; });
  expect_skipped(config, {}, 3e38f, leave, "a sum of gradients");
}

TEST(StepGuards, ClippingBringsLargeGradientsBack) {
  World world = in_memory(2);
  expect_well(world.run([&](Communicator& ranks) -> Result<> {
    EBB_TRY_ASSIGN(auto rank, RankEngine::open(world, ranks, config_for(2, Policy::zero12)));
    EBB_TRY(rank.hand_in(1, 1e10f));
    EBB_TRY_ASSIGN(const auto result, rank.step({.inv_scale = 1e30, .max_norm = 1}));
    EXPECT_FALSE(result.skipped);
    for (const float weight : rank.flat_weights()) EXPECT_TRUE(std::isfinite(weight));
    return {};
  }));
}

TEST(StepGuards, ArgumentsThatNoStepCanBeMadeWithAreNamedOnAllRanks) {
  const auto refused = [](StepArgs bad, const std::string& name) {
    World world = in_memory(2);
    const auto answers = world.run([&](Communicator& ranks) -> Result<> {
      EBB_TRY_ASSIGN(auto rank, RankEngine::open(world, ranks, config_for(2, Policy::zero12)));
      EBB_TRY(rank.hand_in(1));
      EBB_TRY(rank.step(ranks.rank() == Rank{0} ? bad : StepArgs{}));
      return {};
    });
    ASSERT_FALSE(answers[0]);
    EXPECT_EQ(answers[0].error().code, Code::usage);
    EXPECT_NE(answers[0].error().message.find(name), std::string::npos)
        << answers[0].error().message;
    ASSERT_FALSE(answers[1]);
    EXPECT_EQ(answers[1].error().code, Code::peer) << answers[1].error().message;
  };
  for (const double bad : {0.0, -1.0, 1e-60, 1e60, std::nan(""), HUGE_VAL})
    refused({.inv_scale = bad}, "inv_scale");
  for (const double bad : {-1.0, std::nan(""), HUGE_VAL}) refused({.max_norm = bad}, "max_norm");
}

TEST(StepGuards, SettingsThatDifferBetweenRanksAreNamedOnAllRanks) {
  const auto refused = [](const StepArgs& other, double other_lr, const std::string& name) {
    World world = in_memory(3);
    expect_all(world.run([&](Communicator& ranks) -> Result<> {
      const bool odd = ranks.rank() == Rank{1};
      EBB_TRY_ASSIGN(auto rank, RankEngine::open(world, ranks, config_for(3, Policy::zero12)));
      EBB_TRY(rank.hand_in(1));
      EBB_TRY(rank.engine().set_learning_rate(1, odd ? other_lr : 0.5));
      EBB_TRY(rank.step(odd ? other : StepArgs{}));
      return {};
    }),
               Code::usage, name + " is not the same on all ranks");
  };
  refused({.inv_scale = 2}, 0.5, "inv_scale");
  refused({.max_norm = 0.1}, 0.5, "max_norm");
  refused({}, 0.25, "lr of group 1");
}

TEST(StepGuards, WhatDiffersIsToldWithTheRanksOfEachValue) {
  World world = in_memory(4);
  expect_all(world.run([&](Communicator& ranks) -> Result<> {
    auto config = config_for(4, Policy::zero12);
    if (ranks.rank() == Rank{2}) config.tile_bytes = 8192;
    EBB_TRY(RankEngine::open(world, ranks, config));
    return {};
  }),
             Code::usage,
             "the tile size is not the same on all ranks: 4096 on ranks 0, 1, 3; 8192 on rank 2");
}

TEST(StepGuards, ADescriptionThatDiffersOnOneRankIsNamedBeforeThereIsAStore) {
  const auto refused = [](const std::function<void(libmuon::EngineConfig&)>& change,
                          const std::string& name) {
    const auto disk = libswap::MemoryDisk::create(1u << 28);
    World world(libswap::make_memory_backend(disk), "/swap", 2);
    expect_all(world.run([&](Communicator& ranks) -> Result<> {
      auto config = config_for(2, Policy::zero12);
      if (ranks.rank() == Rank{1}) change(config);
      EBB_TRY(RankEngine::open(world, ranks, config));
      return {};
    }),
               Code::usage, name + " is not the same on all ranks");
    const auto names = world.io().backend().list("/swap");
    ASSERT_TRUE(names);
    EXPECT_EQ(*names, std::vector<std::string>{"lock"});
  };
  refused([](auto& config) { std::get<libmuon::MuonSpec>(config.model.groups[0]).beta = 0.5; },
          "beta of group 0");
  refused([](auto& config) { config.model.params[3].name = "another"; }, "parameter 3");
  refused([](auto& config) { config.model.params[3].shape = {12, 48}; }, "parameter 3");
  refused([](auto& config) { config.model.params.pop_back(); }, "the number of parameters");
  refused([](auto& config) { config.tile_bytes *= 2; }, "the tile size");
  refused([](auto& config) { config.stream_above_bytes = 1; }, "what is streamed");
  refused([](auto& config) { config.dtypes["momentum_buffer"] = DType::bf16; },
          "the dtype of momentum_buffer");
  refused([](auto& config) { config.partition.weights.policy = Policy::zero3; },
          "the weights' partition");
}

TEST(StepGuards, AWorldOfAnotherSizeOnOneRankIsAnErrorOnAll) {
  World world = in_memory(2);
  const auto answers = world.run([&](Communicator& ranks) -> Result<> {
    const std::uint32_t size = ranks.rank() == Rank{0} ? 3 : 2;
    EBB_TRY(RankEngine::open(world, ranks, config_for(size, Policy::zero12)));
    return {};
  });
  ASSERT_FALSE(answers[0]);
  EXPECT_NE(answers[0].error().message.find("3 ranks"), std::string::npos);
  ASSERT_FALSE(answers[1]);
  EXPECT_EQ(answers[1].error().code, Code::peer);
}

TEST(StepGuards, WithoutAStoreACheckpointOrWeightsThereIsNothingToBeginFrom) {
  World world = in_memory(2);
  expect_all(world.run([&](Communicator& ranks) -> Result<> {
    EBB_TRY(
        libmuon::Engine::open(config_for(2, Policy::zero12), ranks, world.io(), world.swap(), {}));
    return {};
  }),
             Code::usage, "neither a checkpoint nor weights");
}

TEST(StepGuards, AGradientIsHandedInOnceAndUsedOnce) {
  World world = in_memory(1);
  expect_well(world.run([&](Communicator& ranks) -> Result<> {
    EBB_TRY_ASSIGN(auto rank, RankEngine::open(world, ranks, config_for(1, Policy::zero12)));
    EBB_TRY(rank.hand_in(1));
    const auto again = rank.engine().gradient_ready(3, rank.gradients()[3]);
    EXPECT_FALSE(again);
    EXPECT_EQ(again.error().code, Code::state);
    EXPECT_NE(again.error().message.find("blk.0.proj"), std::string::npos);
    EBB_TRY(rank.step());
    const auto weights = rank.flat_weights();
    const auto stale = rank.step();
    EXPECT_FALSE(stale);
    EXPECT_EQ(stale.error().code, Code::usage);
    EXPECT_NE(stale.error().message.find("emb has no gradient"), std::string::npos);
    EXPECT_EQ(rank.flat_weights(), weights);
    return {};
  }));
}

TEST(StepGuards, SpansOfAnotherSizeAndParametersThatAreNotThereAreRefused) {
  World world = in_memory(2);
  expect_well(world.run([&](Communicator& ranks) -> Result<> {
    EBB_TRY_ASSIGN(auto rank, RankEngine::open(world, ranks, config_for(2, Policy::rows)));
    libmuon::Engine& engine = rank.engine();
    const std::uint64_t held = engine.state_plan().gradients().local_elems(0, ranks.rank());
    std::vector<float> numbers(64 * 64);
    for (const std::uint64_t wrong : {held - 1, held + 1}) {
      const auto refused = engine.gradient_ready(0, std::span(numbers).first(wrong));
      EXPECT_FALSE(refused);
      EXPECT_EQ(refused.error().code, Code::layout);
      EXPECT_NE(refused.error().message.find("gradient of emb"), std::string::npos);
    }
    const std::uint64_t all = 37 * 24;
    for (const std::uint64_t wrong : {all - 1, all + 1}) {
      const auto refused = engine.bind_weights(0, std::span(numbers).first(wrong));
      EXPECT_FALSE(refused);
      EXPECT_EQ(refused.error().code, Code::layout);
    }
    const auto nobody = engine.gradient_ready(99, numbers);
    EXPECT_FALSE(nobody);
    EXPECT_EQ(nobody.error().code, Code::usage);
    return {};
  }));
}

TEST(StepGuards, LearningRatesAreChecked) {
  World world = in_memory(1);
  expect_well(world.run([&](Communicator& ranks) -> Result<> {
    EBB_TRY_ASSIGN(auto rank, RankEngine::open(world, ranks, config_for(1, Policy::zero12)));
    for (const double bad : {-0.1, std::nan(""), HUGE_VAL}) {
      const auto refused = rank.engine().set_learning_rate(0, bad);
      EXPECT_FALSE(refused) << bad;
      EXPECT_EQ(refused.error().code, Code::usage);
    }
    EXPECT_FALSE(rank.engine().set_learning_rate(2, 0.1));
    return rank.engine().set_learning_rate(1, 0.1);
  }));
}

// A network that fails in the n-th exchange, of an engine's own communicator, on all ranks, once.
class FailsOnce : public RanksBelow {
 public:
  template <typename Below>
  FailsOnce(Below&& below, int at) : RanksBelow(std::forward<Below>(below)), at_(at) {}
  Result<std::unique_ptr<Communicator>> duplicate() override {
    EBB_TRY_ASSIGN(auto below, RanksBelow::duplicate());
    return std::unique_ptr<Communicator>(std::make_unique<FailsOnce>(std::move(below), at_));
  }
  Result<libswap::Event> begin_exchange(std::span<const libmuon::SendBuffer> sends,
                                        std::span<const libmuon::ReceiveBuffer> receives,
                                        std::span<const libswap::Event> after) override {
    if (exchanges_++ == at_) return Error{Code::peer, "the network broke once"};
    return RanksBelow::begin_exchange(sends, receives, after);
  }

 private:
  const int at_;
  int exchanges_ = 0;
};

// Exchanges: install_weights() hands out, a step takes gradients in and hands out.
constexpr int kNone = -1, kGradients = 1, kWeights = 2;

std::vector<float> two_steps(int failing_exchange) {
  World world = in_memory(2);
  std::vector<float> weights;
  expect_well(world.run([&](Communicator& real) -> Result<> {
    FailsOnce ranks(real, failing_exchange);
    EBB_TRY_ASSIGN(auto rank, RankEngine::open(world, ranks, config_for(2, Policy::zero12)));
    EBB_TRY(rank.hand_in(1));
    const auto first = rank.step();
    EXPECT_EQ(first.has_value(), failing_exchange == kNone);
    if (!first) {
      EXPECT_EQ(first.error().code, Code::peer) << first.error().message;
    }
    if (failing_exchange == kGradients) {
      EXPECT_EQ(rank.engine().step_count(), 0u);
      EBB_TRY(rank.step());  // nothing was applied: the same gradients count
    }
    EXPECT_EQ(rank.engine().step_count(), 1u);
    if (failing_exchange > kGradients) {
      const auto again = rank.step();
      EXPECT_FALSE(again);
      EXPECT_EQ(again.error().code, Code::state) << again.error().message;
      EXPECT_EQ(rank.engine().step_count(), 1u);
      EBB_TRY(rank.engine().install_weights());
    }
    EBB_TRY(rank.hand_in(2));
    EBB_TRY(rank.step());
    if (real.rank() == Rank{1}) weights = rank.flat_weights();
    return {};
  }));
  return weights;
}

TEST(StepGuards, AGradientIsNeverAppliedTwiceWhenTheNetworkFails) {
  const auto clean = two_steps(kNone);
  ASSERT_FALSE(clean.empty());
  EXPECT_EQ(two_steps(kGradients), clean) << "failed in gradients in";
  EXPECT_EQ(two_steps(kWeights), clean) << "failed in weights out";
}

// One rank sends more of it to the others than one round of the exchange may hold.
libmuon::EngineConfig one_large_matrix(Shape shape, std::uint32_t ranks, Policy weights) {
  auto config = config_of(Training{.ranks = ranks, .weights = weights, .slots = 2}, {});
  auto spec = libmuon::MuonSpec::keller();
  spec.iterations.resize(1);
  config.model.groups = {spec};
  config.model.params = {{"small", {64, 64}, 0}, {"large", std::move(shape), 0}};
  config.tile_bytes = 1u << 20;
  config.budget_bytes = 16u << 20;
  config.chunk_bytes = 32u << 20;
  add_what_tiles_need_beside(config);
  return config;
}

TEST(PlanGuards, NoMatrixIsTooLargeForAChunk) {
  for (const Policy weights : {Policy::replicated, Policy::zero3})
    for (const Shape& shape : {Shape{8192, 10240}, Shape{28672, 8192}})
      for (const std::uint32_t rank : {0u, 5u}) {
        const auto plan = libmuon::Engine::plan(one_large_matrix(shape, 8, weights), Rank{rank});
        ASSERT_TRUE(plan) << plan.error().message;
        EXPECT_GT((*plan).chunks, 10u);
        EXPECT_LE((*plan).staging_bytes, 3 * (33u << 20));
      }
}

TEST(StepGuards, AMatrixOfAHundredMegabytesIsSteppedOnFourRanksWithAllWeights) {
  World world(libswap::make_memory_backend(libswap::MemoryDisk::create(1u << 30)), "/swap", 4);
  const auto config = one_large_matrix({1024, 24576}, 4, Policy::replicated);
  std::vector<std::vector<float>> before(4), after(4);
  expect_well(world.run([&](Communicator& ranks) -> Result<> {
    EBB_TRY_ASSIGN(auto rank, RankEngine::open(world, ranks, config));
    before[index_of(ranks.rank())] = rank.weights()[1];
    EBB_TRY(rank.hand_in(1));
    EBB_TRY(rank.step());
    after[index_of(ranks.rank())] = rank.weights()[1];
    return {};
  }));
  EXPECT_EQ(before[0][12345], noise(1001, 0, 12345));
  EXPECT_NE(before[0], after[0]);
  for (std::uint32_t rank = 1; rank < 4; ++rank) {
    EXPECT_EQ(before[rank], before[0]) << rank;
    EXPECT_EQ(after[rank], after[0]) << rank;
  }
}

// A mixture of experts. Nothing in a plan is done for every rank and parameter.
libmuon::EngineConfig many_experts(std::uint32_t ranks) {
  auto config = config_of(Training{.ranks = ranks, .gradients = Policy::zero3}, {});
  config.model.groups = {libmuon::MuonSpec::keller(), libmuon::AdamSpec{}};
  for (int i = 0; i < 6000; ++i) {
    const std::string name = std::to_string(i);
    config.model.params.push_back({name + ".up", {768, 2048}, 0});
    config.model.params.push_back({name + ".norm", {2048}, 1});
  }
  config.tile_bytes = 1u << 20;
  config.budget_bytes = ~std::uint64_t{0};
  return config;
}

TEST(PlanGuards, TenThousandRanksArePlannedInAboutTheTimeOfEight) {
  const auto seconds = [](std::uint32_t ranks) {
    const auto config = many_experts(ranks);
    return test_support::least_cpu_seconds(
        3, [&] { EXPECT_TRUE(libmuon::Engine::plan(config, Rank{ranks - 1})); });
  };
  const double few = seconds(8);
  EXPECT_LT(seconds(10'000), 8 * few + 0.005) << "eight ranks take " << few << " s";
}

// What a snapshot writes is put together behind the caller.
TEST(PlanGuards, ASnapshotOfManyTensorsTakesTheCallerLittle) {
  libmuon::EngineConfig config = config_for(1, Policy::zero12);
  config.model.params.clear();
  for (int i = 0; i < 18'867; ++i)
    config.model.params.push_back(
        {compose("model.layers.{}.mlp.experts.{}.up_proj.weight", i / 128, i % 128), {4, 3}, 0});
  World world = in_memory(1);
  for (const auto& answer : world.run([&](Communicator& ranks) -> Result<> {
         EBB_TRY_ASSIGN(auto rank, RankEngine::open(world, ranks, config));
         EBB_TRY(rank.commit());
         // Less than a manifest has.
         const double copying = test_support::least_cpu_seconds(
             3, [&] { EXPECT_EQ(std::vector(config.model.params).size(), 18'867u); });
         const double before = test_support::cpu_seconds();
         EBB_TRY_ASSIGN(const bool begun, rank.engine().snapshot());
         EXPECT_TRUE(begun);
         const double took = test_support::cpu_seconds() - before;
         EXPECT_LT(took, copying) << "a copy of the parameters takes " << copying << " s";
         return {};
       }))
    EXPECT_TRUE(answer) << answer.error().message;
}

TEST(PlanGuards, RefusesTheTilesThatAStoreCannotHave) {
  for (const std::uint64_t kib : {4u, 252u, 256u, 300u, 512u, 520u, 4096u}) {
    auto config = config_for(1, Policy::zero12);
    config.tile_bytes = kib << 10;
    const auto planned = libmuon::Engine::plan(config, Rank{0});
    World world = in_memory(1);
    const auto opened = world.run([&](Communicator& ranks) -> Result<> {
      EBB_TRY(RankEngine::open(world, ranks, config));
      return {};
    });
    EXPECT_EQ(planned.has_value(), opened[0].has_value()) << kib << " KiB";
    if (!planned) {
      EXPECT_EQ(planned.error().message, opened[0].error().message);
    }
  }
}

}  // namespace
}  // namespace ebb::test
