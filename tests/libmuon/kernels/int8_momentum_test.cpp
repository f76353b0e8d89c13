// Momentum in blocks of int8: codes and scales against arithmetic in fp64, what they lose and that
// they lose it once, and how far a momentum that is rounded every step may stray.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <functional>
#include <random>
#include <utility>

#include "ebb/formats/core/int8_blocks.h"
#include "ebb/libmuon/kernels/kernels.h"
#include "ebb/libmuon/kernels/table.h"
#include "tests/libmuon/kernels/numbers.h"

namespace ebb::libmuon {
namespace {

using testing::gaussian;
using testing::relative_distance;
using testing::same_bits;

constexpr std::uint64_t kBlock = 256;

struct Blocks {
  std::vector<std::int8_t> codes;
  std::vector<float> scales;

  explicit Blocks(std::size_t count) : codes(count), scales((count + kBlock - 1) / kBlock) {}
  Int8Blocks from(std::size_t first, std::size_t count) {
    return {std::span(codes).subspan(first, count),
            std::span(scales).subspan(first / kBlock, (count + kBlock - 1) / kBlock), kBlock};
  }
  Int8Blocks all() { return from(0, codes.size()); }
  std::vector<float> values() const {
    std::vector<float> values(codes.size());
    formats::from_int8_blocks(codes, scales, kBlock, 0, values);
    return values;
  }
  bool operator==(const Blocks&) const = default;
};

Blocks blocks_of(const std::vector<float>& values) {
  Blocks blocks(values.size());
  formats::to_int8_blocks(values, kBlock, blocks.codes, blocks.scales);
  return blocks;
}

// Of every exponent, zeros and subnormals among them.
std::vector<float> numbers_of_all_sizes(std::size_t blocks, std::uint32_t seed) {
  std::vector<float> values = gaussian(blocks * kBlock - 100, seed);
  std::mt19937 random(seed);
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = std::ldexp(values[i], static_cast<int>(i / kBlock % 270) - 149);
  return values;
}

TEST(Int8Blocks, ACodeIsTheNearestAndWhatIsLostIsLostOnce) {
  const std::vector<float> values = numbers_of_all_sizes(540, 1);
  const Blocks blocks = blocks_of(values);
  const std::vector<float> kept = blocks.values();
  for (std::size_t b = 0; b < blocks.scales.size(); ++b) {
    const std::size_t end = std::min((b + 1) * kBlock, values.size());
    double largest = 0;
    int most = 0;
    for (std::size_t i = b * kBlock; i < end; ++i) {
      largest = std::max(largest, std::abs(static_cast<double>(values[i])));
      most = std::max(most, std::abs(static_cast<int>(blocks.codes[i])));
    }
    const double scale = static_cast<double>(blocks.scales[b]);
    if (largest >= 127 * 0x1p-126) {
      ASSERT_EQ(most, 127) << b;
      ASSERT_LE(scale, largest / 127 * (1 + 0x1p-15)) << b;
    }
    for (std::size_t i = b * kBlock; i < end; ++i) {
      const double value = static_cast<double>(values[i]);
      ASSERT_EQ(static_cast<double>(kept[i]), blocks.codes[i] * scale) << "exact";
      ASSERT_LE(std::abs(static_cast<double>(kept[i]) - value),
                std::max(scale / 2 * (1 + 0x1p-14), 0x1p-127))
          << value;
    }
  }
  EXPECT_TRUE(blocks_of(kept) == blocks) << "nothing more is lost";
}

// Every scale there is, up to the exponent: its largest code gives it back.
TEST(Int8Blocks, TheLargestNumberOfABlockGivesItsScaleBack) {
  for (std::uint32_t bits = 1u << 23; bits < 2u << 23; bits += 1u << 7)
    for (const int exponent : {0, 1, 100, 246}) {
      const auto scale = std::bit_cast<float>(bits + (static_cast<std::uint32_t>(exponent) << 23));
      ASSERT_EQ(formats::int8_scale(127 * scale), scale);
      ASSERT_EQ(formats::int8_code(127 * scale, formats::int8_inverse(scale)), 127);
      ASSERT_EQ(formats::int8_code(-127 * scale, formats::int8_inverse(scale)), -127);
    }
  for (const float none : {0.0f, 0x1p-149f, 0x1p-127f}) EXPECT_EQ(formats::int8_scale(none), 0);
  EXPECT_EQ(formats::int8_scale(0x1.000004p-127f), 0x1p-126f);
}

MuonSpec form(Momentum momentum, bool nesterov) {
  MuonSpec spec = MuonSpec::keller();
  spec.momentum = momentum;
  spec.nesterov = nesterov;
  return spec;
}

// In numbers that are written out, a weight's decay among them; and cut at blocks, with the same
// bits.
TEST(Int8Blocks, MomentumGoesOnFromWhatIsStoredAndTheUpdateIsMadeOfIt) {
  constexpr std::size_t kCount = 3001;
  const std::vector<float> g = gaussian(kCount, 9), start = gaussian(kCount, 10),
                           decayed = gaussian(kCount, 11);
  const auto gradient_of = [&](std::size_t i, bool l2) {
    return l2 ? 0.37f * g[i] + decayed[i] : 0.37f * g[i];
  };
  for (const Momentum momentum : {Momentum::ema, Momentum::sum})
    for (const auto& [nesterov, decay] : {std::pair(true, Decay::decoupled),
                                          {false, Decay::decoupled},
                                          {true, Decay::l2},
                                          {false, Decay::l2}}) {
      MuonSpec spec = form(momentum, nesterov);
      spec.decay = decay;
      const bool ema = momentum == Momentum::ema, l2 = decay == Decay::l2;
      const auto beta = static_cast<float>(spec.beta), blend = static_cast<float>(1 - spec.beta);
      const Blocks before = blocks_of(start);
      const std::vector<float> old = before.values();
      Blocks m = before, cut = before;
      std::vector<float> u = decayed, u_cut = decayed, next(kCount);
      momentum_range(spec, 0.37f, g, m.all(), u);
      for (std::size_t i = 0; i < kCount; ++i) {
        const float gradient = gradient_of(i, l2);
        next[i] = ema ? old[i] + blend * (gradient - old[i]) : beta * old[i] + gradient;
      }
      EXPECT_TRUE(m == blocks_of(next));
      const std::vector<float> kept = m.values();
      for (std::size_t i = 0; i < kCount; ++i) {
        const float gradient = gradient_of(i, l2);
        const float blended =
            ema ? kept[i] + blend * (gradient - kept[i]) : gradient + beta * kept[i];
        ASSERT_EQ(u[i], nesterov ? blended : kept[i]) << i;
      }
      for (std::size_t first = 0; first < kCount; first += 2 * kBlock) {
        const std::size_t count = std::min<std::size_t>(2 * kBlock, kCount - first);
        momentum_range(spec, 0.37f, std::span(g).subspan(first, count), cut.from(first, count),
                       std::span(u_cut).subspan(first, count));
      }
      EXPECT_TRUE(cut == m);
      EXPECT_TRUE(same_bits(u_cut, u));
    }
}

// Longer than what the pool and the cache cut, with gradients in bf16 too.
TEST(Int8Blocks, TheHostsKernelsGiveTheBitsOfOneRange) {
  constexpr std::size_t kCount = 150'001;
  const MuonSpec spec = form(Momentum::ema, true);
  std::vector<float> g = gaussian(kCount, 4);
  std::vector<std::uint16_t> half(kCount);
  narrow(g, half);
  widen(half, g);
  Blocks wanted = blocks_of(gaussian(kCount, 5));
  const Blocks start = wanted;
  std::vector<float> wanted_u(kCount);
  momentum_range(spec, 0.5f, g, wanted.all(), wanted_u);
  for (const bool in_half : {false, true}) {
    libswap::Pool pool;
    const auto kernels = make_host_kernels({pool});
    Blocks m = start;
    std::vector<float> u(kCount);
    const libswap::Buffer halves{reinterpret_cast<std::byte*>(half.data()), DType::bf16, kCount};
    const PrepareRange range{&spec,
                             in_half ? halves : libswap::buffer_of(std::span(g)),
                             {reinterpret_cast<std::byte*>(m.codes.data()), DType::i8, kCount},
                             libswap::buffer_of(std::span(u)),
                             libswap::buffer_of(std::span(m.scales)),
                             kBlock};
    kernels->prepare({&range, 1}, 0.5f, {});
    EXPECT_TRUE(m == wanted);
    EXPECT_TRUE(same_bits(u, wanted_u));
  }
}

// Gradients of several kinds for 300 steps, against the same momentum in fp64. docs/numerics.md has
// the bound: half a code of the largest M of a block, over 1 - b.
TEST(Int8Blocks, TheErrorOfMomentumStaysBelowItsBound) {
  constexpr std::size_t kCount = 64 * kBlock;
  const std::vector<float> fixed = gaussian(kCount, 77);
  const auto uneven = [](std::size_t i) { return std::exp2(static_cast<float>(i % 97) / 8 - 6); };
  const std::pair<const char*, std::function<float(std::size_t, float)>> kinds[] = {
      {"noise", [](std::size_t, float noise) { return noise; }},
      {"mean and noise", [&](std::size_t i, float noise) { return fixed[i] + noise; }},
      {"constant", [&](std::size_t i, float) { return fixed[i]; }},
      {"uneven columns", [&](std::size_t i, float noise) { return uneven(i) * noise; }},
  };
  for (const auto& [what, gradient] : kinds)
    for (const Momentum momentum : {Momentum::ema, Momentum::sum}) {
      const MuonSpec spec = form(momentum, true);
      Blocks m(kCount);
      std::vector<float> g(kCount), u(kCount);
      std::vector<double> exact(kCount), exact_u(kCount), largest(kCount / kBlock);
      for (std::uint32_t step = 0; step < 300; ++step) {
        const std::vector<float> noise = gaussian(kCount, step);
        for (std::size_t i = 0; i < kCount; ++i) g[i] = gradient(i, noise[i]);
        momentum_range(spec, 1.0f, g, m.all(), u);
        for (std::size_t i = 0; i < kCount; ++i) {
          const double now = static_cast<double>(g[i]);
          const bool ema = momentum == Momentum::ema;
          exact[i] =
              ema ? exact[i] + (1 - spec.beta) * (now - exact[i]) : spec.beta * exact[i] + now;
          exact_u[i] =
              ema ? exact[i] + (1 - spec.beta) * (now - exact[i]) : now + spec.beta * exact[i];
          largest[i / kBlock] = std::max(largest[i / kBlock], std::abs(exact[i]));
        }
      }
      const std::vector<float> kept = m.values();
      double worst = 0;
      for (std::size_t i = 0; i < kCount; ++i)
        worst = std::max(worst,
                         std::abs(static_cast<double>(kept[i]) - exact[i]) / largest[i / kBlock]);
      std::printf("%s, %s: M %.2e, U %.2e off, an element at most %.2e of its block's largest\n",
                  what, momentum == Momentum::ema ? "ema" : "sum", relative_distance(kept, exact),
                  relative_distance(u, exact_u), worst);
      EXPECT_LE(worst, 1.1 / 254 / (1 - spec.beta)) << what;
      EXPECT_LE(relative_distance(kept, exact), 0.1) << what;
    }
}

TEST(Int8Blocks, TheLargestGradientNeverOverflows) {
  for (const Momentum momentum : {Momentum::ema, Momentum::sum})
    for (const double beta : {0.0, 0.95, 0.9999}) {
      MuonSpec spec = form(momentum, true);
      spec.beta = beta;
      const std::vector<float> g(1, static_cast<float>(largest_gradient(spec)));
      Blocks m(1);
      std::vector<float> u(1);
      for (int step = 0; step < 100'000; ++step) momentum_range(spec, 1.0f, g, m.all(), u);
      EXPECT_LE(m.values()[0], 0x1p120f * (1 + 0x1p-15f)) << beta;
      momentum_range(spec, 1.0f, std::vector<float>{-g[0]}, m.all(), u);
      EXPECT_TRUE(std::isfinite(m.values()[0]) && std::isfinite(u[0])) << beta;
    }
}

}  // namespace
}  // namespace ebb::libmuon
