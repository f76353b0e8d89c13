#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <limits>

#include "ebb/libmuon/kernels/kernels.h"
#include "tests/libmuon/kernels/numbers.h"
#include "tests/libmuon/kernels/oracle.h"

namespace ebb::libmuon {
namespace {

using testing::gaussian;
using testing::oracle;
using testing::relative_distance;
using testing::same_bits;

struct Shape {
  std::size_t rows, cols;
};

std::vector<float> run(const MuonSpec& spec, Shape shape, std::span<const float> u,
                       std::uint32_t threads) {
  const auto pool = libswap::Pool::start(threads);
  if (!pool) return {};
  std::vector<float> o(u.begin(), u.end());
  orthogonalize(spec, Bf16::emulated, Block::matrix(shape.rows, shape.cols), o, **pool);
  return o;
}

// A matrix whose singular values fall from 1 to `last` on a log scale, nearly: gaussian times rows
// of falling size.
std::vector<float> decaying(Shape shape, double last) {
  auto u = gaussian(shape.rows * shape.cols, 9);
  const double side = static_cast<double>(std::max<std::size_t>(shape.rows - 1, 1));
  for (std::size_t r = 0; r < shape.rows; ++r)
    for (std::size_t c = 0; c < shape.cols; ++c)
      u[r * shape.cols + c] *= static_cast<float>(std::pow(last, static_cast<double>(r) / side));
  return u;
}

constexpr std::array kShapes = {Shape{96, 160},  Shape{160, 96}, Shape{264, 530}, Shape{530, 264},
                                Shape{257, 257}, Shape{1, 40},   Shape{40, 1},    Shape{1, 1},
                                Shape{17, 1100}, Shape{600, 31}, Shape{64, 64}};

TEST(NewtonSchulz, AgreesWithFp64OnGaussianMatrices) {
  for (const Shape shape : kShapes) {
    const auto u = gaussian(shape.rows * shape.cols, 7);
    const MuonSpec spec = MuonSpec::keller();
    EXPECT_LE(relative_distance(run(spec, shape, u, 2), oracle(spec, shape.rows, shape.cols, u)),
              2e-5)
        << shape.rows << " x " << shape.cols;
  }
}

// Other coefficients in each step, as published for Polar Express: their order counts.
TEST(NewtonSchulz, TakesEachStepsOwnCoefficientsInTheirOrder) {
  MuonSpec spec = MuonSpec::keller();
  spec.iterations = {
      {8.2f, -22.5f, 15.9f}, {4.0f, -2.9f, 0.5f}, {3.3f, -2.4f, 0.5f}, {2.3f, -1.6f, 0.4f}};
  for (const Shape shape : {Shape{96, 160}, Shape{530, 264}}) {
    const auto u = gaussian(shape.rows * shape.cols, 7);
    EXPECT_LE(relative_distance(run(spec, shape, u, 2), oracle(spec, shape.rows, shape.cols, u)),
              5e-5);
    MuonSpec reversed = spec;
    std::ranges::reverse(reversed.iterations);
    EXPECT_GT(
        relative_distance(run(reversed, shape, u, 2), oracle(spec, shape.rows, shape.cols, u)),
        1e-2);
  }
}

TEST(NewtonSchulz, AMatrixThatIsNotFiniteGivesZeros) {
  const std::vector<float> zeros(30 * 20, 0.0f);
  for (const float bad :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    auto u = gaussian(30 * 20, 7);
    u[77] = bad;
    EXPECT_TRUE(same_bits(run(MuonSpec::keller(), {30, 20}, u, 1), zeros));
  }
}

TEST(NewtonSchulz, AgreesWithFp64OnDecayingSpectra) {
  for (const Shape shape : {Shape{96, 160}, Shape{264, 300}, Shape{128, 128}})
    for (const double last : {1e-3, 1e-6}) {
      const auto u = decaying(shape, last);
      const MuonSpec spec = MuonSpec::keller();
      EXPECT_LE(relative_distance(run(spec, shape, u, 2), oracle(spec, shape.rows, shape.cols, u)),
                2e-4)
          << shape.rows << " x " << shape.cols << " down to " << last;
    }
}

TEST(NewtonSchulz, BitsDependOnNeitherThreadsNorAddressesNorEarlierCalls) {
  const MuonSpec spec = MuonSpec::keller();
  for (const Shape shape : kShapes) {
    const std::size_t count = shape.rows * shape.cols;
    const auto u = gaussian(count, 7);
    const auto expected = run(spec, shape, u, 1);
    for (const std::uint32_t threads : {2u, 5u})
      EXPECT_TRUE(same_bits(run(spec, shape, u, threads), expected));

    const auto started = libswap::Pool::start(2);
    ASSERT_TRUE(started);
    libswap::Pool& pool = **started;
    std::vector<float> shifted(count + 3);
    std::copy(u.begin(), u.end(), shifted.begin() + 3);
    const auto output = std::span(shifted).subspan(3);
    // Whatever lies in the scratch.
    std::vector<std::byte> scratch(newton_schulz_scratch_bytes(spec, shape.rows, shape.cols) + 64,
                                   std::byte{0x7f});
    const libswap::Event done = pool.begin(newton_schulz(
        spec, Bf16::emulated, Block::matrix(shape.rows, shape.cols), output, scratch));
    pool.help_until([&] { return done.passed(); });
    EXPECT_TRUE(same_bits(output, expected)) << shape.rows << " x " << shape.cols;
  }
}

TEST(NewtonSchulz, EightPanelsAboveTwoThousandRows) {
  // One number in each row and column: the result is the scalar polynomial in each place.
  constexpr std::size_t kSide = 2053;
  MuonSpec spec = MuonSpec::keller();
  spec.iterations.resize(2);
  std::vector<float> u(kSide * kSide);
  const auto place = [](std::size_t row) { return row * kSide + (row * 977 + 5) % kSide; };
  double norm = 0;
  for (std::size_t row = 0; row < kSide; ++row) {
    u[place(row)] = static_cast<float>(row % 7 + 1);
    norm += static_cast<double>(u[place(row)]) * static_cast<double>(u[place(row)]);
  }
  auto o = run(spec, {kSide, kSide}, u, 2);
  for (std::size_t row = 0; row < kSide; ++row) {
    double x = static_cast<double>(u[place(row)]) / (std::sqrt(norm) + spec.eps);
    for (const Coefficients& step : spec.iterations)
      x = x * (static_cast<double>(step.a) +
               x * x * (static_cast<double>(step.b) + x * x * static_cast<double>(step.c)));
    ASSERT_NEAR(static_cast<double>(o[place(row)]), x, 1e-5 * std::abs(x)) << row;
    o[place(row)] = 0;
  }
  EXPECT_TRUE(std::all_of(o.begin(), o.end(), [](float value) { return value == 0; }));
}

TEST(NewtonSchulz, AZeroMatrixGivesZeros) {
  for (const double eps : {1e-7, 0.0}) {
    MuonSpec spec = MuonSpec::keller();
    spec.eps = eps;
    const std::vector<float> u(30 * 20, 0.0f);
    EXPECT_TRUE(same_bits(run(spec, {30, 20}, u, 1), u));
  }
}

TEST(NewtonSchulz, EpsIsAddedToTheNormOrIsItsLeastValue) {
  const Shape shape{20, 30};
  for (const EpsRule rule : {EpsRule::add, EpsRule::clamp})
    for (const double size : {1e-9, 1e-7, 1.0}) {
      MuonSpec spec = MuonSpec::keller();
      spec.eps_rule = rule;
      auto u = gaussian(600, 8);
      for (float& value : u) value *= static_cast<float>(size / std::sqrt(600.0));
      EXPECT_LE(relative_distance(run(spec, shape, u, 1), oracle(spec, shape.rows, shape.cols, u)),
                2e-5)
          << size;
    }
}

TEST(NewtonSchulz, TheScaleOfTheInputDoesNotMatterWithoutEps) {
  MuonSpec spec = MuonSpec::keller();
  spec.eps = 0;
  const auto u = gaussian(40 * 60, 8);
  const auto expected = run(spec, {40, 60}, u, 1);
  for (const int shift : {-100, 100}) {
    auto scaled = u;
    for (float& value : scaled) value = std::ldexp(value, shift);
    EXPECT_LE(relative_distance(run(spec, {40, 60}, scaled, 1), expected), 1e-6) << shift;
  }
}

TEST(NewtonSchulz, CountsItsWorkAndItsMemory) {
  MuonSpec spec = MuonSpec::keller();
  EXPECT_EQ(newton_schulz_flops(spec, 60, 200), 5 * 2 * (2.0 * 60 * 60 * 200 + 1.0 * 60 * 60 * 60));
  EXPECT_EQ(newton_schulz_flops(spec, 512, 2048), newton_schulz_flops(spec, 2048, 512));
  // Eight panels: 36 of 64 blocks of the symmetric products.
  spec.iterations.resize(1);
  EXPECT_EQ(newton_schulz_flops(spec, 512, 2048),
            2 * (0.5625 * 512 * 512 * (2048 + 512) + 512.0 * 512 * 2048));
  // X, X X^T, Q, and X^T packed.
  EXPECT_EQ(newton_schulz_scratch_bytes(spec, 100, 201), 4u * (100 * (208 + 2 * 112) + 112 * 201));
  spec.precision = Precision::bf16;  // and the next X
  EXPECT_EQ(newton_schulz_scratch_bytes(spec, 100, 201),
            4u * (100 * (2 * 208 + 2 * 112) + 112 * 201));
}

TEST(Kernels, TheFingerprintSaysHowBf16IsMultiplied) {
  for (const std::optional<Bf16> bf16 :
       {std::optional<Bf16>(), std::optional(Bf16::emulated), std::optional(Bf16::real)}) {
    const std::string text = kernel_fingerprint(bf16);
    EXPECT_TRUE(text.starts_with("products=")) << text;
    EXPECT_EQ(bf16_in("Ebb, store version 1, " + text), bf16) << text;
  }
  EXPECT_EQ(bf16_in("oneDNN 2.6.3 avx512_core fp32 elementwise=clones"), std::nullopt);
}

}  // namespace
}  // namespace ebb::libmuon
