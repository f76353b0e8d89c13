// fp32 numbers in halves that lie apart: what they are, that they are the number again, and that
// kernels give the bits of the whole.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "ebb/formats/core/halves.h"
#include "ebb/libmuon/kernels/kernels.h"
#include "ebb/libmuon/kernels/table.h"
#include "tests/libmuon/kernels/numbers.h"

namespace ebb::libmuon {
namespace {

using libswap::Buffer;
using libswap::buffer_of;
using testing::gaussian;
using testing::same_bits;

// All low halves under each 64th high one, and what lies at the ends.
TEST(Halves, AreTheNumberAgainWhateverItsBits) {
  std::uint64_t wrong = 0;
  const auto check = [&](std::uint32_t high) {
    for (std::uint32_t low = 0; low < 65536; ++low) {
      const auto value = std::bit_cast<float>(high << 16 | low);
      const float again = formats::joined(formats::high_half(value), formats::low_half(value));
      wrong += std::bit_cast<std::uint32_t>(again) != (high << 16 | low);
    }
  };
  for (std::uint32_t high = 0; high < 65536; high += 64) check(high);
  for (const std::uint32_t high :
       {0x007fu, 0x0080u, 0x3f7fu, 0x7f7fu, 0x7f80u, 0x7fffu, 0x8000u, 0xbfffu, 0xff7fu, 0xffffu})
    check(high);
  EXPECT_EQ(wrong, 0u);
}

// Against arithmetic in fp64.
TEST(Halves, TheHighOneIsTheNearestOfBf16AndOfTwoTheOneFartherFromZero) {
  const auto nearest = [](float value) {
    const double step = std::ldexp(1.0, std::max(std::ilogb(value), -126) - 7);
    return static_cast<float>(std::round(static_cast<double>(value) / step) * step);
  };
  const auto high = [](float value) {
    return std::bit_cast<float>(std::uint32_t{formats::high_half(value)} << 16);
  };
  for (std::uint32_t bits = 1; bits < 0x7f7f8000u; bits += 9973) {
    const auto value = std::bit_cast<float>(bits);
    EXPECT_EQ(high(value), nearest(value)) << bits;
    EXPECT_EQ(high(-value), -nearest(value)) << bits;
  }
  EXPECT_EQ(high(1 + 0x1p-8f), 1 + 0x1p-7f) << "a tie that an even number would win";
  EXPECT_EQ(high(-1 - 0x1p-8f), -1 - 0x1p-7f);
  EXPECT_EQ(high(0x1p-149f), 0);
  EXPECT_EQ(high(std::numeric_limits<float>::max()), std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isnan(high(std::numeric_limits<float>::quiet_NaN())));
}

struct Halved {
  std::vector<std::uint16_t> high, low;
  explicit Halved(const std::vector<float>& values) : high(values.size()), low(values.size()) {
    split(values, high, low);
  }
  std::vector<float> values() const {
    std::vector<float> all(high.size());
    join(high, low, all);
    return all;
  }
  Buffer highs() { return buffer_of(std::as_writable_bytes(std::span(high))).as(DType::bf16); }
  Buffer lows() { return buffer_of(std::as_writable_bytes(std::span(low))).as(DType::u16); }
};

Buffer floats(std::vector<float>& values) { return buffer_of(std::span(values)); }

// In the trainer's own buffer, and from one into another.
TEST(Halves, KernelsGiveTheBitsOfTheWhole) {
  const auto pool = libswap::Pool::start(2);
  ASSERT_TRUE(pool);
  const auto kernels = make_host_kernels({**pool});
  MuonSpec muon = MuonSpec::keller();
  muon.weight_decay = 0.1;
  const AdamSpec adam;
  for (const std::size_t count : {1u, 4095u, 4097u, 65537u, 200001u})
    for (const bool in_place : {true, false})
      for (const bool gradient : {true, false}) {
        const std::vector<float> begin = gaussian(count, 1);
        std::vector<float> whole = begin, o = gaussian(count, 2), m(count), v(count), m2(count),
                           v2(count);
        Halved halves(begin), out(std::vector<float>(count, 7));
        const Buffer to = in_place ? halves.highs() : out.highs();
        const auto now = [&] {
          if (!in_place) halves.high = out.high;
          return halves.values();
        };
        const FinishRange one{&muon, 0.5, floats(o), floats(whole), {}};
        FinishRange other = one;
        other.w = halves.lows(), other.out = to, other.high = halves.highs();
        kernels->finish({&one, 1}, {}).wait();
        kernels->finish({&other, 1}, {}).wait();
        EXPECT_TRUE(same_bits(now(), whole)) << count;
        const Buffer g = gradient ? floats(o) : Buffer();
        const AdamRange first{&adam, 1, g, floats(whole), floats(m), floats(v), {}};
        AdamRange second{&adam, 1, g, halves.lows(), floats(m2), floats(v2), to};
        second.high = halves.highs();
        kernels->adamw({&first, 1}, 0.5f, {}).wait();
        kernels->adamw({&second, 1}, 0.5f, {}).wait();
        EXPECT_TRUE(same_bits(now(), whole)) << count;
        EXPECT_TRUE(same_bits(m, m2) && same_bits(v, v2));
      }
}

TEST(Halves, LowOnesOfWeightsThatAreTakenAreZero) {
  libswap::Pool pool;
  const auto kernels = make_host_kernels({pool});
  for (const std::size_t count : {1u, 17u, 200000u}) {
    Halved halves(gaussian(count, 5));
    const TakeRange range{{}, halves.lows()};
    kernels->take({&range, 1}, {}).wait();
    EXPECT_EQ(halves.low, std::vector<std::uint16_t>(count));
  }
}

// Into the room of fp32, and out of any fp32, whatever bits they are.
TEST(Halves, LowOnesTravelInTheRoomOfFp32) {
  libswap::Pool pool;
  const auto kernels = make_host_kernels({pool});
  for (const std::size_t count : {1u, 17u, 200000u}) {
    const std::vector<float> masters = gaussian(count, 5);
    Halved halves(masters), back(std::vector<float>(count, 7));
    std::vector<float> room(count, 1);
    const OutRange out{halves.lows(), floats(room)};
    kernels->hand_out({&out, 1}, {}).wait();
    for (std::size_t i = 0; i < count; ++i)
      ASSERT_EQ(std::bit_cast<std::uint32_t>(room[i]), halves.low[i]) << i;
    std::vector<float> whole = masters;
    for (std::vector<float>* from : {&room, &whole}) {
      std::ranges::fill(back.low, 7);
      const OutRange in{floats(*from), back.lows()};
      kernels->hand_out({&in, 1}, {}).wait();
      EXPECT_EQ(back.low, halves.low);
    }
  }
}

// Whatever bits they are: those of a NaN, too.
TEST(Halves, TheHighOneIsHandedOutAsItIs) {
  libswap::Pool pool;
  const auto kernels = make_host_kernels({pool});
  std::vector<std::uint16_t> all(65536), out(all.size());
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
  const auto half = [](std::vector<std::uint16_t>& bits) {
    return buffer_of(std::as_writable_bytes(std::span(bits))).as(DType::bf16);
  };
  const OutRange range{half(all), half(out)};
  kernels->hand_out({&range, 1}, {}).wait();
  EXPECT_EQ(all, out);
}

}  // namespace
}  // namespace ebb::libmuon
