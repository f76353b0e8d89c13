// What Newton-Schulz makes that is not finite, though all gradients were: it reaches no weight, all
// ranks stop, and the last committed generation is what there is.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "ebb/libmuon/kernels/kernels.h"
#include "ebb/libmuon/spec/presets.h"
#include "tests/libmuon/support/failing_world.h"
#include "tests/libmuon/support/late_accelerator.h"

namespace ebb::test {
namespace {

using libmuon::Block;
using libmuon::MuonSpec;

// Iterations that end beyond fp32.
MuonSpec growing(MuonSpec spec) {
  spec.precision = libmuon::Precision::fp32;
  for (auto& step : spec.iterations) step.a = 1e20f;
  return spec;
}

std::uint32_t told(const MuonSpec& spec, std::vector<float> u) {
  std::vector<std::byte> scratch(libmuon::newton_schulz_scratch_bytes(spec, 12, 20));
  std::uint32_t number = 0;
  libswap::Pool pool;
  pool.help_until(pool.begin(libmuon::newton_schulz(
      spec, libmuon::Bf16::emulated, Block::matrix(12, 20), u, scratch, {&number, 7})));
  return number;
}

TEST(NonFinite, IsToldByNewtonSchulzAndByNothingThatIsFinite) {
  std::vector<float> u(240);
  for (std::size_t i = 0; i < u.size(); ++i) u[i] = noise(0, 1, i);
  for (const char* preset : {"keller", "gram", "nanogpt"}) {
    const MuonSpec spec = *libmuon::preset(preset);
    EXPECT_EQ(told(spec, u), 0u) << preset;
    EXPECT_EQ(told(growing(spec), u), 7u) << preset;
    for (const float value : {INFINITY, -INFINITY, NAN}) {
      std::vector<float> ill = u;
      ill[239] = value;
      EXPECT_EQ(told(spec, ill), 7u) << preset;
    }
    EXPECT_EQ(told(spec, std::vector<float>(240)), 0u) << preset;
  }
}

TEST(NonFinite, IsToldOfSecondMomentsThatAreNone) {
  MuonSpec spec = *libmuon::preset("normuon");
  libswap::Pool pool;
  for (const float moment : {0.5f, NAN, -1.0f}) {
    std::vector<float> o(12 * 20, 0.25f), v(12, 0.5f);
    v[11] = moment;
    std::uint32_t number = 0;
    libmuon::normalise(spec, Block::matrix(12, 20), o, v, pool, {&number, 3});
    EXPECT_EQ(number, moment == 0.5f ? 0u : 3u) << moment;
  }
}

struct Ill {
  std::string param;
  libmuon::Accelerator* accelerator = nullptr;
  libmuon::Placement placement = libmuon::Placement::owner;
};

// One parameter's matrices grow beyond fp32.
libmuon::EngineConfig ill_config(const Ill& ill) {
  libmuon::ModelSpec model = nuisance_model();
  model.groups.push_back(growing(std::get<MuonSpec>(model.groups[0])));
  if (!ill.param.empty())
    std::ranges::find(model.params, ill.param, &libmuon::ParamSpec::name)->group = 2;
  return config_of({.ranks = 2,
                    .placement = ill.placement,
                    .chunk_bytes = 20000,
                    .budget_bytes = kLittle,
                    .accelerator = ill.accelerator},
                   model);
}

void expect_to_stop_before_a_weight_moves(const Ill& ill) {
  FailingWorld failing;
  const std::vector<float> wanted = weights_after(2);
  std::vector<float> before;
  expect_well(failing.world.run([&](libmuon::Communicator& ranks) -> Result<> {
    EBB_TRY_ASSIGN(auto rank, RankEngine::open(failing.world, ranks, ill_config(ill)));
    const libmuon::StatePlan& plan = rank.engine().state_plan();
    std::uint32_t param = 0;
    while (ill_config(ill).model.params[param].name != ill.param) ++param;
    const bool mine = plan.computes(param, 0);
    const std::vector<float> weights = rank.weights()[param];
    EBB_TRY(rank.hand_in(1));
    const auto stepped = rank.step();
    expect_error(stepped, mine ? Code::state : Code::peer, ill.param);
    if (mine) {
      EXPECT_NE(stepped.error().message.find(compose("parameter {}: ", ill.param)),
                std::string::npos)
          << stepped.error().message;
      EXPECT_NE(stepped.error().message.find(compose("rank {}", index_of(ranks.rank()))),
                std::string::npos);
    }
    if (ill.accelerator == nullptr) {
      EXPECT_EQ(rank.weights()[param], weights);
    }
    // All of them say so from then on, at once.
    expect_error(rank.step(), Code::state, "step");
    const auto refused = rank.engine().continue_step();
    expect_error(refused, Code::state, "continue_step");
    EXPECT_NE(refused.error().hint.find("open the store again"), std::string::npos);
    expect_error(rank.engine().abandon_step(), Code::state, "abandon_step");
    expect_error(rank.engine().snapshot(), Code::state, "snapshot");
    return {};
  }));
  // With settings that do, as if nothing had been.
  failing.world.reopen(2);
  expect_well(failing.world.run([&](libmuon::Communicator& ranks) -> Result<> {
    EBB_TRY_ASSIGN(auto rank, RankEngine::open(failing.world, ranks,
                                               ill_config({"", ill.accelerator, ill.placement})));
    EXPECT_EQ(rank.engine().step_count(), 0u);
    EBB_TRY(step_to(rank, 2));
    if (ranks.rank() == Rank{1}) {
      EXPECT_EQ(rank.flat_weights(), wanted);
    }
    return {};
  }));
}

// A matrix of many tiles, and small ones that share an item.
TEST(NonFinite, AStepStopsOnAllRanksBeforeAWeightMoves) {
  for (const auto placement : kPlacements)
    for (const char* param : {"blk.0.qkv", "blk.0.down", "row", "prime"})
      expect_to_stop_before_a_weight_moves({param, nullptr, placement});
}

TEST(NonFinite, AStepStopsOnADeviceWhoseEventsComeLate) {
  for (const auto placement : kPlacements) {
    LateAccelerator accelerator(5, 50);
    expect_to_stop_before_a_weight_moves({"blk.0.up", &accelerator, placement});
  }
}

}  // namespace
}  // namespace ebb::test
