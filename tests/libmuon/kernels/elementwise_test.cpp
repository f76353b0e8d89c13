#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <functional>
#include <limits>

#include "ebb/libmuon/kernels/kernels.h"
#include "tests/libmuon/kernels/numbers.h"
#include "tests/support/cpu_time.h"

namespace ebb::libmuon {
namespace {

using testing::gaussian;
using testing::same_bits;

// Gradient and three states; `step` works on [first, first + count) of them.
struct States {
  std::vector<float> g, a, b, c;
  explicit States(std::size_t count)
      : g(gaussian(count, 1)), a(gaussian(count, 2)), b(gaussian(count, 3)), c(gaussian(count, 4)) {
    for (float& value : c) value = std::abs(value);
  }
};
using RangeStep = std::function<void(States&, std::size_t, std::size_t)>;

std::vector<RangeStep> all_steps() {
  std::vector<RangeStep> steps;
  for (const Momentum momentum : {Momentum::ema, Momentum::sum})
    for (const bool nesterov : {true, false})
      steps.push_back([=](States& s, std::size_t first, std::size_t count) {
        MuonSpec spec = MuonSpec::keller();
        spec.momentum = momentum;
        spec.nesterov = nesterov;
        momentum_range(spec, 0.37f, std::span(s.g).subspan(first, count),
                       std::span(s.a).subspan(first, count), std::span(s.b).subspan(first, count));
      });
  steps.push_back([](States& s, std::size_t first, std::size_t count) {
    MuonSpec spec = MuonSpec::keller();
    spec.weight_decay = 0.1;
    apply_range(spec, std::sqrt(3.0), std::span(s.g).subspan(first, count),
                std::span(s.a).subspan(first, count));
  });
  steps.push_back([](States& s, std::size_t first, std::size_t count) {
    adamw_range(AdamSpec::torch(), 3, 0.37f, std::span(s.g).subspan(first, count),
                std::span(s.a).subspan(first, count), std::span(s.b).subspan(first, count),
                std::span(s.c).subspan(first, count));
  });
  return steps;
}

TEST(Elementwise, BitsDoNotDependOnWhereARangeIsCut) {
  constexpr std::size_t kCount = 10007;
  std::mt19937 random(5);
  for (const RangeStep& step : all_steps()) {
    States whole(kCount);
    step(whole, 0, kCount);
    for (int trial = 0; trial < 20; ++trial) {
      States cut(kCount);
      for (std::size_t first = 0; first < kCount;) {
        const std::size_t count = std::min<std::size_t>(kCount - first, 1 + random() % 700);
        step(cut, first, count);
        first += count;
      }
      ASSERT_TRUE(same_bits(cut.a, whole.a) && same_bits(cut.b, whole.b) &&
                  same_bits(cut.c, whole.c));
    }
  }
}

// wd w, whatever the gradient is scaled by.
TEST(Elementwise, DecayInTheGradientIsAddedBehindItsScale) {
  MuonSpec spec = MuonSpec::keller();
  spec.decay = Decay::l2;
  spec.weight_decay = 0.5;
  spec.nesterov = false;
  spec.momentum = Momentum::sum;
  spec.beta = 0.25;
  const std::vector<float> g = {8.0f}, w = {-3.0f};
  std::vector<float> m = {4.0f}, u = {99.0f};
  decay_range(spec, w, u);
  EXPECT_EQ(u[0], -1.5f);
  momentum_range(spec, 0.5f, g, m, u);
  EXPECT_EQ(m[0], 0.25f * 4 + (0.5f * 8 - 1.5f));
  EXPECT_EQ(u[0], m[0]);
  std::vector<float> moved = w;
  apply_range(spec, 1, std::vector<float>{2.0f}, moved);
  EXPECT_EQ(moved[0], -3.0f - static_cast<float>(spec.lr) * 2) << "nothing else is taken off";
}

TEST(Elementwise, MomentumFollowsItsConventionAndNesterovBlendsTheGradientIn) {
  const std::vector<float> g = {8.0f};
  const auto after = [&](Momentum momentum, bool nesterov) {
    MuonSpec spec = MuonSpec::keller();
    spec.beta = 0.75;
    spec.momentum = momentum;
    spec.nesterov = nesterov;
    std::vector<float> m = {16.0f}, u = {0.0f};
    momentum_range(spec, 0.5f, g, m, u);  // the gradient counts as 4
    return std::pair(m[0], u[0]);
  };
  EXPECT_EQ(after(Momentum::ema, false), std::pair(13.0f, 13.0f));
  EXPECT_EQ(after(Momentum::ema, true), std::pair(13.0f, 10.75f));
  EXPECT_EQ(after(Momentum::sum, false), std::pair(16.0f, 16.0f));
  EXPECT_EQ(after(Momentum::sum, true), std::pair(16.0f, 16.0f));
}

TEST(Elementwise, TheUpdateIsScaledByTheShapeAndDecayUsesTheBaseRate) {
  MuonSpec spec = MuonSpec::keller();
  spec.lr = 0.25;
  spec.weight_decay = 1.0;
  const std::vector<float> o = {1.0f};
  const auto after = [&](std::uint64_t rows, std::uint64_t cols) {
    std::vector<float> w = {8.0f};
    apply_range(spec, scales_of(spec, {rows, cols}, {0, 1}).front().scale, o, w);
    return w[0];
  };
  EXPECT_EQ(after(400, 100), 6.0f - 0.5f);
  EXPECT_EQ(after(100, 400), 6.0f - 0.25f);
  spec.scale = ScaleRule::match_rms_adamw;
  EXPECT_FLOAT_EQ(after(100, 400), 6.0f - 0.25f * 0.2f * 20.0f);
}

TEST(Elementwise, DecayFollowsItsRule) {
  MuonSpec spec = MuonSpec::keller();
  spec.lr = 0.5;
  spec.weight_decay = 0.5;
  const auto after = [&](Decay decay, float o) {
    spec.decay = decay;
    std::vector<float> w = {8.0f};
    apply_range(spec, 0.25, std::vector{o}, w);
    return w[0] + 0.125f * o;
  };
  EXPECT_EQ(after(Decay::decoupled, 1), 6.0f);
  EXPECT_EQ(after(Decay::independent, 1), 4.0f);
  EXPECT_EQ(after(Decay::palm, 1), 7.0f);
  EXPECT_EQ(after(Decay::cautious, 1), 6.0f);
  EXPECT_EQ(after(Decay::cautious, -1), 8.0f) << "against the sign of the weight";
  EXPECT_EQ(after(Decay::cautious_lr2, 1), 7.75f);
  EXPECT_EQ(after(Decay::cautious_lr2, -1), 8.0f);
  EXPECT_EQ(after(Decay::decoupled, -1), 6.0f);
}

TEST(Elementwise, WhatIsTakenOffIsRoundedWhereTheSpecSaysSo) {
  MuonSpec spec = MuonSpec::keller();
  spec.lr = 3;
  spec.precision = Precision::fp16;
  spec.handed = Precision::bf16;
  const auto after = [&](ScaleRounding rounding) {
    spec.scale_rounding = rounding;
    std::vector<float> w = {0.0f};
    apply_range(spec, 5, std::vector{1.0f + 0x1p-11f}, w);
    return -w[0];
  };
  EXPECT_EQ(after(ScaleRounding::none), 15.0f * (1.0f + 0x1p-11f));
  EXPECT_EQ(after(ScaleRounding::scaled), 3.0f * (5.0f + 0x1p-8f)) << "fp16: in units of 2^-8";
  EXPECT_EQ(after(ScaleRounding::step), 15.0f) << "bf16: in units of 2^-4";
  EXPECT_EQ(after(ScaleRounding::handed), 15.0f) << "fp16, then bf16";
  spec.precision = spec.handed = Precision::fp32;
  for (const auto rounding : {ScaleRounding::scaled, ScaleRounding::step})
    EXPECT_EQ(after(rounding), after(ScaleRounding::none));
}

// The number of bf16 next to it, by arithmetic on its value: ties go to the even one.
double nearest_bf16(double value) {
  if (value == 0) return value;
  const int exponent = std::max(std::ilogb(value), -126);
  const double step = std::ldexp(1.0, exponent - 7);
  const double nearest = std::nearbyint(value / step) * step;
  return std::abs(nearest) >= 0x1p128 ? std::copysign(HUGE_VAL, value) : nearest;
}

float widened(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

// Every upper half of an fp32, with lower halves at, and on both sides of, the middle between two
// numbers of bf16: subnormals, ties and what rounds to infinity among them.
TEST(Elementwise, MomentumInBf16IsRoundedToTheNearestAndTiesToTheEven) {
  MuonSpec spec = MuonSpec::keller();
  spec.beta = 0;  // the momentum is the gradient
  spec.nesterov = false;
  spec.momentum = Momentum::sum;
  std::vector<float> g;
  for (std::uint32_t upper = 0; upper < 0x10000; ++upper)
    for (const std::uint32_t lower : {0x0000u, 0x0001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      const float value = std::bit_cast<float>(upper << 16 | lower);
      if (std::isfinite(value)) g.push_back(value);
    }
  std::vector<std::uint16_t> m(g.size());
  std::vector<float> u(g.size());
  momentum_range(spec, 1.0f, g, m, u);
  for (std::size_t i = 0; i < g.size(); ++i) {
    ASSERT_EQ(static_cast<double>(widened(m[i])), nearest_bf16(static_cast<double>(g[i]))) << g[i];
    ASSERT_EQ(u[i], widened(m[i])) << "the update is made of what is stored";
  }
  EXPECT_GT(g.size(), 390'000u);
}

// One element after the other, in numbers that are written out: with and without Nesterov, both
// forms of momentum, wherever the range is cut.
TEST(Elementwise, MomentumInBf16GoesOnFromWhatIsStored) {
  constexpr std::size_t kCount = 3001;
  const std::vector<float> g = gaussian(kCount, 9), start = gaussian(kCount, 10);
  for (const Momentum momentum : {Momentum::ema, Momentum::sum})
    for (const bool nesterov : {true, false}) {
      MuonSpec spec = MuonSpec::keller();
      spec.momentum = momentum;
      spec.nesterov = nesterov;
      const auto beta = static_cast<float>(spec.beta), blend = static_cast<float>(1 - spec.beta);
      std::vector<std::uint16_t> m(kCount), m_cut(kCount);
      std::vector<float> u(kCount), u_cut(kCount);
      for (std::size_t i = 0; i < kCount; ++i) {
        const auto bits = std::bit_cast<std::uint32_t>(start[i]);
        m[i] = m_cut[i] = static_cast<std::uint16_t>(bits >> 16);
      }
      const std::vector<std::uint16_t> before = m;
      momentum_range(spec, 0.37f, g, m, u);
      for (std::size_t i = 0; i < kCount; ++i) {
        const float gradient = 0.37f * g[i], old = widened(before[i]);
        const float next =
            momentum == Momentum::ema ? old + blend * (gradient - old) : beta * old + gradient;
        const auto kept = static_cast<float>(nearest_bf16(static_cast<double>(next)));
        ASSERT_EQ(widened(m[i]), kept) << i;
        const float blended =
            momentum == Momentum::ema ? kept + blend * (gradient - kept) : gradient + beta * kept;
        ASSERT_EQ(u[i], nesterov ? blended : kept) << i;
      }
      for (std::size_t first = 0; first < kCount; first += 37) {
        const std::size_t count = std::min<std::size_t>(37, kCount - first);
        momentum_range(spec, 0.37f, std::span(g).subspan(first, count),
                       std::span(m_cut).subspan(first, count),
                       std::span(u_cut).subspan(first, count));
      }
      EXPECT_EQ(m_cut, m);
      EXPECT_TRUE(same_bits(u_cut, u));
    }
}

TEST(Elementwise, AdamWRunsAtMemorySpeed) {
  constexpr std::size_t kCount = 6 << 20;
  States s(kCount);
  double triad = 1e9, adam = 1e9;
  for (int round = 0; round < 7; ++round) {
    triad = std::min(triad, test_support::least_cpu_seconds(1, [&] {
                       for (std::size_t i = 0; i < kCount; ++i) s.b[i] = s.g[i] + 3.0f * s.a[i];
                     }));
    adam = std::min(adam, test_support::least_cpu_seconds(
                              1, [&] { adamw_range({}, 3, 1.0f, s.g, s.a, s.b, s.c); }));
  }
  // Bytes an element: a triad's store reads the line first, 16; AdamW reads four and writes
  // three, 28.
  const double ratio = (28 / adam) / (16 / triad);
  std::printf("AdamW %.1f GB/s, triad %.1f GB/s, ratio %.2f\n", 28e-9 * kCount / adam,
              16e-9 * kCount / triad, ratio);
  EXPECT_GT(ratio, 0.3);
}

// The largest gradients allowed, always of one sign, for so many steps that the sums have settled.
TEST(Elementwise, TheLargestGradientNeverOverflowsTheState) {
  for (const Momentum momentum : {Momentum::ema, Momentum::sum})
    for (const double beta : {0.0, 0.5, 0.95, 0.9999}) {
      MuonSpec spec = MuonSpec::keller();
      spec.momentum = momentum;
      spec.beta = beta;
      const std::vector<float> g(1, static_cast<float>(largest_gradient(spec)));
      std::vector<float> m(1), u(1), half_u(1);
      std::vector<std::uint16_t> half_m(1);
      const auto take = [&](const std::vector<float>& gradient) {
        momentum_range(spec, 1.0f, gradient, m, u);
        momentum_range(spec, 1.0f, gradient, half_m, half_u);
      };
      for (int step = 0; step < 100'000; ++step) take(g);
      EXPECT_LE(widened(half_m[0]), 0x1p120f * 1.0078125f) << beta;
      take({-g[0]});
      EXPECT_TRUE(std::isfinite(m[0]) && std::isfinite(u[0])) << beta;
      EXPECT_TRUE(std::isfinite(widened(half_m[0])) && std::isfinite(half_u[0])) << beta;
    }
  const AdamSpec adam = AdamSpec::torch();
  const std::vector<float> g(1, static_cast<float>(largest_gradient(adam)));
  std::vector<float> w(1), m(1), v(1);
  for (std::uint64_t step = 1; step <= 20'000; ++step) adamw_range(adam, step, 1.0f, g, w, m, v);
  EXPECT_TRUE(std::isfinite(w[0]) && std::isfinite(m[0]) && std::isfinite(v[0]));
}

TEST(Elementwise, TheLargestMagnitudeSeesWhatIsNotFinite) {
  std::vector<float> values(1000, 0.5f);
  values[997] = -2.0f;
  EXPECT_EQ(largest_magnitude(values), 2.0f);
  EXPECT_EQ(largest_magnitude({}), 0.0f);
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    values[3] = bad;
    EXPECT_EQ(largest_magnitude(values), std::numeric_limits<float>::infinity());
  }
}

}  // namespace
}  // namespace ebb::libmuon
