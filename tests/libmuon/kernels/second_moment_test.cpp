// O normalised by its second moments, against the same written out in fp64, and on rows that lie
// apart.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "ebb/libmuon/kernels/kernels.h"
#include "tests/libmuon/kernels/numbers.h"

namespace ebb::libmuon {
namespace {

using testing::gaussian;
using testing::relative_distance;
using testing::same_bits;

MuonSpec spec_with(SecondMoment second, EpsRule rule = EpsRule::add) {
  MuonSpec spec = MuonSpec::keller();
  spec.second_moment = second;
  spec.second_beta = 0.9;
  spec.second_eps_rule = rule;
  return spec;
}

void run(const MuonSpec& spec, const Block& block, std::vector<float>& o, std::vector<float>& v,
         std::uint32_t threads = 1) {
  const auto pool = libswap::Pool::start(threads);
  ASSERT_TRUE(pool);
  normalise(spec, block, o, v, **pool);
}

struct Written {
  std::vector<double> o, v;
};

Written written_out(const MuonSpec& spec, std::size_t rows, std::size_t cols,
                    const std::vector<float>& o, std::vector<double> v) {
  const bool of_rows = spec.second_moment == SecondMoment::rows || rows >= cols;
  std::vector<double> squares(v.size());
  double before = 0, behind = 0;
  Written all{std::vector<double>(o.size()), std::move(v)};
  const auto of = [&](std::size_t i) { return of_rows ? i / cols : i % cols; };
  for (std::size_t i = 0; i < o.size(); ++i) squares[of(i)] += double{o[i]} * double{o[i]};
  for (std::size_t i = 0; i < squares.size(); ++i) {
    const double mean = squares[i] / static_cast<double>(of_rows ? cols : rows);
    all.v[i] = spec.second_beta * all.v[i] + (1 - spec.second_beta) * mean;
  }
  for (std::size_t i = 0; i < o.size(); ++i) {
    const double root = std::sqrt(all.v[of(i)]);
    all.o[i] = double{o[i]} / (spec.second_eps_rule == EpsRule::add
                                   ? root + spec.second_eps
                                   : std::sqrt(std::max(all.v[of(i)], spec.second_eps)));
    before += double{o[i]} * double{o[i]};
    behind += all.o[i] * all.o[i];
  }
  for (double& value : all.o) value *= std::sqrt(before / behind);
  return all;
}

TEST(SecondMoment, NormalisesAsTheFormulaWrittenOutDoes) {
  for (const auto second : {SecondMoment::rows, SecondMoment::longer})
    for (const auto rule : {EpsRule::add, EpsRule::clamp})
      for (const auto& [rows, cols] : {std::pair<std::size_t, std::size_t>{20, 44},
                                       {44, 20},
                                       {31, 31},
                                       {1, 300},
                                       {300, 1},
                                       {129, 523}}) {
        const MuonSpec spec = spec_with(second, rule);
        const bool of_rows = second == SecondMoment::rows || rows >= cols;
        std::vector<float> v(of_rows ? rows : cols);
        std::vector<double> kept(v.size());
        for (std::uint32_t step = 1; step <= 3; ++step) {
          std::vector<float> o = gaussian(rows * cols, step);
          o[0] *= 50;  // rows and columns of other lengths
          Written wanted = written_out(spec, rows, cols, o, kept);
          run(spec, Block::matrix(rows, cols), o, v, 3);
          EXPECT_LE(relative_distance(o, wanted.o), 2e-7) << rows << " x " << cols;
          EXPECT_LE(relative_distance(v, wanted.v), 2e-7) << rows << " x " << cols;
          kept = std::move(wanted.v);
        }
      }
}

TEST(SecondMoment, RowsThatLieApartAreThoseOfTheMatrixThatTheyAre) {
  const MuonSpec spec = spec_with(SecondMoment::rows);
  const Block apart{.first = 0, .cols = 9, .run = 4, .runs = 3, .stride = 7};
  std::vector<float> all = gaussian(apart.span(), 1), together, v(apart.span() / 9, 0.5f);
  const std::vector<float> before = all;
  std::vector<float> own(12, 0.5f);
  const auto each_row = [&](const auto& job) {
    for (std::size_t i = 0; i < 12; ++i) job(i, i / 4 * 7 + i % 4);
  };
  each_row([&](std::size_t, std::size_t at) {
    together.insert(together.end(), all.begin() + static_cast<std::ptrdiff_t>(at * 9),
                    all.begin() + static_cast<std::ptrdiff_t>(at * 9 + 9));
  });
  run(spec, apart, all, v);
  run(spec, Block::matrix(12, 9), together, own);
  std::vector<bool> touched(v.size());
  each_row([&](std::size_t i, std::size_t at) {
    touched[at] = true;
    EXPECT_EQ(v[at], own[i]);
    EXPECT_TRUE(
        same_bits(std::span(all).subspan(at * 9, 9), std::span(together).subspan(i * 9, 9)));
  });
  for (std::size_t row = 0; row < touched.size(); ++row) {
    if (touched[row]) continue;
    EXPECT_EQ(v[row], 0.5f) << "of others";
    EXPECT_TRUE(
        same_bits(std::span(all).subspan(row * 9, 9), std::span(before).subspan(row * 9, 9)));
  }
}

TEST(SecondMoment, BitsDoNotDependOnThreads) {
  for (const auto second : {SecondMoment::rows, SecondMoment::longer}) {
    std::vector<float> once, moments;
    for (const std::uint32_t threads : {1u, 2u, 5u}) {
      std::vector<float> o = gaussian(200 * 700, 7), v(second == SecondMoment::rows ? 200 : 700);
      run(spec_with(second), Block::matrix(200, 700), o, v, threads);
      if (once.empty()) std::tie(once, moments) = std::tie(o, v);
      EXPECT_TRUE(same_bits(o, once));
      EXPECT_TRUE(same_bits(v, moments));
    }
  }
}

// Nothing divided by nothing is nothing, and rows of almost nothing stay finite.
TEST(SecondMoment, ZerosStayZerosAndTinyRowsStayFinite) {
  for (const auto rule : {EpsRule::add, EpsRule::clamp})
    for (const auto second : {SecondMoment::rows, SecondMoment::longer}) {
      MuonSpec spec = spec_with(second, rule);
      spec.second_eps = 1e-20;
      std::vector<float> o(6 * 8), v(second == SecondMoment::rows ? 6 : 8);
      run(spec, Block::matrix(6, 8), o, v);
      EXPECT_TRUE(std::ranges::all_of(o, [](float value) { return value == 0; }));
      o.assign(o.size(), 1e-23f);
      std::fill_n(o.begin(), 8, 1.0f);
      run(spec, Block::matrix(6, 8), o, v);
      EXPECT_TRUE(std::ranges::all_of(o, [](float value) { return std::isfinite(value); }));
      EXPECT_TRUE(std::ranges::all_of(v, [](float value) { return std::isfinite(value); }));
    }
}

// As O comes from Newton-Schulz: in numbers of its precision.
TEST(SecondMoment, WhatItHandsOnIsRoundedAsOIs) {
  MuonSpec spec = spec_with(SecondMoment::rows);
  spec.precision = Precision::bf16;
  std::vector<float> o = gaussian(8 * 16, 3), v(8);
  run(spec, Block::matrix(8, 16), o, v);
  for (const float value : o) EXPECT_EQ(std::bit_cast<std::uint32_t>(value) & 0xffffu, 0u);
}

}  // namespace
}  // namespace ebb::libmuon
