// The host's kernel table: what a trainer keeps in bf16 counts as the same numbers in fp32.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "ebb/libmuon/kernels/kernels.h"
#include "ebb/libmuon/kernels/table.h"
#include "tests/libmuon/kernels/numbers.h"

namespace ebb::libmuon {
namespace {

using libswap::Buffer;
using libswap::buffer_of;
using testing::gaussian;
using testing::same_bits;

float widened(std::uint16_t bits) { return std::bit_cast<float>(std::uint32_t{bits} << 16); }

Buffer half(std::vector<std::uint16_t>& bits) {
  return buffer_of(std::as_writable_bytes(std::span(bits))).as(DType::bf16);
}

TEST(HostKernels, EveryNumberOfBf16IsWidenedExactlyAndComesBack) {
  std::vector<std::uint16_t> all(65536), back(all.size());
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
  std::vector<float> wide(all.size());
  widen(all, wide);
  narrow(wide, back);
  for (std::size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(std::bit_cast<std::uint32_t>(wide[i]), std::uint32_t{all[i]} << 16);
    if (std::isnan(wide[i]))
      EXPECT_TRUE(std::isnan(widened(back[i])));
    else
      EXPECT_EQ(back[i], all[i]);
  }
  // Half way between two numbers the even one is nearest.
  const std::vector<float> between = {1 + 0x1p-8f, 1 + 3 * 0x1p-8f, -1 - 0x1p-8f,
                                      std::numeric_limits<float>::max()};
  std::vector<std::uint16_t> near(between.size());
  narrow(between, near);
  EXPECT_EQ(near, (std::vector<std::uint16_t>{0x3f80, 0x3f82, 0xbf80, 0x7f80}));
}

// One kernel after the other over ranges of awkward lengths, in fp32 and in bf16.
TEST(HostKernels, GradientsAndWeightsInBf16GiveTheBitsOfTheSameNumbers) {
  const auto pool = libswap::Pool::start(2);
  ASSERT_TRUE(pool);
  const auto kernels = make_host_kernels({**pool});
  const MuonSpec muon = MuonSpec::keller();
  const AdamSpec adam;
  for (const std::size_t count : {1u, 4095u, 4097u, 65537u, 200001u}) {
    std::vector<std::uint16_t> bits(count), out16(count);
    narrow(gaussian(count, 1), bits);
    std::vector<float> g(count), out(count), wanted(count);
    for (std::size_t i = 0; i < count; ++i) g[i] = widened(bits[i]);
    const auto look = [&](const Buffer& gradient) {
      Look found;
      kernels->look(std::vector<LookRange>{{gradient, 2.0, true}},
                    buffer_of(std::as_writable_bytes(std::span(&found, 1))), {});
      return found;
    };
    const Look one = look(buffer_of(std::span(g))), other = look(half(bits));
    EXPECT_EQ(one.squares, other.squares) << count;
    EXPECT_EQ(one.largest, other.largest) << count;

    auto m = gaussian(count, 2), m16 = m;
    std::vector<float> u(count), u16(count);
    const auto prepare = [&](const Buffer& gradient, std::vector<float>& momentum,
                             std::vector<float>& update) {
      kernels->prepare(std::vector<PrepareRange>{{&muon, gradient, buffer_of(std::span(momentum)),
                                                  buffer_of(std::span(update))}},
                       0.37f, {});
    };
    prepare(buffer_of(std::span(g)), m, u);
    prepare(half(bits), m16, u16);
    EXPECT_TRUE(same_bits(m, m16) && same_bits(u, u16)) << count;

    auto w = gaussian(count, 3), w16 = w, a = gaussian(count, 4), a16 = a;
    std::vector<float> v(count, 0.5f), v16 = v;
    const auto step = [&](const Buffer& gradient, const Buffer& to, std::vector<float>& weights,
                          std::vector<float>& first, std::vector<float>& second) {
      kernels->finish(
          std::vector<FinishRange>{
              {&muon, 1, buffer_of(std::span(u)), buffer_of(std::span(weights)), {}}},
          {});
      kernels->adamw(
          std::vector<AdamRange>{{&adam, 3, gradient, buffer_of(std::span(weights)),
                                  buffer_of(std::span(first)), buffer_of(std::span(second)), to}},
          0.37f, {});
    };
    step(buffer_of(std::span(g)), buffer_of(std::span(out)), w, a, v);
    step(half(bits), half(out16), w16, a16, v16);
    EXPECT_TRUE(same_bits(w, w16) && same_bits(a, a16) && same_bits(v, v16)) << count;
    EXPECT_TRUE(same_bits(out, w)) << count;
    std::vector<std::uint16_t> rounded(count), handed(count);
    narrow(w, rounded);
    EXPECT_EQ(out16, rounded) << count;
    kernels->hand_out(
        std::vector<OutRange>{{buffer_of(std::span(w)), half(handed)},
                              {buffer_of(std::span(w)), buffer_of(std::span(wanted))}},
        {});
    EXPECT_EQ(handed, rounded) << count;
    EXPECT_TRUE(same_bits(wanted, w)) << count;
  }
}

}  // namespace
}  // namespace ebb::libmuon
