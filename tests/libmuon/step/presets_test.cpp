// Engines with the specs of frameworks: stacks, splits, low precision and Gram form have one result
// on every partition, as the default has.
#include "ebb/libmuon/spec/presets.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/libmuon/support/training.h"
#include "tests/libmuon/support/world.h"

namespace ebb::test {
namespace {

using libmuon::MuonSpec;
using libmuon::Split;

constexpr std::uint64_t kSteps = 3;

MuonSpec spec_of(const char* preset, Split split = {}) {
  MuonSpec spec = *libmuon::preset(preset);
  spec.weight_decay = 0.1;
  spec.split = std::move(split);
  return spec;
}

// Every kind of matrix that a parameter can be.
libmuon::ModelSpec model_of_many_kinds() {
  MuonSpec cautious = spec_of("dion", {Split::Kind::heads, {4}});
  cautious.decay = libmuon::Decay::cautious;
  MuonSpec high = spec_of("gram");
  high.precision = libmuon::Precision::tf32;
  libmuon::ModelSpec model;
  model.groups = {spec_of("gram"),
                  spec_of("keller"),
                  spec_of("megatron", {Split::Kind::groups, {6, 2, 2}}),
                  cautious,
                  spec_of("deepspeed", {Split::Kind::rows, {20, 5, 7}}),
                  libmuon::AdamSpec{.lr = 1e-2},
                  spec_of("emerging_high"),
                  high};
  model.params = {{"experts", {3, 12, 26}, 0}, {"conv", {16, 3, 2, 2}, 1}, {"norm", {24}, 5},
                  {"qkv", {40, 24}, 2},        {"heads", {24, 37}, 3},     {"parts", {32, 19}, 4},
                  {"square", {20, 20}, 0},     {"high", {2, 30, 17}, 6},   {"higher", {18, 70}, 7},
                  {"highest", {21, 21}, 7}};
  return model;
}

std::vector<float> trained(Training setup, std::uint64_t steps = kSteps) {
  setup.model = model_of_many_kinds();
  const TempDir directory;
  const Outcome outcome = train(setup, directory.path(), steps, Finish::just_stop);
  EXPECT_EQ(outcome.error, "");
  return outcome.weights;
}

TEST(Presets, OneResultOnEveryPartitionBudgetTileAndNumberOfThreads) {
  const std::vector<float> alone = trained({.budget_bytes = 1u << 30});
  ASSERT_FALSE(alone.empty());
  EXPECT_TRUE(std::ranges::all_of(alone, [](float w) { return std::isfinite(w); }));
  EXPECT_EQ(trained({.ranks = 2, .budget_bytes = 4096, .threads = 3}), alone);
  EXPECT_EQ(
      trained(
          {.ranks = 3, .gradients = Policy::zero3, .chunk_bytes = 4096, .budget_bytes = 3 * 4096}),
      alone);
  EXPECT_EQ(trained({.ranks = 4,
                     .gradients = Policy::rows,
                     .tile_bytes = 8192,
                     .budget_bytes = 8192,
                     .threads = 2}),
            alone);
  for (const std::uint32_t ranks : {1u, 2u, 3u, 5u})
    for (const Policy policy : {Policy::zero12, Policy::zero3, Policy::rows, Policy::uneven_rows})
      for (const std::uint64_t chunk : {4096u, 256u << 20})
        EXPECT_EQ(trained({.ranks = ranks,
                           .gradients = policy,
                           .placement = libmuon::Placement::shard,
                           .chunk_bytes = chunk,
                           .budget_bytes = 4096,
                           .threads = 1 + ranks % 2}),
                  alone)
            << ranks << " ranks, " << name_of(policy) << ", chunks of " << chunk;
}

TEST(Presets, StateGoesOnOnOtherRanksWithTheSameBits) {
  const std::vector<float> wanted = trained({}, 2 + kSteps);
  for (const auto placement : kPlacements) {
    Training setup{
        .ranks = 3, .placement = placement, .budget_bytes = 4096, .model = model_of_many_kinds()};
    const TempDir directory;
    ASSERT_EQ(train(setup, directory.path(), 2).error, "");
    setup.ranks = 2;
    const Outcome resumed = train(setup, directory.path(), 2 + kSteps, Finish::just_stop);
    ASSERT_EQ(resumed.error, "");
    EXPECT_EQ(resumed.step, 2 + kSteps);
    EXPECT_EQ(resumed.weights, wanted);
  }
}

// Each setting that is another one is named; learning rates change all the time.
TEST(Presets, WhatTheStateWasTrainedWithIsNamedWhereItIsAnother) {
  libmuon::ModelSpec model;
  model.groups = {spec_of("deepspeed")};
  model.params = {{"w", {12, 20}, 0}};
  const TempDir directory;
  ASSERT_EQ(train({.model = model}, directory.path(), 1).error, "");
  auto& spec = std::get<MuonSpec>(model.groups[0]);
  spec.precision = libmuon::Precision::fp32;
  spec.restarts = {3};
  spec.lr = 1;
  const Outcome outcome = train({.model = model}, directory.path(), 2, Finish::just_stop);
  ASSERT_EQ(outcome.error, "");
  EXPECT_NE(outcome.origin.find("group 0: precision is fp32, was fp16, restarts is 3, was 2"),
            std::string::npos)
      << outcome.origin;
}

}  // namespace
}  // namespace ebb::test
