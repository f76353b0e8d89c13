// What a step promises whatever the partition: the same bits.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "tests/libmuon/support/training.h"

namespace ebb::engine_tests {
namespace {

using test::Finish;
using test::kPlacements;
using test::Outcome;
using test::TempDir;
using test::train;
using test::Training;

constexpr std::uint64_t kSteps = 6;

Outcome reference() {
  static const Outcome outcome = [] {
    const TempDir directory;
    return train(Training{}, directory.path(), kSteps);
  }();
  return outcome;
}

void expect_same_bits(const Outcome& outcome, const std::string& what) {
  ASSERT_EQ(outcome.error, "") << what;
  ASSERT_EQ(reference().error, "");
  ASSERT_FALSE(reference().weights.empty());
  EXPECT_TRUE(outcome == reference()) << what;
}

TEST(Engine, MovesTheWeights) {
  const TempDir directory;
  const Outcome start = train(Training{}, directory.path(), 0);
  ASSERT_EQ(start.error, "");
  ASSERT_EQ(start.weights.size(), reference().weights.size());
  EXPECT_FALSE(start == reference());
  EXPECT_TRUE(std::ranges::all_of(reference().weights, [](float w) { return std::isfinite(w); }));
}

// The weights of one parameter, out of all concatenated.
std::vector<float> weights_of(const Outcome& outcome, const libmuon::ModelSpec& model,
                              std::string_view name) {
  std::size_t first = 0;
  for (const libmuon::ParamSpec& param : model.params) {
    const std::size_t count = formats::volume(param.shape);
    if (param.name == name)
      return {outcome.weights.begin() + static_cast<std::ptrdiff_t>(first),
              outcome.weights.begin() + static_cast<std::ptrdiff_t>(first + count)};
    first += count;
  }
  ADD_FAILURE() << name;
  return {};
}

TEST(Engine, OneMatrixOnEightRanksEqualsOneRank) {
  libmuon::ModelSpec model;
  model.groups = {libmuon::MuonSpec::keller()};
  model.params = {{"only", {31, 13}, 0}};
  const TempDir alone;
  const Outcome one = train(Training{.model = model}, alone.path(), kSteps);
  ASSERT_EQ(one.error, "");
  for (const auto placement : kPlacements) {
    const TempDir together;
    const Outcome eight = train(Training{.ranks = 8, .placement = placement, .model = model},
                                together.path(), kSteps);
    ASSERT_EQ(eight.error, "");
    EXPECT_TRUE(one == eight) << name_of(placement);
  }
}

TEST(Engine, GroupsMayComeInAnyOrder) {
  libmuon::ModelSpec model = test::nuisance_model();
  std::swap(model.groups[0], model.groups[1]);
  for (libmuon::ParamSpec& param : model.params) param.group = 1 - param.group;
  const TempDir directory;
  expect_same_bits(train(Training{.ranks = 3, .model = model}, directory.path(), kSteps),
                   "AdamW's group before Muon's");
}

TEST(Engine, EveryGroupHasItsOwnMomentumAndLearningRate) {
  libmuon::ModelSpec model = test::nuisance_model();
  auto slower = std::get<libmuon::MuonSpec>(model.groups[0]);
  slower.beta = 0.5;
  slower.lr = 0.001;
  model.groups.push_back(slower);
  for (libmuon::ParamSpec& param : model.params)
    if (param.name == "blk.0.up") param.group = 2;
  const TempDir alone, together;
  const Outcome one = train(Training{.model = model}, alone.path(), kSteps);
  const Outcome three = train(Training{.ranks = 3, .model = model}, together.path(), kSteps);
  ASSERT_EQ(one.error, "");
  EXPECT_TRUE(one == three);
  EXPECT_NE(weights_of(one, model, "blk.0.up"), weights_of(reference(), model, "blk.0.up"));
  for (const std::string_view other : {"blk.0.down", "prime", "emb", "scale"})
    EXPECT_EQ(weights_of(one, model, other), weights_of(reference(), model, other)) << other;
}

// One group only: the other optimizer has no parameter, no tile and no state.
Outcome train_and_resume_with(const libmuon::GroupSpec& group, libmuon::Placement placement) {
  libmuon::ModelSpec model;
  model.groups = {group};
  model.params = {{"a", {20, 12}, 0}, {"b", {12, 30}, 0}};
  const TempDir whole, parts;
  const Training setup{
      .ranks = 2, .placement = placement, .budget_bytes = 4 * 4096, .model = model};
  const Outcome through = train(setup, whole.path(), kSteps);
  EXPECT_EQ(train(setup, parts.path(), 2).error, "");
  const Outcome resumed = train(setup, parts.path(), kSteps);
  EXPECT_EQ(resumed.origin, "resumed the store at step 2");
  EXPECT_EQ(through.error, "");
  EXPECT_TRUE(through == resumed);
  return through;
}

TEST(Engine, TrainsAndResumesWithoutAnyAdamGroup) {
  for (const auto placement : kPlacements) {
    const Outcome outcome = train_and_resume_with(libmuon::MuonSpec::keller(), placement);
    for (const libmuon::EnginePlan& plan : outcome.plans) EXPECT_EQ(plan.adam_elems, 0u);
  }
}

TEST(Engine, TrainsAndResumesWithoutAnyMuonGroupAndKeepsNoMomentum) {
  for (const auto placement : kPlacements) {
    const Outcome outcome = train_and_resume_with(libmuon::AdamSpec{.lr = 1e-2}, placement);
    std::uint64_t bytes = 0;
    for (const libmuon::EnginePlan& plan : outcome.plans) {
      EXPECT_EQ(plan.newton_schulz_flops, 0);
      bytes += plan.state_bytes;
    }
    EXPECT_EQ(bytes, 3 * sizeof(float) * (20 * 12 + 12 * 30));  // master, exp_avg, exp_avg_sq
  }
}

TEST(Engine, LosesOnlyStepsAfterTheLastCommittedGeneration) {
  const TempDir directory;
  const Training setup{.ranks = 2, .budget_bytes = 4 * 4096};
  ASSERT_EQ(train(setup, directory.path(), 2).error, "");
  ASSERT_EQ(train(setup, directory.path(), 5, Finish::just_stop).error, "");
  const Outcome resumed = train(setup, directory.path(), kSteps);
  EXPECT_EQ(resumed.origin, "resumed the store at step 2");
  expect_same_bits(resumed, "resumed");
}

TEST(Engine, SkipsANonFiniteStepOnAllRanksWithoutTouchingState) {
  const TempDir short_directory;
  const Outcome three = train({.ranks = 3}, short_directory.path(), 3);
  for (const auto placement : kPlacements) {
    const TempDir poisoned_directory;
    const Training setup{
        .ranks = 3, .placement = placement, .budget_bytes = 4 * 4096, .poison_step = 4};
    const Outcome poisoned = train(setup, poisoned_directory.path(), 4);
    ASSERT_EQ(poisoned.error, "");
    EXPECT_TRUE(poisoned.results.back().skipped);
    EXPECT_EQ(poisoned.step, 3u);
    EXPECT_TRUE(poisoned == three);
  }
}

TEST(Engine, ClipsByTheExactGlobalNormOnAnyPartition) {
  const TempDir one_directory;
  const Outcome one = train({.max_norm = 0.5}, one_directory.path(), 3);
  ASSERT_EQ(one.error, "");
  for (const auto placement : kPlacements) {
    const TempDir many_directory;
    const Outcome many =
        train({.ranks = 4, .gradients = Policy::zero3, .placement = placement, .max_norm = 0.5},
              many_directory.path(), 3);
    ASSERT_EQ(many.error, "");
    EXPECT_EQ(one.results.back().norm, many.results.back().norm);
    EXPECT_LT(one.results.back().clip, 1.0);
    EXPECT_TRUE(one == many);
  }
}

// The budget counts what a rank needs beside tiles: the smallest one works, a byte less does not.
void expect_the_smallest_budget(libmuon::Placement placement) {
  const Training setup{
      .ranks = 3, .gradients = Policy::rows, .placement = placement, .chunk_bytes = 5000};
  libmuon::EngineConfig config = test::config_of(setup, setup.model);
  for (const std::uint32_t rank : {0u, 1u, 2u}) {
    const auto roomy = libmuon::Engine::plan(config, Rank{rank});
    ASSERT_TRUE(roomy);
    EXPECT_EQ((*roomy).memory_bytes,
              (*roomy).frame_bytes + (*roomy).workspace_bytes + (*roomy).staging_bytes);
    auto tight = config;
    tight.budget_bytes = (*roomy).least_budget_bytes;
    const auto least = libmuon::Engine::plan(tight, Rank{rank});
    ASSERT_TRUE(least) << least.error().message;
    EXPECT_EQ((*least).memory_bytes, tight.budget_bytes);
    EXPECT_EQ((*least).split.frames, 1u);
    --tight.budget_bytes;
    const auto refused = libmuon::Engine::plan(tight, Rank{rank});
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, Code::no_memory);
    EXPECT_NE(refused.error().message.find(std::to_string(tight.budget_bytes + 1)),
              std::string::npos)
        << refused.error().message;
  }
}

TEST(Engine, NamesTheSmallestBudgetThatWorks) {
  for (const auto placement : kPlacements) expect_the_smallest_budget(placement);
}

}  // namespace

}  // namespace ebb::engine_tests
