// Products on every instruction set that this machine has, beside fp64.
#include "ebb/libmuon/kernels/products.h"

#include <gtest/gtest.h>

#include <array>

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

constexpr std::array kIsas = {Isa::plain, Isa::avx2, Isa::avx512, Isa::avx512_bf16};
constexpr std::array kOperands = {Operands::fp32, Operands::bf16, Operands::tf32};

struct Sizes {
  std::uint64_t m, n, k;
};
// Around the edges of vectors, of what is summed at a time, and of blocks.
constexpr std::array kSizes = {Sizes{1, 1, 1},      Sizes{5, 7, 3},      Sizes{33, 50, 300},
                               Sizes{130, 97, 513}, Sizes{17, 48, 1100}, Sizes{8, 144, 512},
                               Sizes{129, 16, 257}, Sizes{3, 33, 1025}};

// Each number one of bf16, so that all kernels have the same operands, or of what is said.
std::vector<float> numbers(std::uint64_t count, std::uint32_t seed, Precision of) {
  auto values = gaussian(count, seed);
  round_all(of, values);
  return values;
}

struct Operand {
  std::vector<float> values;
  MatrixView view;
  Operand(std::uint64_t rows, std::uint64_t cols, Transpose transpose, std::uint64_t beside,
          std::uint32_t seed, Precision of = Precision::bf16) {
    const bool turned = transpose == Transpose::yes;
    const std::uint64_t ld = (turned ? rows : cols) + beside;
    values = numbers((turned ? cols : rows) * ld, seed, of);
    view = {values.data(), ld, transpose};
  }
  // Of a copy.
  MatrixView again() const { return {values.data(), view.ld, view.transpose}; }
  double at(std::uint64_t row, std::uint64_t col) const {
    return static_cast<double>(view.transpose == Transpose::yes ? values[col * view.ld + row]
                                                                : values[row * view.ld + col]);
  }
};

// `rows` at a time.
std::vector<float> product(const Products& with, const Sizes& size, const MatrixView& a,
                           const MatrixView& b, std::uint64_t rows) {
  std::vector<float> packed(packed_elems(size.n, size.k), -7.0f), c(size.m * size.n, 3.0f);
  for (std::uint64_t slice = with.slices(size.k); slice-- > 0;)
    with.pack(b, size.n, size.k, slice, packed.data());
  for (std::uint64_t first = 0; first < size.m; first += rows) {
    const std::uint64_t step = a.transpose == Transpose::yes ? 1 : a.ld;
    with.multiply(std::min(rows, size.m - first), size.n, size.k,
                  {a.data + first * step, a.ld, a.transpose}, packed.data(), size.n,
                  c.data() + first * size.n, size.n, false);
  }
  return c;
}

template <typename Check>
void for_each_case(const Check& check, Precision of = Precision::bf16) {
  for (const Sizes& size : kSizes)
    for (const Transpose left : {Transpose::no, Transpose::yes})
      for (const Transpose right : {Transpose::no, Transpose::yes})
        check(size, Operand(size.m, size.k, left, 0, 1, of),
              Operand(size.k, size.n, right, 0, 2, of));
}

TEST(Products, AreThoseOfFp64OnEveryInstructionSet) {
  for_each_case([](const Sizes& size, const Operand& a, const Operand& b) {
    std::vector<double> expected(size.m * size.n);
    for (std::uint64_t i = 0; i < size.m; ++i)
      for (std::uint64_t j = 0; j < size.n; ++j)
        for (std::uint64_t p = 0; p < size.k; ++p)
          expected[i * size.n + j] += a.at(i, p) * b.at(p, j);
    for (const Isa isa : kIsas)
      for (const Operands operands : kOperands)
        if (const Products* with = products(isa, operands); with != nullptr) {
          EXPECT_LE(relative_distance(product(*with, size, a.view, b.view, size.m), expected), 1e-6)
              << with->name << " " << size.m << " x " << size.n << " x " << size.k;
        }
  });
}

TEST(Products, InFp32HaveTheSameBitsOnAllSetsWithFusedMultiplyAdds) {
  if (products(Isa::avx512, Operands::fp32) == nullptr) GTEST_SKIP() << "one such set is here";
  for_each_case([](const Sizes& size, const Operand& a, const Operand& b) {
    const auto expected = product(*products(Isa::avx2, Operands::fp32), size, a.view, b.view, 4);
    EXPECT_TRUE(same_bits(
        product(*products(Isa::avx512, Operands::fp32), size, a.view, b.view, size.m), expected));
  });
}

// Each product is exact, so it does not matter whether it is fused with the sum.
TEST(Products, InTf32AreThoseOfRoundedOperandsOnEverySetWithTheSameBits) {
  for_each_case(
      [](const Sizes& size, Operand a, Operand b) {
        const Products& plain = *products(Isa::plain, Operands::tf32);
        const auto expected = product(plain, size, a.view, b.view, size.m);
        for (const Isa isa : kIsas)
          if (const Products* const with = products(isa, Operands::tf32); with != nullptr) {
            EXPECT_EQ(with->operands, Operands::tf32);
            EXPECT_TRUE(same_bits(product(*with, size, a.view, b.view, 5), expected)) << with->name;
          }
        round_all(Precision::tf32, a.values);
        round_all(Precision::tf32, b.values);
        const Products& fp32 = *products(Isa::plain, Operands::fp32);
        EXPECT_TRUE(same_bits(product(fp32, size, a.again(), b.again(), size.m), expected));
      },
      Precision::fp32);
}

// Neither does it matter where rows are cut, what lies between them, nor which other columns B has.
TEST(Products, BitsOfAnElementDependOnItsRowAndItsColumn) {
  const Sizes size{130, 97, 513};
  for (const Isa isa : kIsas)
    for (const Operands operands : kOperands) {
      const Products* const with = products(isa, operands);
      if (with == nullptr) continue;
      const Operand a(size.m, size.k, Transpose::no, 0, 1), b(size.k, size.n, Transpose::no, 0, 2);
      const auto expected = product(*with, size, a.view, b.view, size.m);
      for (const std::uint64_t rows : {1u, 7u, 64u, 128u})
        EXPECT_TRUE(same_bits(product(*with, size, a.view, b.view, rows), expected)) << with->name;
      Operand apart(size.m, size.k, Transpose::no, 5, 3);
      for (std::uint64_t i = 0; i < size.m; ++i)
        std::copy_n(a.values.begin() + static_cast<std::ptrdiff_t>(i * size.k), size.k,
                    apart.values.begin() + static_cast<std::ptrdiff_t>(i * apart.view.ld));
      EXPECT_TRUE(same_bits(product(*with, size, apart.view, b.view, 64), expected)) << with->name;
      const Sizes fewer{size.m, 50, size.k};
      const auto narrow = product(*with, fewer, a.view, b.view, size.m);
      for (std::uint64_t i = 0; i < size.m; ++i)
        for (std::uint64_t j = 0; j < fewer.n; ++j)
          ASSERT_EQ(narrow[i * fewer.n + j], expected[i * size.n + j]) << with->name;
    }
}

// Every set that is here has its row, and the best one is here.
TEST(Products, TheTableServesEverySet) {
  EXPECT_NE(products(Isa::plain, Operands::fp32), nullptr);
  EXPECT_EQ(products(Isa::plain, Operands::bf16), nullptr);
  EXPECT_NE(products(best_isa(), Operands::fp32), nullptr);
  EXPECT_EQ(has_real_bf16(), products(best_isa(), Operands::bf16) != nullptr);
  for (const Isa isa : kIsas) {
    const bool here = isa <= best_isa();
    EXPECT_EQ(products(isa, Operands::fp32) != nullptr, here);
    EXPECT_EQ(products(isa, Operands::tf32) != nullptr, here);
    if (const Products* real = products(isa, Operands::bf16)) {
      EXPECT_EQ(real->operands, Operands::bf16);
    }
  }
  std::printf("%s\n", products(best_isa(), Operands::fp32)->name);
}

// A better processor as a lesser one: the bits of fp32 are the same, bf16 is emulated.
TEST(Products, AreThoseOfALesserProcessorWhereThatIsAsked) {
  const Isa best = best_isa();
  if (best < Isa::avx2) GTEST_SKIP() << "no processor that multiplies and adds in one";
  constexpr std::uint64_t kSide = 70;
  const std::vector<float> a = gaussian(kSide * kSide, 1);
  std::vector<std::vector<float>> made;
  for (const Isa isa : {best, Isa::avx2}) {
    use_at_most(isa);
    EXPECT_EQ(best_isa(), isa);
    EXPECT_EQ(has_real_bf16(), isa == Isa::avx512_bf16);
    std::vector<float>& c = made.emplace_back(a.size());
    gemm(kSide, kSide, kSide, 1, {a.data(), kSide}, {a.data(), kSide, Transpose::yes}, 0, c.data(),
         kSide);
  }
  use_at_most(best);
  EXPECT_EQ(made[0], made[1]);
}

TEST(Products, RealOnesAreTakenOnlyWhereTheyPay) {
  const Bf16Choice choice = measure_bf16();
  std::printf("real products of bf16: %.2f times the rate of fp32\n", choice.gain);
  EXPECT_EQ(choice.bf16 == Bf16::real, choice.gain >= 1.3);
  EXPECT_EQ(choice.gain > 0, has_real_bf16());
}

// The rounding points are the same, so the errors are: only sums have another order.
TEST(Products, OfBf16AreAsGoodOnEitherPath) {
  if (!has_real_bf16()) GTEST_SKIP() << "there are no real ones here";
  const auto pool = libswap::Pool::start(2);
  ASSERT_TRUE(pool);
  bool differ = false;
  for (const Preset& one : presets())
    for (const auto& [rows, cols] :
         {std::pair<std::uint64_t, std::uint64_t>(96, 160), {530, 264}}) {
      MuonSpec spec = *preset(one.name);
      if (spec.precision != Precision::bf16) continue;
      const auto u = gaussian(rows * cols, 7);
      const auto expected = oracle(spec, rows, cols, u);
      auto real = u, emulated = u;
      orthogonalize(spec, Bf16::real, Block::matrix(rows, cols), real, **pool);
      orthogonalize(spec, Bf16::emulated, Block::matrix(rows, cols), emulated, **pool);
      differ = differ || !same_bits(real, emulated);
      EXPECT_LE(relative_distance(real, expected), 1.05 * relative_distance(emulated, expected))
          << one.name;
    }
  EXPECT_TRUE(differ) << "there is but one path";
}

}  // namespace
}  // namespace ebb::libmuon
