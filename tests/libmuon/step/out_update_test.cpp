// Groups whose trainer keeps the masters: what a step hands out is added to them, and they become
// what the engine's own would have.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>

#include "ebb/formats/core/bf16.h"
#include "ebb/libswap/queue/io_queue.h"
#include "tests/libmuon/support/failing_world.h"
#include "tests/libmuon/support/late_accelerator.h"

namespace ebb::test {
namespace {

using libmuon::Communicator;
using libmuon::EngineConfig;
using libmuon::ModelSpec;
using libmuon::MuonSpec;
using libmuon::Out;

constexpr std::uint64_t kSteps = 4;

std::unique_ptr<libswap::IoBackend> disk() {
  auto chosen = libswap::open_backend(libswap::BackendChoice::automatic);
  EBB_CHECK(chosen.has_value());
  return std::move(chosen->backend);
}

// Matrices of two Muon groups in turn, small ones among them; of the groups in `updates` the
// trainer keeps the masters.
ModelSpec model_of(const std::vector<std::uint32_t>& updates) {
  ModelSpec model = nuisance_model();
  MuonSpec torch = MuonSpec::keller();
  torch.lr = 0.01;
  torch.scale = libmuon::ScaleRule::match_rms_adamw;
  std::get<MuonSpec>(model.groups[0]).weight_decay = 0;
  model.groups.push_back(torch);
  for (int i = 0; i < 6; ++i)
    model.params.push_back({compose("small.{}", i), {6, 5}, i % 3 == 0 ? 2u : 0u});
  model.params[5].group = 2;
  for (const std::uint32_t group : updates)
    std::get<MuonSpec>(model.groups[group]).out = Out::update;
  return model;
}

bool is_update(const EngineConfig& config, std::uint32_t param) {
  return libmuon::out_of(config.model.groups[config.model.params[param].group]) == Out::update;
}

// The weights of a trainer: those that it keeps, else those that were handed out.
struct Trainer {
  RankEngine rank;
  std::vector<std::vector<float>> kept;  // by parameter; empty: the engine's

  static Result<Trainer> open(World& world, Communicator& ranks, const EngineConfig& config) {
    EBB_TRY_ASSIGN(auto rank, RankEngine::open(world, ranks, config));
    Trainer trainer{std::move(rank), {}};
    const libmuon::StatePlan& plan = trainer.rank.engine().state_plan();
    trainer.kept.resize(plan.params());
    for (std::uint32_t param = 0; param < plan.params(); ++param) {
      if (!is_update(config, param)) continue;
      const FlatRange held = plan.weights().held(param, plan.rank());
      trainer.kept[param].resize(held.count);
      noisy_weights(param, held, trainer.kept[param]);
    }
    return trainer;
  }
  // p += update, of what has the parameter's local shape.
  void add_updates() {
    const auto all = flat_by_param();
    for (std::size_t param = 0; param < kept.size(); ++param)
      for (std::size_t i = 0; i < kept[param].size(); ++i) kept[param][i] += all[param][i];
  }
  std::vector<std::vector<float>> flat_by_param() {
    static_cast<void>(rank.flat_weights());  // fetched, if they lie on a device
    return rank.weights();
  }
  std::vector<std::vector<float>> weights() {
    auto all = flat_by_param();
    for (std::size_t param = 0; param < kept.size(); ++param)
      if (!kept[param].empty()) all[param] = kept[param];
    return all;
  }
};

struct Trained {
  std::vector<std::vector<std::vector<float>>> weights;  // by rank and parameter
  std::map<std::string, std::vector<float>> tensors;
};

Trained train_with(const EngineConfig& config) {
  Trained trained;
  const std::uint32_t world_size = libmuon::world_of(config.partition);
  trained.weights.resize(world_size);
  const TempDir directory;
  World world(disk(), directory.path(), world_size);
  expect_well(world.run([&](Communicator& ranks) -> Result<> {
    EBB_TRY_ASSIGN(Trainer trainer, Trainer::open(world, ranks, config));
    for (std::uint64_t step = 1; step <= kSteps; ++step) {
      EBB_TRY(trainer.rank.hand_in(step));
      EBB_TRY_ASSIGN(const auto result, trainer.rank.step({.max_norm = 3}));
      EXPECT_FALSE(result.skipped);
      trainer.add_updates();
    }
    trained.weights[index_of(ranks.rank())] = trainer.weights();
    EBB_TRY(trainer.rank.commit());
    return {};
  }));
  trained.tensors = tensors_of(directory.path());
  return trained;
}

void expect_what_masters_become(const Training& setup, const std::string& what) {
  Training plain = setup;
  plain.model = model_of({});
  const EngineConfig reference = config_of(plain, plain.model);
  const Trained wanted = train_with(reference);
  for (const std::vector<std::uint32_t>& updates : {std::vector<std::uint32_t>{2}, {0, 2}}) {
    Training keeping = setup;
    keeping.model = model_of(updates);
    const EngineConfig config = config_of(keeping, keeping.model);
    const Trained trained = train_with(config);
    EXPECT_TRUE(trained.weights == wanted.weights) << what;
    for (std::uint32_t param = 0; param < config.model.params.size(); ++param) {
      const std::string& name = config.model.params[param].name;
      EXPECT_EQ(trained.tensors.contains(name + " master"), !is_update(config, param)) << name;
    }
    for (const auto& [name, values] : trained.tensors)
      EXPECT_TRUE(values == wanted.tensors.at(name)) << what << ": " << name;
  }
}

TEST(OutUpdate, AddedToTheTrainersMastersIsWhatTheEnginesWouldHaveBecome) {
  expect_what_masters_become({.ranks = 1, .budget_bytes = kLittle}, "alone");
  for (const Policy weights : {Policy::replicated, Policy::zero3, Policy::zero12, Policy::rows,
                               Policy::uneven_rows, Policy::layer_wise})
    for (const std::uint64_t chunk_bytes : {6000u, 20000u, 1u << 28})
      expect_what_masters_become({.ranks = 3,
                                  .gradients = Policy::zero3,
                                  .weights = weights,
                                  .chunk_bytes = chunk_bytes,
                                  .budget_bytes = kLittle,
                                  .threads = 2},
                                 compose("{}, chunks of {}", name_of(weights), chunk_bytes));
}

TEST(OutUpdate, ComesFromADeviceThatIsLate) {
  for (const libmuon::Side side : {libmuon::Side::host, libmuon::Side::device}) {
    LateAccelerator accelerator(5, 50);
    expect_what_masters_become({.ranks = 2,
                                .chunk_bytes = 6000,
                                .accelerator = &accelerator,
                                .gradients_on = side,
                                .weights_on = side},
                               "late");
  }
}

// Rounded once, as weights in bf16 are.
TEST(OutUpdate, InBf16IsTheUpdateRoundedOnce) {
  const Training setup{.ranks = 2, .model = model_of({0, 2})};
  EngineConfig wide = config_of(setup, setup.model), narrow = wide;
  constexpr std::uint32_t kParam = 5;
  narrow.model.params[kParam].weight = DType::bf16;
  std::vector<float> in_fp32;
  std::vector<std::uint16_t> in_bf16(formats::volume(wide.model.params[kParam].shape));
  for (const EngineConfig& config : {wide, narrow}) {
    World world(libswap::make_memory_backend(libswap::MemoryDisk::create(1u << 28)), "/swap", 2);
    expect_well(world.run([&](Communicator& ranks) -> Result<> {
      EBB_TRY_ASSIGN(
          const auto engine,
          libmuon::Engine::open(config, ranks, world.io(), world.swap(), noisy_weights, nullptr));
      const auto& plan = engine->state_plan();
      std::vector<std::vector<float>> weights, gradients;
      std::vector<std::uint16_t> bits(in_bf16.size());
      for (std::uint32_t param = 0; param < plan.params(); ++param) {
        weights.emplace_back(plan.weights().local_elems(param, ranks.rank()));
        gradients.emplace_back(plan.gradients().local_elems(param, ranks.rank()), 0.5f);
      }
      for (std::uint32_t param = 0; param < plan.params(); ++param) {
        const bool is_narrow = config.model.params[param].weight == DType::bf16;
        const auto bytes = std::as_writable_bytes(std::span(bits));
        EBB_TRY(engine->bind_weights(param, is_narrow
                                                ? libswap::buffer_of(bytes).as(DType::bf16)
                                                : libswap::buffer_of(std::span(weights[param]))));
        EBB_TRY(engine->gradient_ready(param, gradients[param]));
      }
      EBB_TRY(engine->install_weights());
      EBB_TRY(engine->step({}));
      if (ranks.rank() == Rank{1} && config.model.params[kParam].weight == DType::f32)
        in_fp32 = weights[kParam];
      if (ranks.rank() == Rank{1} && config.model.params[kParam].weight == DType::bf16)
        in_bf16 = bits;
      return {};
    }));
  }
  ASSERT_EQ(in_fp32.size(), in_bf16.size());
  EXPECT_NE(in_fp32.front(), 0.0f);
  for (std::size_t i = 0; i < in_fp32.size(); ++i)
    EXPECT_EQ(in_bf16[i], formats::f32_to_bf16(in_fp32[i])) << i;
}

// Where a step is cut, hands nothing out twice; where it is skipped, or a parameter is untouched,
// nothing; nor does installing.
TEST(OutUpdate, IsHandedOutOnceAStepWhateverHappensToIt) {
  const auto weights_of = [](std::uint64_t at, bool trouble) {
    EngineConfig config = config_with(kLittle);
    config.model = model_of({0, 2});
    config.budget_bytes = kLittle;
    add_what_tiles_need_beside(config);
    std::vector<std::vector<float>> weights;
    FailingWorld failing;
    expect_well(failing.world.run([&](Communicator& ranks) -> Result<> {
      EBB_TRY_ASSIGN(Trainer trainer, Trainer::open(failing.world, ranks, config));
      for (std::uint64_t step = 1; step <= 3; ++step) {
        if (trouble) {
          const auto before = trainer.flat_by_param();
          EBB_TRY(trainer.rank.hand_in(9, 1e30f));
          EBB_TRY_ASSIGN(const auto skipped, trainer.rank.step({.inv_scale = 1e30}));
          EXPECT_TRUE(skipped.skipped);
          EBB_TRY(trainer.rank.engine().install_weights());
          EXPECT_EQ(trainer.flat_by_param(), before);
          EBB_TRY(failing.fail_reads(ranks, at));
        }
        EBB_TRY(trainer.rank.hand_in(step));
        EBB_TRY_ASSIGN([[maybe_unused]] const bool went_on,
                       failing.mend(ranks, trainer.rank, trainer.rank.step()));
        trainer.add_updates();
      }
      if (ranks.rank() == Rank{1}) weights = trainer.weights();
      return {};
    }));
    return weights;
  };
  const auto wanted = weights_of(0, false);
  for (std::uint64_t at = 0; at < 14; ++at) EXPECT_EQ(weights_of(at, true), wanted) << at;
}

// Momentum is all that a store has of them; masters that are missing are not made up.
TEST(OutUpdate, AStoreGoesFromEnginesMastersToTheTrainersAndNotBack) {
  const TempDir directory;
  World world(disk(), directory.path(), 2);
  const auto open_as = [&](const std::vector<std::uint32_t>& updates, std::uint32_t ranks_now,
                           const std::string& origin) {
    world.reopen(ranks_now);
    const Training setup{.ranks = ranks_now, .model = model_of(updates)};
    return world.run([&](Communicator& ranks) -> Result<> {
      EBB_TRY_ASSIGN(auto rank, RankEngine::open(world, ranks, config_of(setup, setup.model)));
      EXPECT_EQ(rank.engine().origin().substr(0, origin.size()), origin);
      EBB_TRY(step_to(rank, rank.engine().step_count() + 1));
      EBB_TRY(rank.commit());
      return {};
    });
  };
  expect_well(open_as({}, 2, "created at step 0"));
  expect_well(
      open_as({0}, 2, "transferred the store of 2 ranks at step 1 (group 0: out is update"));
  expect_well(open_as({0}, 2, "resumed the store at step 2"));
  expect_well(open_as({0}, 3, "transferred the store of 2 ranks at step 3"));
  for (const auto& answer : open_as({}, 3, "")) {
    ASSERT_FALSE(answer);
    if (answer.error().code == Code::peer) continue;
    EXPECT_EQ(answer.error().code, Code::incomplete);
    EXPECT_NE(answer.error().message.find("no master of blk.0.qkv"), std::string::npos)
        << answer.error().message;
  }
}

TEST(OutUpdate, TakesAsMuchLessStateAndDisk) {
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    const auto plan_of = [&](const std::vector<std::uint32_t>& updates) {
      const Training setup{.ranks = 3, .model = model_of(updates)};
      EngineConfig config = config_of(setup, setup.model);
      config.tile_bytes = 4096;
      const auto plan = libmuon::Engine::plan(config, Rank{rank});
      EXPECT_TRUE(plan);
      const auto state = libmuon::StatePlan::make(config.model, config.partition, config.tile_bytes,
                                                  Rank{rank}, config.chunk_bytes);
      std::uint64_t masters = 0;  // of matrices
      for (std::uint32_t param = 0; param < (*state).params(); ++param)
        if ((*state).muon(param)) masters += 4 * (*state).own_range(param).count;
      return std::pair((*plan).state_bytes, masters);
    };
    const auto [with, masters] = plan_of({});
    EXPECT_EQ(plan_of({0, 2}).first, with - masters);
  }
}

}  // namespace
}  // namespace ebb::test
