// Groups whose trainer keeps the masters: what a step hands out is added to them, and they become
// what the engine's own would have, bit for bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "ebb/formats/core/bf16.h"
#include "ebb/libmuon/spec/presets.h"
#include "ebb/libswap/queue/io_queue.h"
#include "tests/libmuon/support/failing_world.h"
#include "tests/libmuon/support/keeping_trainer.h"
#include "tests/libmuon/support/late_accelerator.h"

namespace ebb::test {
namespace {

using libmuon::Communicator;
using libmuon::EngineConfig;
using libmuon::ModelSpec;
using libmuon::MuonSpec;
using libmuon::Out;
using libmuon::Placement;
using libmuon::SecondMoment;

constexpr std::uint64_t kSteps = 3;

// The masters are `wanted`, and so is the state that is stored, which has none of those.
void expect_trained(const EngineConfig& config, const Tensors& wanted, const std::string& what) {
  const TempDir directory;
  World world(disk(), directory.path(), libmuon::world_of(config.partition));
  expect_well(world.run([&](Communicator& ranks) -> Result<> {
    EBB_TRY_ASSIGN(auto trainer, KeepingTrainer::open(world, ranks, config));
    EBB_TRY(trainer.train(kSteps));
    EXPECT_EQ(trainer.differing(wanted), "") << what;
    return trainer.commit();
  }));
  const Tensors stored = tensors_of(directory.path());
  for (std::uint32_t param = 0; param < config.model.params.size(); ++param) {
    const std::string& name = config.model.params[param].name;
    EXPECT_EQ(stored.contains(name + " master"), out_of(config.model, param) == Out::weights)
        << what << ": " << name;
  }
  for (const auto& [name, values] : stored)
    EXPECT_TRUE(values == wanted.at(name)) << what << ": " << name;
}

struct Kept {
  SecondMoment moments = SecondMoment::none;
  libmuon::StateDTypes dtypes = {};
};

// With some groups' masters at the trainer, and with all.
void expect_what_masters_become(Training setup, const Kept& kept, const Tensors& wanted,
                                const std::string& what) {
  setup.dtypes = kept.dtypes;
  for (const std::vector<std::uint32_t>& updates :
       {std::vector<std::uint32_t>{2}, std::vector<std::uint32_t>{0, 2, 3}}) {
    setup.model = keeping_model(updates, kept.moments);
    expect_trained(config_of(setup, setup.model), wanted,
                   compose("{}, {} groups", what, updates.size()));
  }
}

Tensors wanted_of(const Kept& kept) {
  return trained_alone(keeping_model({}, kept.moments), kSteps, kept.dtypes);
}

TEST(OutUpdate, AddedToTheTrainersMastersIsWhatTheEnginesWouldHaveBecome) {
  const Tensors wanted = wanted_of({});
  ASSERT_TRUE(std::signbit(wanted.at("blk.0.proj master")[5])) << "a zero that has a sign";
  expect_what_masters_become({.ranks = 1, .budget_bytes = kLittle}, {}, wanted, "alone");
  for (const auto placement : kPlacements)
    for (const Policy weights :
         {Policy::replicated, Policy::zero3, Policy::zero12, Policy::zero12_boundary, Policy::rows,
          Policy::uneven_rows, Policy::layer_wise})
      for (const std::uint64_t chunk_bytes : {1u, 6000u, 20000u, 1u << 28})
        expect_what_masters_become({.ranks = 3,
                                    .gradients = chunk_bytes == 6000 ? Policy::zero3 : weights,
                                    .weights = weights,
                                    .placement = placement,
                                    .chunk_bytes = chunk_bytes,
                                    .early_gradient_bytes = chunk_bytes == 6000 ? 6000u : 0u,
                                    .budget_bytes = kLittle,
                                    .threads = 2},
                                   {}, wanted,
                                   compose("{}, chunks of {}, placement {}", name_of(weights),
                                           chunk_bytes, name_of(placement)));
}

// Second moments are kept by the engine, whoever keeps the masters.
TEST(OutUpdate, HasTheBitsOfNorMuonsMasters) {
  for (const SecondMoment moments : {SecondMoment::rows, SecondMoment::longer}) {
    const Tensors wanted = wanted_of({.moments = moments});
    ASSERT_TRUE(wanted.contains("third.up second_momentum_buffer"));
    for (const std::uint64_t chunk_bytes : {6000u, 1u << 28})
      expect_what_masters_become({.ranks = 3,
                                  .weights = Policy::zero3,
                                  .chunk_bytes = chunk_bytes,
                                  .budget_bytes = kLittle},
                                 {.moments = moments}, wanted, "NorMuon");
  }
}

TEST(OutUpdate, HasTheBitsOfTheEnginesMastersWhateverMomentumIsKeptAs) {
  for (const DType dtype : {DType::bf16, DType::i8}) {
    const Kept kept{.dtypes = {{"momentum_buffer", dtype}}};
    const Tensors wanted = wanted_of(kept);
    for (const std::uint64_t chunk_bytes : {6000u, 1u << 28})
      expect_what_masters_become({.ranks = 3,
                                  .gradients = Policy::zero3,
                                  .weights = Policy::zero12,
                                  .chunk_bytes = chunk_bytes,
                                  .budget_bytes = kLittle},
                                 kept, wanted, std::string(name_of(dtype)));
  }
}

// Of the frameworks' roundings on the way from O to a weight, all but those of weights.
TEST(OutUpdate, HasTheBitsOfEveryPresetsMasters) {
  for (const libmuon::Preset& preset : libmuon::presets()) {
    MuonSpec spec = preset.spec();
    spec.weight_decay = 0;
    spec.weights = libmuon::Precision::fp32;
    if (spec.decay == libmuon::Decay::l2) spec.decay = libmuon::Decay::decoupled;
    for (const auto placement : kPlacements) {
      Training setup{.ranks = 2,
                     .gradients = Policy::zero3,
                     .weights = Policy::zero3,
                     .placement = placement,
                     .chunk_bytes = 6000,
                     .budget_bytes = kLittle,
                     .model = keeping_model({})};
      setup.model.groups[0] = spec;
      const Tensors wanted = trained_alone(setup.model, kSteps);
      std::get<MuonSpec>(setup.model.groups[0]).out = Out::update;
      expect_trained(config_of(setup, setup.model), wanted, std::string(preset.name));
    }
  }
}

TEST(OutUpdate, ComesFromADeviceThatIsLate) {
  const Tensors wanted = wanted_of({});
  for (const auto placement : kPlacements)
    for (const libmuon::Side side : {libmuon::Side::host, libmuon::Side::device}) {
      LateAccelerator accelerator(5, 50);
      expect_what_masters_become({.ranks = 2,
                                  .placement = placement,
                                  .chunk_bytes = 6000,
                                  .accelerator = &accelerator,
                                  .gradients_on = side,
                                  .weights_on = side},
                                 {}, wanted, "late");
    }
}

// Two matrices and a stack are cut over an axis before their partition cuts them: rows, columns,
// whole matrices of the stack.
EngineConfig on_axes(Policy policy, std::uint64_t chunk_bytes) {
  EngineConfig config{.model = keeping_model({0, 2}),
                      .budget_bytes = kLittle,
                      .tile_bytes = 4096,
                      .chunk_bytes = chunk_bytes};
  const Layout::Spec cut{.policy = policy, .align_elems = 4};
  const libmuon::AxisLayout data{cut, {"data"}, {}}, all{cut, {"data"}, {"tensor"}};
  config.partition.axes = {{"data", 2}, {"tensor", 2}};
  config.partition.parts = {{"cut", data, data}, {"all", all, all}};
  for (libmuon::ParamSpec& param : config.model.params) {
    param.partition = "all";
    for (const auto& [name, dimension] :
         {std::pair{"blk.0.qkv", 0u}, {"blk.0.down", 1u}, {"stack", 0u}})
      if (param.name == name) {
        param.partition = "cut";
        param.cuts = {{"tensor", dimension}};
      }
  }
  add_what_tiles_need_beside(config);
  return config;
}

TEST(OutUpdate, IsEachRanksSliceOfASliceInAWorldWithAxes) {
  const Tensors wanted = wanted_of({});
  for (const Policy policy : {Policy::zero3, Policy::zero12, Policy::rows, Policy::replicated})
    for (const std::uint64_t chunk_bytes : {1u, 8192u, 1u << 28})
      expect_trained(on_axes(policy, chunk_bytes), wanted,
                     compose("{}, chunks of {}", name_of(policy), chunk_bytes));
}

// Rounded once, as weights in bf16 are.
TEST(OutUpdate, InBf16IsTheUpdateRoundedOnce) {
  const auto handed_out = [](DType dtype, Placement placement) {
    Training setup{.ranks = 2, .placement = placement, .model = keeping_model({0, 2})};
    for (libmuon::ParamSpec& param : setup.model.params) param.weight = dtype;
    std::vector<std::vector<float>> all;
    World world(libswap::make_memory_backend(libswap::MemoryDisk::create(kMuch)), "/swap", 2);
    expect_well(world.run([&](Communicator& ranks) -> Result<> {
      EBB_TRY_ASSIGN(auto trainer,
                     KeepingTrainer::open(world, ranks, config_of(setup, setup.model)));
      EBB_TRY(trainer.hand_in());
      EBB_TRY(trainer.step());
      if (ranks.rank() == Rank{1}) all = trainer.handed_out();
      return {};
    }));
    return all;
  };
  for (const auto placement : kPlacements) {
    const auto wide = handed_out(DType::f32, placement),
               narrow = handed_out(DType::bf16, placement);
    ASSERT_EQ(wide.size(), narrow.size());
    EXPECT_NE(wide[5].front(), 0.0f);
    for (std::size_t param = 0; param < wide.size(); ++param)
      for (std::size_t i = 0; i < wide[param].size(); ++i)
        ASSERT_EQ(narrow[param][i], formats::bf16_to_f32(formats::f32_to_bf16(wide[param][i])))
            << param << ", " << i;
  }
}

}  // namespace
}  // namespace ebb::test
