#include "ebb/formats/core/float_cast.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

namespace ebb::formats {
namespace {

template <typename From, typename To>
To cast(DType from, From value, DType to, double scale = 1) {
  ByteVector in;
  append_le(in, value);
  ByteVector out(sizeof(To));
  cast_floats(from, in, to, out, scale);
  return load_le<To>(out);
}
std::uint16_t half(double value) {
  return cast<double, std::uint16_t>(DType::f64, value, DType::f16);
}
std::uint16_t brain(double value) {
  return cast<double, std::uint16_t>(DType::f64, value, DType::bf16);
}

TEST(FloatCast, EveryHalfSurvivesTheWayThroughFloatAndDouble) {
  for (const DType narrow : {DType::f16, DType::bf16})
    for (std::uint32_t bits = 0; bits < 65536; ++bits) {
      const auto value = static_cast<std::uint16_t>(bits);
      const auto wide = cast<std::uint16_t, float>(narrow, value, DType::f32);
      const auto back = cast<float, std::uint16_t>(DType::f32, wide, narrow);
      if (std::isnan(wide)) {
        EXPECT_TRUE(std::isnan(cast<std::uint16_t, float>(narrow, back, DType::f32)));
        continue;
      }
      ASSERT_EQ(back, value);
      ASSERT_EQ((cast<std::uint16_t, double>(narrow, value, DType::f64)),
                static_cast<double>(wide));
    }
}

TEST(FloatCast, RoundsToNearestAndTiesToEven) {
  EXPECT_EQ(half(1 + 0x1p-11), 0x3c00);  // a tie
  EXPECT_EQ(half(1 + 3 * 0x1p-11), 0x3c02);
  EXPECT_EQ(half(65519.99), 0x7bff);
  EXPECT_EQ(half(65520), 0x7c00);
  EXPECT_EQ(half(0x1p-25), 0x0000);
  EXPECT_EQ(half(0x1.01p-25), 0x0001);
  EXPECT_EQ(half(-0.0), 0x8000);
  EXPECT_EQ(brain(1 + 0x1p-8), 0x3f80);
  EXPECT_EQ(brain(1e39), 0x7f80);
}

TEST(FloatCast, RoundsADoubleOnceNotTwice) {
  // Rounded to fp32 first, both would become ties and go the other way.
  EXPECT_EQ(brain(1 + 0x1p-8 + 0x1p-40), 0x3f81);
  EXPECT_EQ(half(1 + 0x1p-11 + 0x1p-40), 0x3c01);
  EXPECT_EQ(brain(1 + 3 * 0x1p-8 - 0x1p-40), 0x3f81);
}

TEST(FloatCast, ScalesBeforeItRounds) {
  EXPECT_EQ((cast<float, float>(DType::f32, 3, DType::f32, 0.1)), 0.3f);
  EXPECT_EQ((cast<float, std::uint16_t>(DType::f32, 2, DType::bf16, 0.25)), 0x3f00);
}

TEST(FloatCast, KnowsWhichTypesHoldWhich) {
  EXPECT_TRUE(is_widening(DType::bf16, DType::f32));
  EXPECT_TRUE(is_widening(DType::f16, DType::f64));
  EXPECT_FALSE(is_widening(DType::bf16, DType::f16));
  EXPECT_FALSE(is_widening(DType::f32, DType::bf16));
  EXPECT_FALSE(is_widening(DType::i32, DType::i64));
}

}  // namespace
}  // namespace ebb::formats
