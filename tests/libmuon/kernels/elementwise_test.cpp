#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <functional>
#include <limits>

#include "ebb/libmuon/kernels/kernels.h"
#include "tests/libmuon/kernels/numbers.h"

namespace ebb::libmuon {
namespace {

using testing::gaussian;
using testing::relative_distance;
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
    apply_range(spec, 300, 100, std::span(s.g).subspan(first, count),
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
    apply_range(spec, rows, cols, o, w);
    return w[0];
  };
  EXPECT_EQ(after(400, 100), 6.0f - 0.5f);
  EXPECT_EQ(after(100, 400), 6.0f - 0.25f);
  spec.scale = ScaleRule::match_rms_adamw;
  EXPECT_FLOAT_EQ(after(100, 400), 6.0f - 0.25f * 0.2f * 20.0f);
}

double seconds_of(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

TEST(Elementwise, AdamWRunsAtMemorySpeed) {
  constexpr std::size_t kCount = 6 << 20;
  States s(kCount);
  double triad = 1e9, adam = 1e9;
  for (int round = 0; round < 7; ++round) {
    triad = std::min(triad, seconds_of([&] {
                       for (std::size_t i = 0; i < kCount; ++i) s.b[i] = s.g[i] + 3.0f * s.a[i];
                     }));
    adam = std::min(adam, seconds_of([&] { adamw_range({}, 3, 1.0f, s.g, s.a, s.b, s.c); }));
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
      std::vector<float> m(1), u(1);
      for (int step = 0; step < 100'000; ++step) momentum_range(spec, 1.0f, g, m, u);
      const std::vector<float> back(1, -g[0]);
      momentum_range(spec, 1.0f, back, m, u);
      EXPECT_TRUE(std::isfinite(m[0]) && std::isfinite(u[0])) << beta;
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
