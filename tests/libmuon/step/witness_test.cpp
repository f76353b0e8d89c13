// Engine runs beside witnesses that share nothing with it: plain fp64 arithmetic over whole
// tensors, and what torch and KellerJordan/Muon computed. Weights and stored state, by name.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "ebb/libswap/queue/io_queue.h"
#include "tests/libmuon/support/muon_trace.h"
#include "tests/libmuon/support/reference.h"
#include "tests/libmuon/support/training.h"
#include "tests/libmuon/support/world.h"

namespace ebb::test::witness_tests {
namespace {

using libmuon::Communicator;
using libmuon::testing::number_after;
using libmuon::testing::relative_distance;
using libmuon::testing::Trace;

constexpr std::uint64_t kSteps = 4;

// Two groups of each optimizer, shapes of every kind, Newton-Schulz coefficients that change from
// step to step.
libmuon::ModelSpec two_groups_each() {
  auto first = libmuon::MuonSpec::keller();
  first.weight_decay = 0.1;
  auto second = libmuon::MuonSpec::keller();
  second.momentum = libmuon::Momentum::sum;
  second.beta = 0.8;
  second.nesterov = false;
  second.scale = libmuon::ScaleRule::match_rms_adamw;
  second.iterations = {{4.0f, -6.0f, 2.6f}, {3.5f, -4.8f, 2.0f}, {2.0f, -1.5f, 0.5f}};
  libmuon::ModelSpec model;
  model.groups = {first, libmuon::AdamSpec{.lr = 1e-2, .weight_decay = 0.02}, second,
                  libmuon::AdamSpec{.lr = 3e-3, .beta1 = 0.8, .beta2 = 0.99, .eps = 1e-8}};
  model.params = {{"emb", {37, 24}, 1}, {"qkv", {72, 24}, 0},  {"norm", {24}, 3},
                  {"up", {96, 24}, 2},  {"down", {24, 96}, 2}, {"prime", {31, 13}, 0},
                  {"head", {37, 24}, 1}};
  return model;
}

struct Cut {
  std::string name;
  Layout::Spec gradients, weights;
  libmuon::Placement placement = libmuon::Placement::owner;
  std::uint32_t world() const { return gradients.mesh.world(); }
};

std::vector<Cut> cuts() {
  const auto spec = [](Policy policy, std::uint32_t ranks, std::uint32_t copies = 1) {
    return Layout::Spec{.policy = policy, .mesh = {ranks, copies}, .align_elems = 16};
  };
  Layout::Spec uneven = spec(Policy::uneven_rows, 3);
  std::vector<Shape> shapes;
  for (const libmuon::ParamSpec& param : two_groups_each().params) shapes.push_back(param.shape);
  add_lists(shapes, uneven);
  std::vector<Cut> all = {
      {"alone", spec(Policy::replicated, 1), spec(Policy::replicated, 1)},
      {"DDP", spec(Policy::replicated, 3), spec(Policy::replicated, 3)},
      {"ZeRO-2", spec(Policy::zero12, 3), spec(Policy::replicated, 3)},
      {"ZeRO-2, whole parameters", spec(Policy::zero12_boundary, 2), spec(Policy::zero12, 2)},
      {"ZeRO-3", spec(Policy::zero3, 4), spec(Policy::zero3, 4)},
      {"FSDP2", spec(Policy::rows, 3), spec(Policy::rows, 3)},
      {"Megatron-FSDP, uneven", uneven, uneven},
      {"HSDP", spec(Policy::zero3, 2, 2), spec(Policy::zero3, 2, 2)},
      {"HSDP, weights whole", spec(Policy::rows, 2, 2), spec(Policy::replicated, 4)}};
  const std::size_t cuts = all.size();
  for (std::size_t i = 0; i < cuts; ++i) {
    Cut on_shards = all[i];
    on_shards.placement = libmuon::Placement::shard;
    on_shards.name += ", state on shards";
    all.push_back(std::move(on_shards));
  }
  return all;
}

libmuon::EngineConfig config_of(const libmuon::ModelSpec& model, const Cut& cut) {
  libmuon::EngineConfig config{
      .model = model,
      .partition = {.gradients = cut.gradients, .weights = cut.weights, .placement = cut.placement},
      .budget_bytes = 4 * 4096,
      .tile_bytes = 4096,
      .chunk_bytes = 8192};
  add_what_tiles_need_beside(config);
  return config;
}

Reference::Tensor whole_gradient(std::uint32_t param, std::uint64_t step, std::uint64_t elems) {
  Reference::Tensor gradient(elems);
  for (std::uint64_t i = 0; i < elems; ++i)
    gradient[i] = static_cast<double>(noise(param, step, i));
  return gradient;
}

double rate(std::uint32_t group, std::uint64_t step) {
  return 0.01 / static_cast<double>((group + 1) * step);
}

Reference reference_run(const libmuon::ModelSpec& model, const libmuon::StepArgs& args,
                        std::vector<double>& norms) {
  Reference reference(model);
  for (std::uint32_t param = 0; param < model.params.size(); ++param)
    reference.begin(whole_gradient(1000 + param, 0, formats::volume(model.params[param].shape)));
  for (std::uint64_t step = 1; step <= kSteps; ++step) {
    std::vector<Reference::Tensor> gradients;
    for (std::uint32_t param = 0; param < model.params.size(); ++param)
      gradients.push_back(whole_gradient(param, step, formats::volume(model.params[param].shape)));
    for (std::uint32_t group = 0; group < model.groups.size(); ++group)
      reference.set_learning_rate(group, rate(group, step));
    norms.push_back(reference.step(std::move(gradients), args.inv_scale, args.max_norm));
  }
  return reference;
}

// Each rank's weights against its part of the reference's.
void expect_weights(RankEngine& rank, Rank number, const Reference& reference,
                    const libmuon::ModelSpec& model, const std::string& what) {
  for (std::uint32_t param = 0; param < model.params.size(); ++param) {
    const FlatRange held = rank.engine().state_plan().weights().held(param, number);
    const auto& all = reference.weights()[param];
    const auto first = all.begin() + static_cast<std::ptrdiff_t>(held.first);
    const std::vector<double> wanted(first, first + static_cast<std::ptrdiff_t>(held.count));
    ASSERT_EQ(rank.weights()[param].size(), wanted.size());
    if (wanted.empty()) continue;
    EXPECT_LT(relative_distance(rank.weights()[param], wanted), 1e-4)
        << what << ", rank " << index_of(number) << ": " << model.params[param].name;
  }
}

void follow(const Cut& cut, const libmuon::StepArgs& args, const std::string& what) {
  const libmuon::ModelSpec model = two_groups_each();
  std::vector<double> norms;
  const Reference reference = reference_run(model, args, norms);
  const TempDir directory;
  World world(disk(), directory.path(), cut.world());
  const auto answers = world.run([&](Communicator& ranks) -> Result<> {
    EBB_TRY_ASSIGN(auto rank, RankEngine::open(world, ranks, config_of(model, cut)));
    for (std::uint64_t step = 1; step <= kSteps; ++step) {
      for (std::uint32_t group = 0; group < model.groups.size(); ++group)
        EBB_TRY(rank.engine().set_learning_rate(group, rate(group, step)));
      EBB_TRY(rank.hand_in(step));
      EBB_TRY_ASSIGN(const auto result, rank.step(args));
      EXPECT_FALSE(result.skipped);
      EXPECT_NEAR(result.norm, norms[step - 1], 1e-12 * norms[step - 1]) << what;
      EXPECT_EQ(result.clip < 1, args.max_norm > 0 && norms[step - 1] > args.max_norm) << what;
    }
    expect_weights(rank, ranks.rank(), reference, model, what);
    EBB_TRY(rank.commit());
    return {};
  });
  for (const auto& answer : answers) ASSERT_TRUE(answer) << what << ": " << answer.error().message;
  const auto stored = tensors_of(directory.path());
  const auto wanted = reference.everything();
  ASSERT_EQ(stored.size(), wanted.size()) << what;
  for (const auto& [name, values] : wanted) {
    ASSERT_TRUE(stored.contains(name)) << what << ": " << name;
    EXPECT_LT(relative_distance(stored.at(name), values), 1e-4) << what << ": " << name;
  }
}

TEST(Witness, PlainArithmeticOnEveryPartitionWithoutClipping) {
  for (const Cut& cut : cuts()) follow(cut, {}, cut.name);
}

TEST(Witness, PlainArithmeticOnEveryPartitionWhereTheNormIsClipped) {
  for (const Cut& cut : cuts())
    follow(cut, {.inv_scale = 0.25, .max_norm = 2.5}, cut.name + ", clipped");
}

TEST(Witness, PlainArithmeticWhereTheNormIsBelowTheLimit) {
  for (const Cut& cut : cuts())
    follow(cut, {.inv_scale = 0.001, .max_norm = 3}, cut.name + ", below the limit");
}

// Both traces at once, as two groups of one model on three ranks.
TEST(Witness, TheStepsOfTorchAndKellerJordan) {
  const Trace keller("keller-wide-gauss"), adamw("adamw-torch");
  libmuon::ModelSpec model;
  auto muon = libmuon::MuonSpec::keller();
  muon.weight_decay = number_after(keller.description(), {"runs", "as_is", "weight_decay"});
  model.groups = {libmuon::AdamSpec::torch(), muon};
  model.params = {{"vector", {1031}, 0}, {"matrix", {24, 40}, 1}};
  const std::vector<std::vector<float>> start = {adamw.tensor("param.0"), keller.tensor("param.0")};
  const TempDir directory;
  World world(disk(), directory.path(), 3);
  const Cut cut{"",
                {.policy = Policy::zero3, .mesh = {3, 1}},
                {.policy = Policy::replicated, .mesh = {3, 1}}};
  std::vector<std::vector<float>> weights(2);
  const auto answers = world.run([&](Communicator& ranks) -> Result<> {
    const auto begin = [&](std::uint32_t param, FlatRange range, std::span<float> into) {
      std::copy_n(start[param].begin() + static_cast<std::ptrdiff_t>(range.first), range.count,
                  into.begin());
    };
    EBB_TRY_ASSIGN(const auto engine,
                   libmuon::Engine::open(config_of(model, cut), ranks, world.io(), world.swap(),
                                         {.initial = begin}));
    std::vector<std::vector<float>> mine = start, gradients(2);
    for (std::uint32_t param = 0; param < 2; ++param)
      EBB_TRY(engine->bind_weights(param, mine[param]));
    for (int step = 1; step <= 20; ++step) {
      for (std::uint32_t param = 0; param < 2; ++param) {
        const auto all = (param == 0 ? adamw : keller).gradient(step);
        const FlatRange held = engine->state_plan().gradients().held(param, ranks.rank());
        const auto first = all.begin() + static_cast<std::ptrdiff_t>(held.first);
        gradients[param].assign(first, first + static_cast<std::ptrdiff_t>(held.count));
        EBB_TRY(engine->gradient_ready(param, gradients[param]));
      }
      EBB_TRY(engine->step({}));
    }
    EBB_TRY(engine->snapshot());
    EBB_TRY(engine->wait_snapshot());
    if (ranks.rank() == Rank{2}) weights = mine;
    return {};
  });
  for (const auto& answer : answers) ASSERT_TRUE(answer) << answer.error().message;
  const auto muon_limit = [&](const char* key) {
    return number_after(keller.description(), {"runs", "as_is", "tolerance", key});
  };
  const auto adam_limit = [&](const char* key) {
    return 2 * number_after(adamw.description(), {"tolerance", key});
  };
  EXPECT_LE(adamw.update_distance("fused", 20, weights[0]), adam_limit("update_vs_fp64"));
  EXPECT_LE(keller.update_distance("as_is", 20, weights[1]), muon_limit("update.20_vs_trace"));
  const auto stored = tensors_of(directory.path());
  EXPECT_LE(
      relative_distance(stored.at("matrix momentum_buffer"), keller.tensor("as_is.momentum.20")),
      muon_limit("momentum_vs_trace"));
  EXPECT_LE(relative_distance(stored.at("vector exp_avg"), adamw.tensor("fused.exp_avg.20")),
            adam_limit("exp_avg"));
  EXPECT_LE(relative_distance(stored.at("vector exp_avg_sq"), adamw.tensor("fused.exp_avg_sq.20")),
            adam_limit("exp_avg_sq"));
  EXPECT_EQ(stored.at("vector master"), weights[0]);
  EXPECT_EQ(stored.at("matrix master"), weights[1]);
}

}  // namespace
}  // namespace ebb::test::witness_tests
