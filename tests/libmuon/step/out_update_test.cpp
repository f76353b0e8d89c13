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

namespace ebb::test::out_update_tests {
namespace {

using libmuon::Communicator;
using libmuon::EngineConfig;
using libmuon::MuonSpec;
using libmuon::Out;
using libmuon::Placement;

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
}  // namespace ebb::test::out_update_tests
