// tf32: operands of products are rounded, and nothing else.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <utility>
#include <vector>

#include "ebb/libmuon/kernels/factors.h"
#include "ebb/libmuon/kernels/kernels.h"
#include "ebb/libmuon/kernels/products.h"
#include "ebb/libmuon/kernels/rounding.h"
#include "ebb/libmuon/spec/presets.h"
#include "tests/libmuon/kernels/numbers.h"
#include "tests/libmuon/kernels/oracle.h"

namespace ebb::libmuon {
namespace {

using testing::gaussian;
using testing::oracle;
using testing::OracleOfTf32;
using testing::relative_distance;
using testing::same_bits;

struct Rounded {
  std::uint32_t from, to;
};
constexpr std::array kRounded = {
    Rounded{0x00000000, 0x00000000}, Rounded{0x80000000, 0x80000000},
    Rounded{0x3f800000, 0x3f800000},                                   // 1
    Rounded{0x3f800fff, 0x3f800000}, Rounded{0x3f801001, 0x3f802000},  // beside a tie
    Rounded{0x3f801000, 0x3f800000}, Rounded{0x3f803000, 0x3f804000},  // ties, down and up
    Rounded{0xbf801000, 0xbf800000}, Rounded{0xbf803000, 0xbf804000},
    Rounded{0x3fffefff, 0x3fffe000}, Rounded{0x3ffff000, 0x40000000},  // into the next exponent
    Rounded{0x3fffffff, 0x40000000}, Rounded{0x42f6e979, 0x42f6e000},  // 123.456
    Rounded{0x7f7fefff, 0x7f7fe000}, Rounded{0x7f7ff000, 0x7f800000},  // to infinity
    Rounded{0x7f7fffff, 0x7f800000}, Rounded{0xff7fffff, 0xff800000},
    Rounded{0x7f800000, 0x7f800000}, Rounded{0xff800000, 0xff800000},
    Rounded{0x7f800001, 0x7f800001}, Rounded{0x7fffffff, 0x7fffffff},  // not a number
    Rounded{0xffc00000, 0xffc00000}, Rounded{0xffffffff, 0xffffffff},
    Rounded{0x00000fff, 0x00000000}, Rounded{0x00001000, 0x00000000},  // subnormal
    Rounded{0x00001001, 0x00002000}, Rounded{0x00003000, 0x00004000},
    Rounded{0x80001001, 0x80002000}, Rounded{0x007fffff, 0x00800000},
};

TEST(Tf32, RoundsToNearestTiesToEvenAndKeepsWhatIsNotFinite) {
  for (const auto [from, to] : kRounded) {
    std::vector<float> values(19, std::bit_cast<float>(from));
    round_all(Precision::tf32, values);
    for (const float value : values) EXPECT_EQ(std::bit_cast<std::uint32_t>(value), to);
    const auto near = static_cast<float>(testing::in_tf32(double{std::bit_cast<float>(from)}));
    if (!std::isnan(near)) {
      EXPECT_EQ(std::bit_cast<std::uint32_t>(near), to) << from;
    }
  }
}

// m x k times k x n on an instruction set.
std::vector<float> product(const Products& with, std::uint64_t m, std::uint64_t k, std::uint64_t n,
                           const std::vector<float>& a, const std::vector<float>& b) {
  std::vector<float> packed(packed_elems(n, k)), c(m * n);
  for (std::uint64_t slice = 0; slice < with.slices(k); ++slice)
    with.pack({b.data(), n}, n, k, slice, packed.data());
  with.multiply(m, n, k, {a.data(), k}, packed.data(), n, c.data(), n, false);
  return c;
}

std::vector<const Products*> sets() {
  std::vector<const Products*> all;
  for (const Isa isa : {Isa::plain, Isa::avx2, Isa::avx512})
    if (const Products* const with = products(isa, Operands::tf32)) all.push_back(with);
  return all;
}

// Times one, on either side.
TEST(Tf32, EveryKindOfNumberEntersAProductRounded) {
  for (const Products* const with : sets())
    for (const auto [from, to] : kRounded) {
      const std::vector<float> one = {1.0f}, number = {std::bit_cast<float>(from)};
      const float wanted = std::bit_cast<float>(to);
      for (const float made :
           {product(*with, 1, 1, 1, one, number)[0], product(*with, 1, 1, 1, number, one)[0]}) {
        if (std::isnan(wanted))
          EXPECT_TRUE(std::isnan(made)) << with->name << " " << from;
        else
          EXPECT_EQ(made, wanted) << with->name << " " << from;
      }
    }
}

TEST(Tf32, ProductsOfWholeNumbersOfElevenBitsAreExact) {
  constexpr std::uint64_t kM = 37, kK = 300, kN = 50;
  std::vector<float> a(kM * kK), b(kK * kN);
  for (std::uint64_t i = 0; i < a.size(); ++i) a[i] = static_cast<float>(i * 7919 % 401) - 200;
  for (std::uint64_t i = 0; i < b.size(); ++i) b[i] = static_cast<float>(i * 104729 % 301) - 150;
  std::vector<float> wanted(kM * kN);
  for (std::uint64_t i = 0; i < kM; ++i)
    for (std::uint64_t j = 0; j < kN; ++j) {
      std::int64_t sum = 0;
      for (std::uint64_t p = 0; p < kK; ++p)
        sum += static_cast<std::int64_t>(a[i * kK + p]) * static_cast<std::int64_t>(b[p * kN + j]);
      wanted[i * kN + j] = static_cast<float>(sum);
    }
  for (const Products* const with : sets()) {
    EXPECT_EQ(product(*with, kM, kK, kN, a, b), wanted) << with->name;
    // Of twelve bits: 2049 and 2051 are ties.
    EXPECT_EQ(product(*with, 1, 1, 2, {1.0f}, {2049.0f, 2051.0f}),
              (std::vector<float>{2048.0f, 2052.0f}));
    EXPECT_EQ(product(*with, 2, 1, 1, {2047.0f, -2051.0f}, {2047.0f}),
              (std::vector<float>{2047.0f * 2047.0f, -2052.0f * 2047.0f}));
  }
}

struct Sides {
  std::size_t rows, cols;
};
constexpr std::array kSides = {Sides{96, 160}, Sides{264, 130}, Sides{128, 128}, Sides{17, 700},
                               Sides{1, 40},   Sides{40, 1},    Sides{1, 1}};

std::vector<float> run(const MuonSpec& spec, const Sides& sides, std::vector<float> u) {
  libswap::Pool pool;
  orthogonalize(spec, Bf16::emulated, Block::matrix(sides.rows, sides.cols), u, pool);
  return u;
}

MuonSpec in(Precision precision, MuonSpec spec = *preset("emerging")) {
  spec.precision = precision;
  return spec;
}

MuonSpec with_iterations(const char* set, std::size_t count, Form form,
                         std::vector<std::uint32_t> restarts) {
  MuonSpec spec = in(Precision::tf32);
  spec.iterations = *coefficients(set, 5);
  spec.iterations.resize(count);
  spec.form = form;
  spec.restarts = std::move(restarts);
  return spec;
}

// Two iterations have every product. What is left are sums in fp32, and the few numbers that they
// take across a tie.
TEST(Tf32, AgreesWithAnOracleThatRoundsOperands) {
  for (const MuonSpec& spec :
       {with_iterations("simple", 1, Form::standard, {}),
        with_iterations("simple", 2, Form::standard, {}),
        with_iterations("simple", 1, Form::gram, {}), with_iterations("simple", 2, Form::gram, {}),
        with_iterations("simple", 2, Form::gram, {1})})
    for (const Sides& sides : kSides) {
      const auto u = gaussian(sides.rows * sides.cols, 7);
      const auto wanted = OracleOfTf32(spec, sides.rows, sides.cols).of(u);
      const double error = relative_distance(run(spec, sides, u), wanted);
      EXPECT_LE(error, 5e-5) << sides.rows << " x " << sides.cols;
      EXPECT_LE(6 * error, relative_distance(oracle(spec, sides.rows, sides.cols, u), wanted))
          << sides.rows << " x " << sides.cols;
    }
}

// Further on such numbers have others behind them: then errors are alike, not what they are made
// of.
TEST(Tf32, ErrsAsTheOracleThatRoundsOperands) {
  for (const char* const set : {"quintic", "simple", "polar_express"})
    for (const MuonSpec& spec :
         {with_iterations(set, 5, Form::standard, {}), with_iterations(set, 5, Form::gram, {}),
          with_iterations(set, 5, Form::gram, {2})})
      for (const Sides& sides : {Sides{96, 160}, Sides{264, 130}, Sides{128, 128}}) {
        const auto u = gaussian(sides.rows * sides.cols, 7);
        const auto exact = oracle(spec, sides.rows, sides.cols, u);
        const double near = relative_distance(run(spec, sides, u), exact);
        const double wanted =
            relative_distance(OracleOfTf32(spec, sides.rows, sides.cols).of(u), exact);
        EXPECT_LE(near, 1.25 * wanted) << set << " " << sides.rows << " x " << sides.cols;
        EXPECT_GE(near, wanted / 1.25) << set << " " << sides.rows << " x " << sides.cols;
      }
}

TEST(Tf32, ErrsMoreThanFp32AndLessThanBf16) {
  for (const Form form : {Form::standard, Form::gram})
    for (const Sides& sides : {Sides{96, 160}, Sides{264, 130}, Sides{128, 128}}) {
      const auto u = gaussian(sides.rows * sides.cols, 7);
      const auto error = [&](Precision precision) {
        MuonSpec spec = in(precision);
        spec.form = form;
        return relative_distance(run(spec, sides, u), oracle(spec, sides.rows, sides.cols, u));
      };
      const double tf32 = error(Precision::tf32);
      EXPECT_LE(tf32, 3e-3);
      EXPECT_LE(100 * error(Precision::fp32), tf32);
      EXPECT_LE(3 * tf32, error(Precision::bf16));
    }
}

// The order of operations is the frameworks': aX + BX has the X that is kept.
TEST(Tf32, XIsAddedAsItIsKept) {
  for (const Sides& sides : kSides) {
    const auto u = gaussian(sides.rows * sides.cols, 3);
    MuonSpec spec = in(Precision::tf32);
    spec.iterations = {{1, 0, 0}};
    const auto o = run(spec, sides, u);
    EXPECT_TRUE(same_bits(o, run(in(Precision::fp32, spec), sides, u)));
  }
}

// Of keller, which says in every place that something is to be rounded.
TEST(Tf32, NothingIsRoundedThatIsKept) {
  const MuonSpec fused = in(Precision::tf32), keller = in(Precision::tf32, *preset("keller"));
  for (const Sides& sides : kSides) {
    const auto u = gaussian(sides.rows * sides.cols, 7);
    const auto o = run(fused, sides, u);
    MuonSpec each = fused;
    for (const Rounding rounding : {Rounding::each, Rounding::each_product_first}) {
      each.rounding = rounding;
      each.norm_of = NormOf::rounded;
      EXPECT_TRUE(same_bits(run(each, sides, u), o));
      EXPECT_EQ(newton_schulz_scratch_bytes(each, sides.rows, sides.cols),
                newton_schulz_scratch_bytes(fused, sides.rows, sides.cols));
    }
    auto rounded = o;
    round_all(Precision::tf32, rounded);
    EXPECT_FALSE(same_bits(rounded, o)) << sides.rows << " x " << sides.cols;
  }
  EXPECT_EQ(step_rounding(keller), Precision::fp32);
  EXPECT_EQ(update_dtype(keller), DType::f32);
  EXPECT_EQ(result_dtype(keller), DType::f32);
}

TEST(Tf32, SecondMomentsAreThoseOfFp32) {
  libswap::Pool pool;
  const Block block = Block::matrix(30, 70);
  const auto o = gaussian(block.span(), 4);
  const auto normalised = [&](Precision precision) {
    auto made = o;
    std::vector<float> v(block.rows(), 0.5f);
    normalise(in(precision, *preset("normuon")), block, made, v, pool, {});
    made.insert(made.end(), v.begin(), v.end());
    return made;
  };
  EXPECT_TRUE(same_bits(normalised(Precision::tf32), normalised(Precision::fp32)));
  EXPECT_FALSE(same_bits(normalised(Precision::bf16), normalised(Precision::fp32)));
}

}  // namespace
}  // namespace ebb::libmuon
