// A mixture of experts on worlds with axes. The witness is a communicator that notes who sends how
// much to whom.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <string>

#include "ebb/libmuon/step/early.h"
#include "ebb/libswap/queue/io_queue.h"
#include "ebb/libswap/testing/memory_backend.h"
#include "tests/libmuon/support/training.h"
#include "tests/libmuon/support/watched_ranks.h"
#include "tests/libmuon/support/world.h"

namespace ebb::test::axes_tests {
namespace {

using libmuon::Axis;
using libmuon::AxisLayout;
using libmuon::Communicator;
using libmuon::Engine;
using libmuon::EngineConfig;
using libmuon::ModelSpec;

constexpr std::uint32_t kExperts = 4;
constexpr libmuon::StepArgs kArgs{.inv_scale = 0.5, .max_norm = 20};

enum class Dense : std::uint8_t { with, without };

// The experts' places are those of a case.
ModelSpec mixture(Dense dense) {
  auto muon = libmuon::MuonSpec::keller();
  muon.weight_decay = 0.1;
  ModelSpec model;
  model.groups = {muon, libmuon::AdamSpec{.lr = 1e-2, .weight_decay = 0.01}};
  if (dense == Dense::with)
    model.params = {{"emb", {37, 24}, 1}, {"qkv", {72, 24}, 0}, {"norm", {24}, 1}};
  for (std::uint32_t expert = 0; expert < kExperts; ++expert) {
    const std::string name = "expert." + std::to_string(expert);
    model.params.push_back({name + ".up", {96, 24}, 0, "experts"});
    model.params.push_back({name + ".down", {24, 96}, 0, "experts"});
    model.params.push_back({name + ".prime", {31, 13}, 0, "experts"});
    model.params.push_back({name + ".bias", {17}, 1, "experts"});
  }
  if (dense == Dense::with) model.params.push_back({"proj", {24, 24}, 0});
  return model;
}

// A world, and how both partitions are cut on it.
struct Case {
  std::string name;
  std::vector<Axis> axes;
  AxisLayout dense, experts;
  std::uint64_t chunk_bytes = 8192;
  libmuon::Placement placement = libmuon::Placement::owner;
};

std::uint32_t world_of(const Case& c) {
  std::uint32_t ranks = 1;
  for (const Axis& axis : c.axes) ranks *= axis.size;
  return ranks;
}

std::uint32_t places(const Case& c) {
  return std::ranges::find(c.axes, "expert", &Axis::name)->size;
}

// Of a rank: by counting down the faster axes.
std::uint32_t place_of_rank(const Case& c, std::uint32_t rank) {
  std::uint32_t behind = 1;
  for (auto axis = c.axes.rbegin(); axis->name != "expert"; ++axis) behind *= axis->size;
  return rank / behind % places(c);
}

EngineConfig config_of(const Case& c, Dense dense = Dense::with) {
  EngineConfig config{.model = mixture(dense),
                      .budget_bytes = 4 * 4096,
                      .tile_bytes = 4096,
                      .chunk_bytes = c.chunk_bytes,
                      .early_gradient_bytes = c.chunk_bytes};
  config.partition.placement = c.placement;
  config.partition.axes = c.axes;
  config.partition.parts = {{"dense", c.dense, c.dense}, {"experts", c.experts, c.experts}};
  std::uint32_t of_experts = 0;  // four parameters each
  for (libmuon::ParamSpec& param : config.model.params) {
    if (param.partition.empty())
      param.partition = "dense";
    else
      param.at = {{"expert", of_experts++ / 4 * places(c) / kExperts}};
  }
  add_what_tiles_need_beside(config);
  return config;
}

// The three worlds of the experts' axis, and one where its ranks do not lie side by side and all
// has copies; each policy and chunk size on each, and both placements, turn and turn about.
std::vector<Case> cases() {
  std::vector<Case> all;
  for (const Policy policy : {Policy::zero12, Policy::zero3, Policy::rows})
    for (const std::uint64_t bytes : {1u, 8192u, 256u << 20}) {
      const Layout::Spec cut{.policy = policy, .align_elems = 16};
      const auto add = [&](std::string_view name, const std::vector<Axis>& axes,
                           const AxisLayout& dense, const AxisLayout& experts) {
        for (const auto placement : kPlacements)
          all.push_back({compose("{}, chunks of {}, {}, placement {}", formats::name_of(policy),
                                 bytes, name, name_of(placement)),
                         axes, dense, experts, bytes, placement});
      };
      add("expert 2 x data 2", {{"expert", 2}, {"data", 2}}, {cut, {"expert", "data"}},
          {cut, {"data"}});
      add("expert 4 x data 1", {{"expert", 4}, {"data", 1}}, {cut, {"expert", "data"}},
          {cut, {"data"}});
      add("expert 2 x replica 2", {{"expert", 2}, {"replica", 2}}, {cut, {"expert"}, {"replica"}},
          {cut, {}, {"replica"}});
      add("outer 2 x inner 2 x expert 2", {{"outer", 2}, {"inner", 2}, {"expert", 2}},
          {cut, {"expert", "inner", "outer"}}, {cut, {"inner", "outer"}});
      add("replica 2 x data 2 x expert 2", {{"replica", 2}, {"data", 2}, {"expert", 2}},
          {cut, {"data", "expert"}, {"replica"}}, {cut, {"data"}, {"replica"}});
    }
  return all;
}

// A trainer that has nothing of the experts of other ranks, and binds and hands in nothing.
class Trainer {
 public:
  static Result<Trainer> open(World& world, Communicator& ranks, const EngineConfig& config) {
    Trainer trainer;
    EBB_TRY_ASSIGN(trainer.engine_, Engine::open(config, ranks, world.io(), world.swap(),
                                                 {.initial = noisy_weights}));
    const libmuon::StatePlan& plan = trainer.engine_->state_plan();
    const auto params = static_cast<std::uint32_t>(config.model.params.size());
    trainer.weights_ = std::make_unique<std::vector<std::vector<float>>>(params);
    trainer.gradients_.resize(params);
    for (std::uint32_t param = 0; param < params; ++param) {
      if (!plan.here(param)) continue;
      auto& weights = (*trainer.weights_)[param];
      weights.resize(plan.weights().local_elems(param, plan.rank()));
      EBB_TRY(trainer.engine_->bind_weights(param, weights));
    }
    EBB_TRY(trainer.engine_->install_weights());
    return trainer;
  }

  Result<libmuon::StepResult> step() {
    const libmuon::StatePlan& plan = engine_->state_plan();
    for (std::uint32_t param = 0; param < gradients_.size(); ++param) {
      if (!plan.here(param)) continue;
      const FlatRange held = plan.gradients().held(param, plan.rank());
      gradients_[param].resize(held.count);
      for (std::uint64_t i = 0; i < held.count; ++i)
        gradients_[param][i] = noise(param, engine_->step_count() + 1, held.first + i);
      EBB_TRY(engine_->gradient_ready(param, gradients_[param]));
    }
    return engine_->step(kArgs);
  }

  Engine& engine() { return *engine_; }

 private:
  std::unique_ptr<std::vector<std::vector<float>>> weights_;  // their addresses are bound
  std::vector<std::vector<float>> gradients_;
  std::unique_ptr<Engine> engine_;
};

void expect_well(const std::vector<Result<>>& answers, const std::string& what) {
  for (const auto& answer : answers) ASSERT_TRUE(answer) << what << ": " << answer.error().message;
}

// Without dense parameters nothing at all leaves the ranks of an expert's place.
TEST(Axes, NothingOfAnExpertLeavesItsRanks) {
  for (const Case& c : cases()) {
    World world(libswap::make_memory_backend(libswap::MemoryDisk::create(1u << 28)), "/swap",
                world_of(c));
    const EngineConfig config = config_of(c, Dense::without);
    Sent sent;
    expect_well(world.run([&](Communicator& below) -> Result<> {
      WatchedDuplicates ranks(below, sent);
      EBB_TRY_ASSIGN(Trainer trainer, Trainer::open(world, ranks, config));
      EBB_TRY(trainer.step());
      return {};
    }),
                c.name);
    std::uint64_t all = 0;
    for (const auto& [pair, bytes] : sent.bytes) {
      EXPECT_EQ(place_of_rank(c, pair.first), place_of_rank(c, pair.second))
          << c.name << ": " << bytes << " bytes from " << pair.first << " to " << pair.second;
      all += bytes;
    }
    EXPECT_EQ(all > 0, world_of(c) > places(c)) << c.name;
  }
}

// An expert gathered over all ranks, as dense parameters are, or one of other ranks.
TEST(Axes, MoreOfAnExpertThanTheRankHasIsRefused) {
  const Layout::Spec rows{.policy = Policy::rows};
  const Case c{"", {{"expert", 2}, {"data", 2}}, {rows, {"expert", "data"}}, {rows, {"data"}}};
  World world(libswap::make_memory_backend(libswap::MemoryDisk::create(1u << 28)), "/swap", 4);
  expect_well(world.run([&](Communicator& ranks) -> Result<> {
    EBB_TRY_ASSIGN(Trainer trainer, Trainer::open(world, ranks, config_of(c)));
    const std::vector<float> whole(96 * 24);
    for (const std::uint32_t param : {3u, 11u}) {  // `up` of the first and of the third expert
      const std::uint64_t held = trainer.engine().state_plan().here(param) ? 48 * 24 : 0;
      const Result<> answer = trainer.engine().gradient_ready(param, whole);
      EXPECT_FALSE(answer);
      if (answer) continue;
      EXPECT_EQ(answer.error().code, Code::layout);
      EXPECT_EQ(answer.error().message,
                compose("gradient of expert.{}.up on rank {}: 2304 elements handed in, the layout "
                        "gives this rank {}",
                        param == 3 ? 0 : 2, index_of(ranks.rank()), held));
    }
    return {};
  }),
              "");
}

// Gradients of other ranks' experts never come: the chunks are whole without them.
TEST(Axes, ChunksAreWholeWithoutTheExpertsOfOtherRanks) {
  for (const Case& c : cases()) {
    if (c.placement == libmuon::Placement::shard) continue;  // none come early
    const EngineConfig config = config_of(c);
    const auto plan = libmuon::StatePlan::make(config.model, config.partition, config.tile_bytes,
                                               Rank{1}, config.chunk_bytes);
    ASSERT_TRUE(plan);
    const libmuon::Chunks chunks(*plan, config.chunk_bytes);
    libmuon::EarlyGradients early(*plan, chunks, chunks.count());
    std::size_t whole = 0, last = 0;
    for (std::uint32_t param = 0; param < (*plan).params(); ++param)
      if ((*plan).here(param)) last = param;
    for (std::uint32_t param = 0; param <= last; ++param) {
      EXPECT_LT(whole, chunks.count()) << c.name;
      if ((*plan).here(param)) whole = early.add(param);
    }
    EXPECT_EQ(whole, chunks.count()) << c.name;
  }
}

// What all ranks say of a world of which rank 1 is told otherwise.
Error difference(const std::function<void(EngineConfig&)>& change) {
  const Layout::Spec zero3{.policy = Policy::zero3};
  const Case c{"", {{"expert", 2}, {"data", 2}}, {zero3, {"expert", "data"}}, {zero3, {"data"}}};
  World world(libswap::make_memory_backend(libswap::MemoryDisk::create(1u << 28)), "/swap", 4);
  const auto answers = world.run([&](Communicator& ranks) -> Result<> {
    EngineConfig config = config_of(c);
    if (ranks.rank() == Rank{1}) change(config);
    EBB_TRY(Trainer::open(world, ranks, config));
    return {};
  });
  for (const Result<>& answer : answers) {
    const bool named = !answer && answer.error().message == answers.front().error().message;
    EXPECT_TRUE(named);
  }
  return answers.front() ? Error{} : answers.front().error();
}

TEST(Axes, ThatAreNotTheSameOnAllRanksAreNamed) {
  const std::vector<std::pair<std::function<void(EngineConfig&)>, std::string>> changes = {
      {[](EngineConfig& config) { config.partition.axes = {{"expert", 4}, {"data", 1}}; },
       "the axes of the world is not the same on all ranks: expert 2 x data 2 on ranks 0, 2, 3; "
       "expert 4 x data 1 on rank 1"},
      {[](EngineConfig& config) { config.partition.parts[1].weights.layout.policy = Policy::rows; },
       "the weights of partition experts is not the same on all ranks: zero3 over"},
      {[](EngineConfig& config) { config.model.params[3].at[0].index = 1; },
       "parameter 3 is not the same on all ranks: expert.0.up [96, 24] in group 0, partition "
       "experts, expert 0 on ranks 0, 2, 3; expert.0.up [96, 24] in group 0, partition experts, "
       "expert 1 on rank 1"}};
  for (const auto& [change, message] : changes) {
    const Error error = difference(change);
    EXPECT_EQ(error.message.substr(0, message.size()), message);
    EXPECT_EQ(error.code, Code::usage);
  }
}

TEST(Axes, OfMoreRanksThanThereAreAreRefused) {
  const Layout::Spec zero3{.policy = Policy::zero3};
  World world(libswap::make_memory_backend(libswap::MemoryDisk::create(1u << 28)), "/swap", 2);
  const auto answers = world.run([&](Communicator& ranks) -> Result<> {
    EBB_TRY(Trainer::open(
        world, ranks,
        config_of(
            {"", {{"expert", 2}, {"data", 2}}, {zero3, {"expert", "data"}}, {zero3, {"data"}}})));
    return {};
  });
  ASSERT_FALSE(answers.front());
  EXPECT_EQ(answers.front().error().code, Code::layout);
  EXPECT_EQ(answers.front().error().message,
            "the axes expert 2 x data 2 are for 4 ranks, 2 are here");
}

}  // namespace
}  // namespace ebb::test::axes_tests
