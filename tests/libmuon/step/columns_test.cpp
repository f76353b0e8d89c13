// States that are kept as something else than fp32: momentum in bf16. The bits are those that
// arithmetic written out here gives, and the way between dtypes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "ebb/formats/describe.h"
#include "ebb/libmuon/kernels/kernels.h"
#include "ebb/libswap/tree/file_tree.h"
#include "tests/libmuon/support/training.h"
#include "tests/libmuon/support/world.h"

namespace ebb::test {
namespace {

using libmuon::MuonSpec;

constexpr std::uint64_t kSteps = 4;
const libmuon::StateDTypes kHalf = {{"momentum_buffer", DType::bf16}};

using Stored = std::map<std::string, std::vector<float>>;

std::map<std::string, DType> dtypes_in(const std::filesystem::path& directory) {
  std::map<std::string, DType> dtypes;
  auto tree = libswap::open_tree(directory);
  EXPECT_TRUE(tree);
  if (!tree) return dtypes;
  const auto checkpoint = formats::describe(std::move(*tree));
  EXPECT_TRUE(checkpoint) << checkpoint.error().message;
  if (!checkpoint) return dtypes;
  EXPECT_TRUE(formats::prove_coverage((*checkpoint)->catalog()));
  for (const TensorEntry& tensor : (*checkpoint)->catalog().tensors)
    dtypes[tensor.name + " " + tensor.state] = tensor.dtype;
  return dtypes;
}

// To nearest even, by arithmetic on the value.
float bf16_of(float value) {
  if (value == 0) return value;
  const double step = std::ldexp(1.0, std::max(std::ilogb(value), -126) - 7);
  return static_cast<float>(std::nearbyint(static_cast<double>(value) / step) * step);
}

// Momentum, U and the weights of one matrix, written out; Newton-Schulz alone is the library's.
TEST(Columns, MomentumInBf16IsRoundedOnceAStepAndTheUpdateIsMadeOfIt) {
  MuonSpec sum = MuonSpec::keller();
  sum.momentum = libmuon::Momentum::sum;
  sum.scale = libmuon::ScaleRule::match_rms_adamw;
  sum.weight_decay = 0.1;
  MuonSpec plain = MuonSpec::keller();
  plain.nesterov = false;
  for (const MuonSpec& spec : {MuonSpec::keller(), sum, plain}) {
    libmuon::ModelSpec model;
    model.groups = {spec};
    model.params = {{"only", {12, 20}, 0}};
    const TempDir directory;
    const Outcome outcome =
        train({.ranks = 2, .dtypes = kHalf, .model = model}, directory.path(), kSteps);
    ASSERT_EQ(outcome.error, "");
    const auto beta = static_cast<float>(spec.beta), blend = static_cast<float>(1 - spec.beta);
    std::vector<float> m(240), u(240), w(240);
    noisy_weights(0, {0, 240}, w);
    const bool ema = spec.momentum == libmuon::Momentum::ema;
    const double scale =
        spec.scale == libmuon::ScaleRule::match_rms_adamw ? 0.2 * std::sqrt(20.0) : 1.0;
    const auto decay = static_cast<float>(spec.lr * spec.weight_decay);
    const auto rate = static_cast<float>(spec.lr * scale);
    for (std::uint64_t step = 1; step <= kSteps; ++step) {
      for (std::uint64_t i = 0; i < 240; ++i) {
        const float g = noise(0, step, i);
        m[i] = bf16_of(ema ? m[i] + blend * (g - m[i]) : beta * m[i] + g);
        const float blended = ema ? m[i] + blend * (g - m[i]) : g + beta * m[i];
        u[i] = spec.nesterov ? blended : m[i];
      }
      libswap::Pool alone;
      libmuon::orthogonalize(spec, libmuon::Bf16::emulated, libmuon::Block::matrix(12, 20), u,
                             alone);
      for (std::size_t i = 0; i < 240; ++i) w[i] = w[i] - (decay * w[i] + rate * u[i]);
    }
    EXPECT_EQ(tensors_of(directory.path()).at("only momentum_buffer"), m);
    EXPECT_EQ(outcome.weights, w);
  }
}

TEST(Columns, MomentumInBf16MovesExactlyThePredictedBytesAQuarterLessOfMatrices) {
  libmuon::ModelSpec model;
  model.groups = {MuonSpec::keller()};
  model.params = {{"a", {64, 64}, 0}, {"b", {64, 128}, 0}, {"c", {32, 32}, 0}, {"d", {32, 32}, 0}};
  const auto run = [&](const libmuon::StateDTypes& dtypes) {
    const TempDir directory;
    Outcome outcome = train({.budget_bytes = 1 * 4096, .dtypes = dtypes, .model = model},
                            directory.path(), kSteps, Finish::just_stop);
    EXPECT_EQ(outcome.error, "");
    const auto& plan = outcome.plans[0];
    EXPECT_EQ(outcome.stats[0].read_bytes, kSteps * plan.step_read_bytes + plan.install_read_bytes);
    EXPECT_EQ(plan.step_read_bytes, plan.state_bytes) << "whole tiles, all paged";
    EXPECT_EQ(plan.step_written_bytes, plan.state_bytes);
    return outcome;
  };
  const Outcome full = run({}), half = run(kHalf);
  EXPECT_EQ(4 * half.plans[0].state_bytes, 3 * full.plans[0].state_bytes);
  EXPECT_EQ(half.plans[0].install_read_bytes, full.plans[0].install_read_bytes);
  EXPECT_FALSE(half == full);
}

TEST(Columns, AStoreOfAnotherDtypeIsTransferredRoundedOnceAndWidenedExactly) {
  const Training full{.ranks = 2}, half{.ranks = 2, .dtypes = kHalf};
  const TempDir directory;
  ASSERT_EQ(train(full, directory.path(), 3).error, "");
  const Stored before = tensors_of(directory.path());
  const std::string transferred = "transferred the store of 2 ranks at step 3";
  EXPECT_EQ(train(half, directory.path(), 3).origin,
            transferred + " (momentum_buffer is BF16, was F32)");
  for (const auto& [what, dtype] : dtypes_in(directory.path()))
    EXPECT_EQ(dtype, what.ends_with(" momentum_buffer") ? DType::bf16 : DType::f32) << what;
  const Stored rounded = tensors_of(directory.path());
  Stored wanted = before;
  for (auto& [what, values] : wanted)
    if (what.ends_with(" momentum_buffer")) std::ranges::transform(values, values.begin(), bf16_of);
  EXPECT_TRUE(rounded == wanted);
  EXPECT_EQ(train(half, directory.path(), 3).origin, "resumed the store at step 3");
  EXPECT_EQ(train(full, directory.path(), 3).origin,
            transferred + " (momentum_buffer is F32, was BF16)");
  for (const auto& [what, dtype] : dtypes_in(directory.path())) EXPECT_EQ(dtype, DType::f32);
  EXPECT_TRUE(tensors_of(directory.path()) == rounded);
  // What it has taken on its way makes no difference to a step.
  const TempDir elsewhere;
  ASSERT_EQ(train(full, elsewhere.path(), 3).error, "");
  const Outcome once = train({.ranks = 3, .dtypes = kHalf}, elsewhere.path(), 5);
  const Outcome thrice = train(half, directory.path(), 5);
  EXPECT_TRUE(once == thrice);
  EXPECT_TRUE(tensors_of(directory.path()) == tensors_of(elsewhere.path()));
}

TEST(Columns, ACheckpointOfAnotherDtypeIsLoadedRoundedAndSaid) {
  const TempDir source, loaded, transferred;
  for (const TempDir* directory : {&source, &transferred})
    ASSERT_EQ(train({}, directory->path(), 2).error, "");
  auto tree = libswap::open_tree(source.path());
  ASSERT_TRUE(tree);
  const auto checkpoint = formats::describe(std::move(*tree));
  ASSERT_TRUE(checkpoint);
  const Training half{.ranks = 2, .dtypes = kHalf};
  const Outcome outcome = train(half, loaded.path(), kSteps, Finish::snapshot, checkpoint->get());
  EXPECT_EQ(outcome.error, "");
  EXPECT_EQ(outcome.origin,
            "loaded a ebb checkpoint of 1 ranks at step 2 (momentum_buffer is BF16, was F32)");
  EXPECT_TRUE(outcome == train(half, transferred.path(), kSteps));
  EXPECT_TRUE(tensors_of(loaded.path()) == tensors_of(transferred.path()));
}

}  // namespace
}  // namespace ebb::test
