// Newton-Schulz in bf16 and fp16, in Gram form, and of rows that lie apart.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "ebb/formats/core/float_cast.h"
#include "ebb/libmuon/kernels/kernels.h"
#include "ebb/libmuon/kernels/rounding.h"
#include "ebb/libmuon/spec/presets.h"
#include "tests/libmuon/kernels/numbers.h"
#include "tests/libmuon/kernels/oracle.h"

namespace ebb::libmuon {
namespace {

using testing::gaussian;
using testing::oracle;
using testing::relative_distance;
using testing::same_bits;

std::vector<float> run(const MuonSpec& spec, std::uint64_t rows, std::uint64_t cols,
                       std::vector<float> u, std::uint32_t threads = 2) {
  const auto pool = libswap::Pool::start(threads);
  if (!pool) return {};
  orthogonalize(spec, Bf16::emulated, Block::matrix(rows, cols), u, **pool);
  return u;
}

// The element casts of formats are the other implementation.
float cast(Precision precision, float value) {
  const DType to = precision == Precision::bf16 ? DType::bf16 : DType::f16;
  std::uint16_t bits = 0;
  float back = 0;
  formats::cast_floats(DType::f32, std::as_bytes(std::span(&value, 1)), to,
                       std::as_writable_bytes(std::span(&bits, 1)));
  formats::cast_floats(to, std::as_bytes(std::span(&bits, 1)), DType::f32,
                       std::as_writable_bytes(std::span(&back, 1)));
  return back;
}

TEST(Rounding, IsTheElementCastOfEveryKindOfNumber) {
  std::vector<float> values = {0.0f,       -0.0f,      0x1p-14f,
                               0x1p-25f,   0x1.8p-25f, 65504.0f,
                               65519.9f,   65520.0f,   std::numeric_limits<float>::infinity(),
                               0x1.fep127f};
  for (std::uint64_t i = 0; i < 200'000; ++i) {  // steps through all exponents and ties
    const float value =
        std::bit_cast<float>(static_cast<std::uint32_t>(i * 21'473 + 0x1000 * (i % 3)));
    if (!std::isnan(value)) values.push_back(i % 2 == 0 ? value : -value);
  }
  for (const Precision precision : {Precision::bf16, Precision::fp16}) {
    auto rounded = values;
    round_all(precision, rounded);
    for (std::size_t i = 0; i < values.size(); ++i)
      ASSERT_EQ(std::bit_cast<std::uint32_t>(rounded[i]),
                std::bit_cast<std::uint32_t>(cast(precision, values[i])))
          << values[i];
  }
  std::vector<float> none = {std::numeric_limits<float>::quiet_NaN()};
  round_all(Precision::fp16, none);
  EXPECT_TRUE(std::isnan(none[0]));
}

TEST(Precision, ErrorsAreThoseOfThePrecisionAndResultsItsNumbers) {
  for (const Rounding rounding : {Rounding::fused, Rounding::each, Rounding::each_product_first})
    for (const auto& [precision, most] :
         {std::pair(Precision::bf16, 5e-2), {Precision::fp16, 8e-3}})
      for (const auto& [rows, cols] : {std::pair<std::size_t, std::size_t>(96, 160), {264, 130}}) {
        MuonSpec spec = MuonSpec::keller();
        spec.precision = precision;
        spec.rounding = rounding;
        const auto u = gaussian(rows * cols, 7);
        const auto o = run(spec, rows, cols, u);
        const double error = relative_distance(o, oracle(spec, rows, cols, u));
        EXPECT_LE(error, most);
        EXPECT_GE(error, most / 50);
        auto rounded = o;
        round_all(precision, rounded);
        EXPECT_TRUE(same_bits(rounded, o));
      }
}

TEST(Precision, TheNormMayBeThatOfWhatIsRounded) {
  MuonSpec spec = *preset("torch");
  auto u = gaussian(40 * 60, 3);
  for (float& value : u) value *= 1e-9f;  // below eps: the norm decides the size of O
  const double least = relative_distance(run(spec, 40, 60, u), oracle(spec, 40, 60, u));
  EXPECT_LE(least, 2e-2);
  // An update that bf16 cannot tell from another gives the same O.
  auto nudged = u;
  for (float& value : nudged) value = cast(Precision::bf16, value);
  EXPECT_TRUE(same_bits(run(spec, 40, 60, nudged), run(spec, 40, 60, u)));
  spec.norm_of = NormOf::update;
  EXPECT_FALSE(same_bits(run(spec, 40, 60, nudged), run(spec, 40, 60, u)));
  spec.handed = Precision::bf16;
  EXPECT_TRUE(same_bits(run(spec, 40, 60, nudged), run(spec, 40, 60, u)));
}

// U over its norm, by the words of docs/numerics.md alone.
std::vector<float> divided_by_its_norm(const MuonSpec& spec, std::vector<float> u) {
  const Precision kept = spec.norm_of == NormOf::update    ? Precision::fp32
                         : spec.norm_of == NormOf::rounded ? spec.precision
                                                           : spec.handed;
  const auto in = [](Precision precision, double value) {
    const auto wide = static_cast<float>(value);
    return precision == Precision::fp32 ? wide : cast(precision, wide);
  };
  const auto norm_in = [&](double value) {
    return kept == Precision::fp32 ? value : static_cast<double>(in(kept, value));
  };
  double squares = 0;
  for (float& value : u) {
    value = in(kept, static_cast<double>(in(spec.handed, static_cast<double>(value))));
    squares += static_cast<double>(value) * static_cast<double>(value);
  }
  const double norm = norm_in(norm_in(std::sqrt(squares)) * spec.norm_factor);
  const double divisor =
      spec.eps_rule == EpsRule::add ? norm_in(norm + spec.eps) : std::max(norm, norm_in(spec.eps));
  for (float& value : u) {
    const float x = in(kept, static_cast<double>(value) / divisor);
    value = in(spec.handed, static_cast<double>(in(spec.precision, static_cast<double>(x))));
  }
  return u;
}

// An iteration that changes nothing shows what the others would begin with.
TEST(Precision, TheNormIsTakenAndDividedByInTheDtypeThatIsSaid) {
  int drawn = 0;
  for (const NormOf norm_of : {NormOf::update, NormOf::rounded, NormOf::handed})
    for (const Precision precision : {Precision::fp32, Precision::bf16, Precision::fp16})
      for (const Precision handed : {Precision::fp32, Precision::bf16})
        for (const Form form : {Form::standard, Form::gram})
          for (const auto& [eps_rule, factor] : {std::pair(EpsRule::add, 1.0),
                                                 {EpsRule::add, 1.02},
                                                 {EpsRule::clamp, 1.0},
                                                 {EpsRule::clamp, 1.02}})
            for (const auto& [rows, cols] :
                 {std::pair<std::size_t, std::size_t>(40, 9), {9, 40}, {17, 17}, {1, 5}})
              for (const float size : {1.0f, 1e-9f}) {  // the second: below eps
                MuonSpec spec;
                spec.iterations = {{1, 0, 0}};
                spec.norm_of = norm_of;
                spec.precision = precision;
                spec.handed = handed;
                spec.form = form;
                spec.rounding = Rounding::each;
                spec.eps_rule = eps_rule;
                spec.norm_factor = factor;
                if (!validate(spec)) continue;  // the norm of what fp16 cannot hold
                auto u = gaussian(rows * cols, static_cast<std::uint32_t>(rows));
                for (float& value : u) value *= size;
                const auto wanted = divided_by_its_norm(spec, u);
                const auto found = run(spec, rows, cols, u);
                // A divisor in fp64 may round the other way where nothing is rounded behind it.
                const bool exact = handed == Precision::bf16 || precision != Precision::fp32;
                EXPECT_LE(
                    relative_distance(found, std::vector<double>(wanted.begin(), wanted.end())),
                    exact ? 0 : 1e-7)
                    << static_cast<int>(norm_of) << static_cast<int>(precision)
                    << static_cast<int>(handed) << " " << rows << " x " << cols;
                ++drawn;
              }
  EXPECT_GE(drawn, 900);
}

// D = X + (b A) X of one iteration in fp64, each product rounded once; A's factor rounded or not.
std::vector<double> cubic(const MuonSpec& spec, std::size_t m, std::size_t n,
                          const std::vector<float>& u, Rounding rounding) {
  const auto round = [&](std::vector<double> values) {
    for (double& value : values)
      value = static_cast<double>(cast(spec.precision, static_cast<float>(value)));
    return values;
  };
  auto x = round(testing::normalised(spec, m, n, u));
  for (const auto [a, b, c] : spec.iterations) {
    auto gram = round(testing::product(m, n, m, x, testing::transposed(m, n, x)));
    for (double& value : gram) value *= static_cast<double>(b);
    if (rounding != Rounding::fused) gram = round(gram);
    auto next = testing::product(m, m, n, gram, x);
    for (std::size_t i = 0; i < next.size(); ++i) next[i] += static_cast<double>(a) * x[i];
    x = round(next);
  }
  return x;
}

// As Emerging-Optimizers' cubic5 does: (b A) X is b (A X), and A^2 is not made.
TEST(Precision, AnIterationWithoutASquareDoesNotRoundWhatIsLeftOfIt) {
  const auto cubics = *coefficients("cubic5", 5);
  for (const Precision precision : {Precision::bf16, Precision::fp16})
    for (const Coefficients& step : cubics)
      for (const auto& [m, n] :
           {std::pair<std::size_t, std::size_t>(24, 40), {33, 33}, {7, 90}, {70, 130}}) {
        MuonSpec spec = *preset("emerging");
        spec.precision = precision;
        spec.iterations = {step};
        const auto u = gaussian(m * n, 5);
        const auto direct = cubic(spec, m, n, u, Rounding::fused);
        const auto rounded = cubic(spec, m, n, u, Rounding::each);
        const auto expect_direct = [&](const std::vector<float>& o) {
          EXPECT_LE(2 * relative_distance(o, direct), relative_distance(o, rounded))
              << m << " x " << n << ", " << step.b;
        };
        expect_direct(run(spec, m, n, u));
        if (m != n)  // a tall one: the same X
          expect_direct(testing::transposed(n, m, run(spec, n, m, testing::transposed(m, n, u))));
        MuonSpec quintic = spec;
        quintic.iterations = {{1, 1, 1}};
        EXPECT_LT(newton_schulz_flops(spec, m, n), newton_schulz_flops(quintic, m, n));
      }
}

TEST(Precision, EveryPresetInFp32AgreesWithFp64) {
  for (const Preset& one : presets())
    for (const auto& [rows, cols] :
         {std::pair<std::size_t, std::size_t>(96, 160), {130, 61}, {72, 72}}) {
      MuonSpec spec = *preset(one.name);
      spec.precision = spec.handed = Precision::fp32;
      auto u = gaussian(rows * cols, 7);
      EXPECT_LE(relative_distance(run(spec, rows, cols, u), oracle(spec, rows, cols, u)), 2e-5)
          << one.name << " " << rows << " x " << cols;
      for (std::size_t i = 0; i < u.size(); ++i)  // down to a thousandth
        u[i] *= std::pow(10.0f, -3 * static_cast<float>(i / cols) / static_cast<float>(rows - 1));
      EXPECT_LE(relative_distance(run(spec, rows, cols, u), oracle(spec, rows, cols, u)), 2e-4)
          << one.name << " " << rows << " x " << cols << ", decaying";
    }
}

TEST(GramForm, AgreesWithFp64WithAndWithoutRestarts) {
  for (const auto& [rows, cols] :
       {std::pair<std::size_t, std::size_t>(96, 160), {530, 264}, {1, 40}, {40, 1}, {300, 2100}}) {
    MuonSpec spec = MuonSpec::keller();
    spec.form = Form::gram;
    const auto u = gaussian(rows * cols, 7);
    const auto wanted = oracle(spec, rows, cols, u);
    for (const auto& restarts : {std::vector<std::uint32_t>{}, {2}, {1, 3}, {1, 2, 3, 4}}) {
      spec.restarts = restarts;
      EXPECT_LE(relative_distance(run(spec, rows, cols, u), wanted), 2e-5)
          << rows << " x " << cols << ", " << restarts.size();
    }
  }
}

TEST(GramForm, ASquareMatrixTakesTheStandardForm) {
  MuonSpec spec = MuonSpec::keller();
  const auto u = gaussian(64 * 64, 7);
  const auto standard = run(spec, 64, 64, u);
  spec.form = Form::gram;
  EXPECT_TRUE(same_bits(run(spec, 64, 64, u), standard));
}

TEST(GramForm, BitsDoNotDependOnThreads) {
  for (const char* name : {"deepspeed", "gram"}) {
    const MuonSpec spec = *preset(name);
    const auto u = gaussian(300 * 700, 7);
    const auto one = run(spec, 300, 700, u, 1);
    EXPECT_TRUE(same_bits(run(spec, 300, 700, u, 5), one)) << name;
    EXPECT_LE(relative_distance(one, oracle(spec, 300, 700, u)), 2e-2) << name;
  }
}

// Of a spectrum that falls by three decades. What rounding adds to R and to Q is alike, as long as
// the same factor stands on the same side of both, and neither is made symmetric.
TEST(GramForm, InFp16TheErrorOfRAndOfQIsAlike) {
  const MuonSpec spec = *preset("deepspeed");
  double most = 0;
  for (std::uint32_t seed = 1; seed <= 8; ++seed) {
    auto u = gaussian(24 * 45, seed);
    for (std::size_t i = 0; i < u.size(); ++i)
      u[i] *= static_cast<float>(std::pow(10, -3.0 * static_cast<double>(i / 45) / 23));
    most = std::max(most, relative_distance(run(spec, 24, 45, u), oracle(spec, 24, 45, u)));
  }
  EXPECT_LE(most, 6e-3);
}

TEST(GramForm, CountsItsWork) {
  MuonSpec spec = MuonSpec::keller();
  spec.form = Form::gram;
  const double wide = 60.0 * 60 * 400, small = 60.0 * 60 * 60;
  EXPECT_EQ(newton_schulz_flops(spec, 60, 400), 2 * (2 * wide + 17 * small));
  spec.restarts = {2};
  EXPECT_EQ(newton_schulz_flops(spec, 60, 400), 2 * (4 * wide + 14 * small));
  EXPECT_EQ(newton_schulz_scratch_bytes(spec, 100, 201), 4u * (100 * (208 + 4 * 112) + 112 * 201));
}

// One number in each row and column where there is room: all singular values are equal.
std::vector<float> spread(std::size_t rows, std::size_t cols, float value) {
  std::vector<float> u(rows * cols);
  const std::size_t m = std::min(rows, cols);
  for (std::size_t i = 0; i < m; ++i) u[i * cols + (i * 7 + 3) % cols] = value;
  return u;
}

double squares(const std::vector<float>& values) {
  double sum = 0;
  for (const float value : values) sum += double{value} * double{value};
  return sum;
}

// Of prime sizes, one row, one column, a hundred times as long as wide; tiny and huge.
TEST(Adversarial, EveryPresetStaysFiniteAndWithinItsBand) {
  constexpr std::pair<std::size_t, std::size_t> kOddShapes[] = {
      {31, 17}, {17, 31}, {29, 29}, {1, 67}, {67, 1}, {3, 401}, {1, 1}};
  for (const Preset& one : presets()) {
    MuonSpec spec = *preset(one.name);
    for (const double eps : {spec.eps, 0.0})
      for (const auto& [rows, cols] : kOddShapes)
        for (const float size : {1e-30f, 1e-9f, 1.0f, 1e30f}) {
          spec.eps = eps;
          if (eps > 0 && size < 1) continue;  // it decides the size of O
          auto u = gaussian(rows * cols, 5);
          for (float& value : u) value *= size;
          const double m = static_cast<double>(std::min(rows, cols));
          const double mean = squares(run(spec, rows, cols, u)) / m;
          EXPECT_GE(mean, 0.4) << one.name << " " << rows << " x " << cols << " of " << size;
          EXPECT_LE(mean, 1.5) << one.name << " " << rows << " x " << cols << " of " << size;
        }
  }
}

TEST(Adversarial, ZeroAndRankOneAndEqualSingularValues) {
  for (const Preset& one : presets()) {
    const MuonSpec spec = *preset(one.name);
    const std::vector<float> zeros(31 * 17, 0.0f);
    EXPECT_TRUE(same_bits(run(spec, 31, 17, zeros), zeros)) << one.name;
    std::vector<float> u(31 * 17);
    const auto column = gaussian(31, 1), row = gaussian(17, 2);
    for (std::size_t i = 0; i < u.size(); ++i) u[i] = column[i / 17] * row[i % 17];
    const double rank_one = squares(run(spec, 31, 17, u));
    EXPECT_GE(rank_one, 0.4) << one.name;
    EXPECT_LE(rank_one, 8) << one.name << ": what rounding adds to the other sixteen";
    const double equal = squares(run(spec, 17, 31, spread(17, 31, 0.3f))) / 17;
    EXPECT_GE(equal, 0.4) << one.name;
    EXPECT_LE(equal, 1.5) << one.name;
  }
}

TEST(NewtonSchulz, RowsThatLieApartAreAMatrixOfTheirOwn) {
  const auto pool = libswap::Pool::start(2);
  ASSERT_TRUE(pool);
  for (const std::uint64_t cols : {7u, 90u}) {
    const Block apart = {.cols = cols, .run = 5, .runs = 4, .stride = 9};
    const auto all = gaussian(apart.span(), 6);
    std::vector<float> dense, u = all;
    for (std::uint64_t i = 0; i < all.size(); ++i)
      if (i / cols % 9 < 5) dense.push_back(all[i]);
    orthogonalize(MuonSpec::keller(), Bf16::emulated, Block::matrix(20, cols), dense, **pool);
    orthogonalize(MuonSpec::keller(), Bf16::emulated, apart, u, **pool);
    std::vector<float> picked;
    for (std::uint64_t i = 0; i < all.size(); ++i) {
      if (i / cols % 9 < 5)
        picked.push_back(u[i]);
      else
        ASSERT_EQ(u[i], all[i]) << "not its own";
    }
    EXPECT_LE(relative_distance(picked, std::vector<double>(dense.begin(), dense.end())), 1e-6);
  }
}

}  // namespace
}  // namespace ebb::libmuon
