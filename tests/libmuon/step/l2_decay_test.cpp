// Decay as L2: weights in the gradient, before the momentum. A step reads an item's masters before
// its momentum, and visits them again to move them.
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "ebb/formats/core/bf16.h"
#include "ebb/libmuon/kernels/kernels.h"
#include "ebb/libmuon/spec/presets.h"
#include "tests/libmuon/support/failing_world.h"
#include "tests/libmuon/support/late_accelerator.h"

namespace ebb::test {
namespace {

using libmuon::MuonSpec;
using libswap::FaultOn;

constexpr std::uint64_t kSteps = 4;

MuonSpec l2_of(const char* preset, double decay = 0.3) {
  MuonSpec spec = *libmuon::preset(preset);
  spec.decay = libmuon::Decay::l2;
  spec.weight_decay = decay;
  return spec;
}

// Matrices that decay so and others share items.
libmuon::ModelSpec mixed_model() {
  libmuon::ModelSpec model = nuisance_model();
  model.groups.push_back(l2_of("keller"));
  model.groups.push_back(l2_of("normuon"));
  for (std::size_t i = 0; i < model.params.size(); ++i)
    if (model.params[i].group == 0 && i % 2 == 0) model.params[i].group = i % 4 == 0 ? 3 : 2;
  return model;
}

// Everything is written out but Newton-Schulz.
TEST(L2Decay, IsInTheGradientAndNowhereElse) {
  for (const bool half : {false, true}) {
    MuonSpec spec = l2_of("keller");
    spec.precision = libmuon::Precision::fp32;
    libmuon::ModelSpec model;
    model.groups = {spec};
    model.params = {{"only", {12, 20}, 0}};
    Training setup{.ranks = 2, .model = model};
    if (half) setup.dtypes = {{"momentum_buffer", DType::bf16}};
    const TempDir directory;
    const Outcome outcome = train(setup, directory.path(), kSteps);
    ASSERT_EQ(outcome.error, "");
    const auto blend = static_cast<float>(1 - spec.beta);
    const auto decay = static_cast<float>(spec.weight_decay), rate = static_cast<float>(spec.lr);
    std::vector<float> m(240), u(240), w(240);
    noisy_weights(0, {0, 240}, w);
    for (std::uint64_t step = 1; step <= kSteps; ++step) {
      for (std::uint64_t i = 0; i < 240; ++i) {
        const float g = noise(0, step, i) + decay * w[i];
        m[i] = m[i] + blend * (g - m[i]);
        if (half) m[i] = formats::bf16_to_f32(formats::f32_to_bf16(m[i]));
        u[i] = m[i] + blend * (g - m[i]);
      }
      libswap::Pool alone;
      libmuon::orthogonalize(spec, libmuon::Bf16::emulated, libmuon::Block::matrix(12, 20), u,
                             alone);
      for (std::size_t i = 0; i < 240; ++i) w[i] = w[i] - (0.0f * w[i] + rate * u[i]);
    }
    EXPECT_EQ(tensors_of(directory.path()).at("only momentum_buffer"), m);
    EXPECT_EQ(outcome.weights, w);
  }
}

TEST(L2Decay, GivesTheSameBitsOnAnyRanksTilesBudgetsAndDevice) {
  const auto trained = [](Training setup) {
    setup.model = mixed_model();
    const TempDir directory;
    EXPECT_EQ(train(setup, directory.path(), 2).error, "");
    const Outcome outcome = train(setup, directory.path(), kSteps);
    EXPECT_EQ(outcome.error, "");
    return std::pair(outcome.weights, tensors_of(directory.path()));
  };
  const auto alone = trained({});
  ASSERT_FALSE(alone.first.empty());
  for (const auto placement : kPlacements)
    for (const std::uint32_t ranks : {1u, 2u, 3u})
      for (const std::uint64_t tile : {4096u, 65536u})
        for (const std::uint64_t tiles : {1u, 5u})
          EXPECT_TRUE(trained({.ranks = ranks,
                               .gradients = Policy::zero3,
                               .placement = placement,
                               .tile_bytes = tile,
                               .chunk_bytes = tiles * 5000,
                               .budget_bytes = tiles * tile,
                               .threads = ranks}) == alone)
              << name_of(placement) << ", " << ranks << " ranks, " << tiles << " tiles of " << tile;
  for (const std::uint64_t seed : {1u, 2u, 3u, 4u}) {
    LateAccelerator accelerator(seed, 50);
    EXPECT_TRUE(trained({.ranks = 2,
                         .placement = kPlacements[seed / 3],
                         .chunk_bytes = 5000,
                         .budget_bytes = (seed % 2 == 1 ? 1u : 6u) * 4096,
                         .snapshot_every = 1,
                         .accelerator = &accelerator}) == alone);
  }
}

// The masters are read once more, and not written for it.
TEST(L2Decay, MovesExactlyThePredictedBytes) {
  for (const auto placement : kPlacements) {
    libmuon::ModelSpec model;
    model.groups = {l2_of("keller"), *libmuon::preset("keller")};
    model.params = {{"a", {64, 64}, 0}, {"b", {64, 64}, 1}, {"c", {32, 64}, 0}};
    const TempDir directory;
    const Outcome outcome = train({.placement = placement, .budget_bytes = 4096, .model = model},
                                  directory.path(), kSteps, Finish::just_stop);
    EXPECT_EQ(outcome.error, "");
    const auto& plan = outcome.plans[0];
    EXPECT_EQ(plan.step_written_bytes, (4 + 4 + 2) * 2 * 4096u);
    EXPECT_EQ(plan.step_read_bytes, plan.step_written_bytes + (4 + 2) * 4096u);
    EXPECT_EQ(outcome.stats[0].read_bytes, kSteps * plan.step_read_bytes + plan.install_read_bytes);
    EXPECT_EQ(plan.install_read_bytes, (4 + 4 + 2) * 4096u);
  }
}

TEST(L2Decay, AStepCutAnywhereGoesOnWithTheSameBits) {
  for (const auto placement : kPlacements)
    expect_cuts_anywhere_go_on(
        config_of(
            {.ranks = 2, .placement = placement, .chunk_bytes = 20000, .budget_bytes = kLittle},
            mixed_model()),
        10);
}

}  // namespace
}  // namespace ebb::test
