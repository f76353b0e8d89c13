// A trainer whose gradients and weights are bf16, all or some of them: the state is that of the
// same numbers in fp32, weights are it rounded, and only what is needed travels.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/libmuon/support/failing_world.h"
#include "tests/libmuon/support/trainer_buffer.h"
#include "tests/libmuon/support/training.h"

namespace ebb {
namespace {

using test::Outcome;
using test::TempDir;
using test::train;
using test::TrainerBuffer;
using test::Training;

enum class In : std::uint8_t { fp32, bf16, mixed };

// Where they are mixed, gradients and weights of a parameter differ, too.
libmuon::ModelSpec model_in(In kind) {
  libmuon::ModelSpec model = test::nuisance_model();
  for (std::size_t i = 0; i < model.params.size(); ++i) {
    if (kind == In::bf16 || (kind == In::mixed && i % 3 != 0))
      model.params[i].gradient = DType::bf16;
    if (kind == In::bf16 || (kind == In::mixed && i % 3 != 1)) model.params[i].weight = DType::bf16;
  }
  return model;
}

// To nearest even, by arithmetic on the value.
float bf16_of(float value) {
  if (value == 0) return value;
  const double step = std::ldexp(1.0, std::max(std::ilogb(value), -126) - 7);
  return static_cast<float>(std::nearbyint(static_cast<double>(value) / step) * step);
}

// What rank 0 of a trainer in fp32 gets, as one with this setup gets it.
std::vector<float> rounded(const std::vector<float>& weights, const Training& setup) {
  const auto config = test::config_of(setup, setup.model);
  const auto plan = libmuon::StatePlan::make(config.model, config.partition, config.tile_bytes,
                                             Rank{0}, config.chunk_bytes, config.dtypes);
  EXPECT_TRUE(plan);
  std::vector<float> all;
  for (std::uint32_t param = 0; param < setup.model.params.size(); ++param)
    for (std::uint64_t i = (*plan).weights().local_elems(param, Rank{0}); i > 0; --i) {
      const float weight = weights.at(all.size());
      all.push_back(setup.model.params[param].weight == DType::bf16 ? bf16_of(weight) : weight);
    }
  return all;
}

Outcome trained(const Training& setup, std::uint64_t steps = 3) {
  const TempDir directory;
  Outcome outcome = train(setup, directory.path(), steps);
  EXPECT_EQ(outcome.error, "");
  return outcome;
}

// Weights are handed out of the masters as they are, without a step, by whoever holds them.
TEST(Bf16Trainer, GetsInstalledWeightsRoundedAndResumesTheMasters) {
  const Training setup{.ranks = 2, .bf16_gradients = true};
  Training half = setup;
  half.model = model_in(In::bf16);
  EXPECT_EQ(trained(half, 0).weights, rounded(trained(setup, 0).weights, half));
  const TempDir directory;
  ASSERT_EQ(train(half, directory.path(), 2).error, "");
  const Outcome resumed = train(setup, directory.path(), 4);
  EXPECT_EQ(resumed.error, "");
  EXPECT_NE(resumed.origin.find("resumed"), std::string::npos) << resumed.origin;
  EXPECT_EQ(resumed.weights, trained(setup, 4).weights);
}

// Each part of what is staged begins behind the whole of the one before it.
TEST(Bf16Trainer, TakesHalfTheRoomForWhatIsOnItsWay) {
  Training setup{.ranks = 2, .gradients = Policy::zero3, .chunk_bytes = 20000};
  const auto plans_of = [&](In kind) {
    setup.model = model_in(kind);
    return trained(setup, 1).plans;
  };
  const auto fp32 = plans_of(In::fp32), bf16 = plans_of(In::bf16);
  for (std::uint32_t rank = 0; rank < setup.ranks; ++rank) {
    EXPECT_LT(bf16[rank].chunks, fp32[rank].chunks);
    EXPECT_LE(bf16[rank].staging_bytes, fp32[rank].staging_bytes);
  }
  setup.chunk_bytes = 1u << 28;
  const auto whole = plans_of(In::fp32), half = plans_of(In::bf16);
  for (std::uint32_t rank = 0; rank < setup.ranks; ++rank) {
    EXPECT_GE(half[rank].staging_bytes * 2, whole[rank].staging_bytes);
    EXPECT_LE(half[rank].staging_bytes * 2, whole[rank].staging_bytes + 4 * 4 * 11);
  }
}

template <typename T>
void expect_refused(const Result<T>& answer, Code code, const std::string& words) {
  test::expect_error(answer, code, words);
  EXPECT_NE(answer.error().message.find(words), std::string::npos) << answer.error().message;
}

TEST(Bf16Trainer, IsToldWhatIsNotTakenAndByWhichName) {
  Training setup{.ranks = 2};
  setup.model.params[3].gradient = DType::f16;
  expect_refused(libmuon::Engine::plan(test::config_of(setup, setup.model), Rank{0}),
                 Code::unsupported, "parameter blk.0.proj: its gradient in F16");
  setup.model.params[3].gradient = DType::bf16;
  const auto config = test::config_of(setup, setup.model);
  test::FailingWorld failing;
  const auto open = [&](libmuon::Communicator& ranks, const libmuon::EngineConfig& with) {
    return libmuon::Engine::open(with, ranks, failing.world.io(), failing.world.swap(),
                                 {.initial = test::noisy_weights});
  };
  test::expect_well(failing.world.run([&](libmuon::Communicator& ranks) -> Result<> {
    auto other = config;
    if (ranks.rank() == Rank{1}) other.model.params[5].weight = DType::bf16;
    expect_refused(open(ranks, other), Code::usage, "weights in BF16");
    EBB_TRY_ASSIGN(const auto engine, open(ranks, config));
    constexpr std::uint32_t kParam = 3;
    const auto& plan = engine->state_plan();
    TrainerBuffer gradient(nullptr, plan.gradients().local_elems(kParam, ranks.rank()));
    TrainerBuffer weight(nullptr, plan.weights().local_elems(kParam, ranks.rank()), DType::bf16);
    expect_refused(engine->gradient_ready(kParam, gradient.buffer()), Code::usage,
                   "F32 elements handed in, where BF16 is wanted");
    expect_refused(engine->bind_weights(kParam, weight.buffer()), Code::usage,
                   "BF16 elements handed in, where F32 is wanted");
    return {};
  }));
}

}  // namespace
}  // namespace ebb
