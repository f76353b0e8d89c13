// Decay as L2: weights in the gradient, before the momentum. A step reads an item's masters before
// its momentum, and visits them again to move them.
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "ebb/formats/core/bf16.h"
#include "ebb/libmuon/kernels/kernels.h"
#include "ebb/libmuon/spec/presets.h"
#include "tests/libmuon/support/training.h"
#include "tests/libmuon/support/world.h"

namespace ebb::test::l2_decay_tests {
namespace {

using libmuon::MuonSpec;

constexpr std::uint64_t kSteps = 4;

MuonSpec l2_of(const char* preset, double decay = 0.3) {
  MuonSpec spec = *libmuon::preset(preset);
  spec.decay = libmuon::Decay::l2;
  spec.weight_decay = decay;
  return spec;
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

}  // namespace
}  // namespace ebb::test::l2_decay_tests
