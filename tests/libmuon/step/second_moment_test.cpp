// Second moments of rows and columns (NorMuon, nanogpt): a state of another shape than its
// parameter's, in tiles that several matrices share, visited between Newton-Schulz and the masters.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "ebb/formats/describe.h"
#include "ebb/libmuon/spec/presets.h"
#include "ebb/libswap/tree/file_tree.h"
#include "tests/libmuon/support/failing_world.h"

namespace ebb::test::second_moment_tests {
namespace {

using libmuon::MuonSpec;

constexpr std::uint64_t kSteps = 4;
constexpr const char* kState = "second_momentum_buffer";

MuonSpec spec_of(const char* preset, libmuon::Split split = {}) {
  MuonSpec spec = *libmuon::preset(preset);
  spec.weight_decay = 0.1;
  spec.split = std::move(split);
  return spec;
}

// Rows and columns, one matrix and many of a parameter, parts of a split, and matrices without.
libmuon::ModelSpec model_with_moments() {
  using Kind = libmuon::Split::Kind;
  libmuon::ModelSpec model = nuisance_model();
  model.groups = {spec_of("normuon"),
                  libmuon::AdamSpec{.lr = 1e-2, .weight_decay = 0.01},
                  spec_of("nanogpt"),
                  spec_of("keller"),
                  spec_of("normuon", {Kind::groups, {6, 2, 2}}),
                  spec_of("normuon", {Kind::heads, {4}})};
  const auto put = [&](const std::string& name, std::uint32_t group) {
    std::ranges::find(model.params, name, &libmuon::ParamSpec::name)->group = group;
  };
  put("conv", 0);
  put("blk.0.down", 2);
  put("row", 2);
  put("blk.0.proj", 3);
  model.params.push_back({"experts", {3, 12, 26}, 2});
  model.params.push_back({"qkv", {40, 24}, 4});
  model.params.push_back({"heads", {24, 37}, 5});
  return model;
}

// Tools see a state of its own shape.
TEST(SecondMoments, AreDescribedInTheirOwnShape) {
  for (const auto placement : kPlacements) {
    const TempDir directory;
    ASSERT_EQ(train({.ranks = 2, .placement = placement, .model = model_with_moments()},
                    directory.path(), 1)
                  .error,
              "");
    auto tree = libswap::open_tree(directory.path());
    ASSERT_TRUE(tree);
    const auto checkpoint = formats::describe(std::move(*tree));
    ASSERT_TRUE(checkpoint) << checkpoint.error().message;
    EXPECT_TRUE(formats::prove_coverage((*checkpoint)->catalog()));
    std::map<std::string, Shape> shapes;
    for (const TensorEntry& tensor : (*checkpoint)->catalog().tensors)
      if (tensor.state == kState) shapes[tensor.name] = tensor.shape;
    const std::map<std::string, Shape> wanted = {
        {"blk.0.qkv", {72, 1}},  {"blk.0.up", {96, 1}}, {"blk.0.down", {1, 96}},
        {"conv", {3, 1}},        {"row", {1, 24}},      {"prime", {31, 1}},
        {"experts", {3, 1, 26}}, {"qkv", {40, 1}},      {"heads", {24, 1}}};
    EXPECT_EQ(shapes, wanted);
  }
}

// One tile is visited once a matrix' item, and all of that is in the plan; where there is room it
// is the first that stays.
TEST(SecondMoments, MoveExactlyThePredictedBytes) {
  libmuon::ModelSpec model;
  model.groups = {spec_of("normuon")};
  for (int i = 0; i < 6; ++i) model.params.push_back({std::to_string(i), {64, 32}, 0});
  const auto run = [&](std::uint64_t tiles) {
    const TempDir directory;
    const Outcome outcome = train({.budget_bytes = tiles * 4096, .model = model}, directory.path(),
                                  kSteps, Finish::just_stop);
    EXPECT_EQ(outcome.error, "");
    const auto& plan = outcome.plans[0];
    EXPECT_EQ(outcome.stats[0].read_bytes, kSteps * plan.step_read_bytes + plan.install_read_bytes);
    EXPECT_EQ(plan.step_written_bytes, plan.step_read_bytes);
    return plan;
  };
  const auto all_paged = run(1), some = run(8);
  EXPECT_EQ(all_paged.tiles, 6 * 4 + 1u) << "384 moments lie in one tile";
  EXPECT_EQ(all_paged.step_read_bytes, (6 * 4 + 6) * 4096u) << "which each matrix visits";
  EXPECT_EQ(some.split.resident, 1u);
  EXPECT_EQ(some.step_read_bytes, 6 * 4 * 4096u) << "and stays before all others";
}

// On shards the tile is read in the turn of a chunk's momentum, and read and written in that of its
// masters.
TEST(SecondMoments, OnShardsMoveExactlyThePredictedBytes) {
  libmuon::ModelSpec model;
  model.groups = {spec_of("normuon")};
  for (int i = 0; i < 6; ++i) model.params.push_back({std::to_string(i), {64, 32}, 0});
  const TempDir directory;
  const Outcome outcome = train({.ranks = 2,
                                 .gradients = Policy::zero3,
                                 .weights = Policy::zero3,
                                 .placement = libmuon::Placement::shard,
                                 .chunk_bytes = 20000,
                                 .budget_bytes = 4096,
                                 .model = model},
                                directory.path(), kSteps, Finish::just_stop);
  EXPECT_EQ(outcome.error, "");
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    const auto& plan = outcome.plans[rank];
    EXPECT_GT(plan.chunks, 5u);
    EXPECT_EQ(plan.tiles, 6 * 2 + 1u);
    EXPECT_EQ(plan.step_read_bytes, (6 * 2 + 3 * 2) * 4096u);
    EXPECT_EQ(plan.step_written_bytes, (6 * 2 + 3) * 4096u);
    EXPECT_EQ(outcome.stats[rank].read_bytes,
              kSteps * plan.step_read_bytes + plan.install_read_bytes);
  }
}

// Matrices without a gradient leave their second moments alone, also in a tile that others use; a
// tile that nobody uses is not paged.
TEST(SecondMoments, OfWhatIsLeftUntouchedKeepTheirBits) {
  for (const auto placement : kPlacements) {
    const libmuon::EngineConfig config =
        config_of({.placement = placement, .budget_bytes = 4096}, model_with_moments());
    const TempDir directory;
    World world(std::move(libswap::open_backend(libswap::BackendChoice::automatic)->backend),
                directory.path(), 1);
    expect_well(world.run([&](libmuon::Communicator& ranks) -> Result<> {
      EBB_TRY_ASSIGN(auto rank, RankEngine::open(world, ranks, config));
      const auto stored = [&]() -> Result<std::map<std::string, std::vector<float>>> {
        EBB_TRY(rank.commit());
        return tensors_of(directory.path());
      };
      EBB_TRY(step_to(rank, 2));
      EBB_TRY_ASSIGN(const auto before, stored());
      const auto step_without =
          [&](const std::function<bool(const std::string&)>& none) -> Result<> {
        rank.make_gradients(3);
        for (std::uint32_t param = 0; param < config.model.params.size(); ++param) {
          if (none(config.model.params[param].name)) {
            EBB_TRY(rank.engine().no_gradient(param, libmuon::WithoutGradient::untouched));
          } else {
            EBB_TRY(rank.engine().gradient_ready(param, rank.gradients()[param]));
          }
        }
        EBB_TRY(rank.step());
        return {};
      };
      EBB_TRY(step_without([](const std::string& name) { return name == "row" || name == "qkv"; }));
      EBB_TRY_ASSIGN(const auto behind, stored());
      for (const auto& [what, values] : behind) {
        if (!what.ends_with(kState)) continue;
        const bool untouched = what.starts_with("row ") || what.starts_with("qkv ");
        EXPECT_EQ(values == before.at(what), untouched) << what;
      }
      const std::uint64_t read = rank.engine().stats().read_bytes;
      EBB_TRY(step_without([](const std::string& name) { return name != "scale"; }));
      EXPECT_EQ(rank.engine().stats().read_bytes - read, 4096u) << "one tile of AdamW's";
      return {};
    }));
  }
}

TEST(SecondMoments, OfAStateThatHadNoneBeginAtZeroAndAreNamed) {
  libmuon::ModelSpec model;
  model.groups = {spec_of("keller")};
  model.params = {{"a", {12, 20}, 0}, {"b", {20, 12}, 0}};
  const TempDir directory;
  ASSERT_EQ(train({.model = model}, directory.path(), 1).error, "");
  const auto before = tensors_of(directory.path());
  model.groups = {spec_of("normuon")};
  const Outcome outcome = train({.model = model}, directory.path(), 1);
  EXPECT_EQ(outcome.error, "");
  EXPECT_NE(outcome.origin.find("second moments from zero: a, b"), std::string::npos)
      << outcome.origin;
  EXPECT_NE(outcome.origin.find("second_moment is rows, was none"), std::string::npos)
      << outcome.origin;
  auto behind = tensors_of(directory.path());
  EXPECT_EQ(behind.at(std::string("a ") + kState), std::vector<float>(12));
  std::erase_if(behind, [](const auto& one) { return one.first.ends_with(kState); });
  EXPECT_TRUE(behind == before);
}

TEST(SecondMoments, ThatHaveNoPlaceAreRefusedByName) {
  const auto plan = [](MuonSpec spec, Shape shape) {
    libmuon::ModelSpec model;
    model.groups = {std::move(spec)};
    model.params = {{"only", std::move(shape), 0}};
    return libmuon::Engine::plan(config_of({}, model), Rank{0});
  };
  EXPECT_TRUE(plan(spec_of("normuon"), {1024, 2}));
  const auto large = plan(spec_of("normuon"), {1025, 2});
  ASSERT_FALSE(large);
  EXPECT_EQ(large.error().code, Code::unsupported);
  EXPECT_EQ(large.error().message,
            "parameter only: a matrix of 1025 second moments, where a tile holds 1024");
  const auto columns = plan(spec_of("nanogpt", {libmuon::Split::Kind::rows, {30, 10}}), {40, 20});
  ASSERT_FALSE(columns);
  EXPECT_EQ(columns.error().code, Code::layout);
  EXPECT_EQ(columns.error().message,
            "parameter only, shape [40, 20]: a part of its split, 10 x 20, has second moments of "
            "columns");
}

}  // namespace
}  // namespace ebb::test::second_moment_tests
