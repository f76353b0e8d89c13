#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <limits>
#include <memory>

#include "ebb/formats/core/bf16.h"
#include "ebb/formats/core/byte_source.h"
#include "ebb/formats/core/bytes.h"
#include "ebb/formats/core/crc32c.h"
#include "ebb/formats/core/dtype.h"
#include "ebb/formats/core/result.h"
#include "ebb/formats/core/units.h"

namespace ebb::formats {
namespace {

Result<std::unique_ptr<int>> boxed(int value) {
  if (value < 0) return Error{Code::usage, "negative"};
  return std::make_unique<int>(value);
}

Result<> only_even(int value) {
  if (value % 2 != 0) return Error{Code::layout, "odd", "try 2"};
  return {};
}

Result<int> halved(int value) {
  EBB_TRY_ASSIGN(const std::unique_ptr<int> held, boxed(value));
  EBB_TRY(only_even(*held));
  return *held / 2;
}

TEST(Result, CarriesAMoveOnlyValueOrAnError) {
  EXPECT_EQ(*halved(8), 4);
  const auto odd = halved(3);
  ASSERT_FALSE(odd);
  EXPECT_EQ(odd.error().code, Code::layout);
  EXPECT_EQ(odd.error().hint, "try 2");
  EXPECT_EQ(halved(-1).error().message, "negative");
}

TEST(Result, AnErrorSaysWhereItHappened) {
  EXPECT_EQ((Error{Code::io, "read failed"}.within("a.bin:12")).message, "a.bin:12: read failed");
}

TEST(Error, SaysWhatItIsAboutBehindThePlace) {
  const auto about = [](const char* message) {
    return Error{Code::corrupt, message}.about("tensor 'w'").message;
  };
  EXPECT_EQ(about("a.pt:12: bad CRC32"), "a.pt:12: tensor 'w': bad CRC32");
  EXPECT_EQ(about("a.pt: not there"), "tensor 'w': a.pt: not there");
  EXPECT_EQ(about("a: 12: bad"), "tensor 'w': a: 12: bad");
  EXPECT_EQ(about("a.pt:: bad"), "tensor 'w': a.pt:: bad");
  EXPECT_EQ(about("bad"), "tensor 'w': bad");
}

TEST(ResultDeathTest, TakingTheValueOfAnErrorStopsTheProgram) {
  EXPECT_DEATH(static_cast<void>(*halved(3)), "result.h:.*internal error");
}

// The definition: the nearest bf16, ties to the one with an even last bit.
std::uint16_t slow_bf16(float value) {
  const auto low = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16);
  const auto high = static_cast<std::uint16_t>(low + 1);
  const double down = std::abs(static_cast<double>(value) - static_cast<double>(bf16_to_f32(low)));
  double top = static_cast<double>(bf16_to_f32(high));
  if (std::isinf(top)) top = std::copysign(std::ldexp(1.0, 128), top);
  const double up = std::abs(static_cast<double>(value) - top);
  if (down != up) return down < up ? low : high;
  return (low & 1) == 0 ? low : high;
}

TEST(Bf16, RoundsToNearestEvenOnEveryPatternOfTheLowHalf) {
  for (const std::uint32_t upper : {0x0000u, 0x0001u, 0x3f80u, 0x3f81u, 0xbf80u, 0x7f7eu, 0x7f7fu})
    for (std::uint32_t lower = 0; lower <= 0xffffu; ++lower) {
      const auto value = std::bit_cast<float>(upper << 16 | lower);
      ASSERT_EQ(f32_to_bf16(value), slow_bf16(value)) << upper << ":" << lower;
    }
}

TEST(Bf16, KeepsEveryBf16AndNeverTurnsNanIntoANumber) {
  for (std::uint32_t bits = 0; bits <= 0xffffu; ++bits) {
    const float value = bf16_to_f32(static_cast<std::uint16_t>(bits));
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(bf16_to_f32(f32_to_bf16(value))));
    } else {
      ASSERT_EQ(f32_to_bf16(value), bits);
    }
  }
  // A NaN whose payload lies in the low half only.
  EXPECT_TRUE(std::isnan(bf16_to_f32(f32_to_bf16(std::bit_cast<float>(0x7f800001u)))));
  EXPECT_EQ(f32_to_bf16(std::numeric_limits<float>::infinity()), 0x7f80u);
}

TEST(Crc, KnowsTheStandardsCheckValues) {
  EXPECT_EQ(crc32c(0, view_of("123456789")), 0xe3069283u);
  EXPECT_EQ(crc32_zip(0, view_of("123456789")), 0xcbf43926u);
  EXPECT_EQ(crc32c(0, {}), 0u);
  EXPECT_EQ(crc32_zip(0, {}), 0u);
  // RFC 3720 B.4: 32 bytes of zeros, and of ones.
  EXPECT_EQ(crc32c(0, ByteVector(32, std::byte{0})), 0x8a9136aau);
  EXPECT_EQ(crc32c(0, ByteVector(32, std::byte{0xff})), 0x62a8ab43u);
}

TEST(Crc, ContinuesOverPieces) {
  const std::string_view text = "the quick brown fox jumps over the lazy dog";
  for (std::size_t cut = 0; cut <= text.size(); ++cut) {
    const ByteView head = view_of(text.substr(0, cut));
    const ByteView tail = view_of(text.substr(cut));
    EXPECT_EQ(crc32c(crc32c(0, head), tail), crc32c(0, view_of(text)));
    EXPECT_EQ(crc32_zip(crc32_zip(0, head), tail), crc32_zip(0, view_of(text)));
  }
}

// The library takes at most 1 GiB at once. The zeros are pages that nobody has touched.
TEST(Crc, GoesOnAfterWhatTheLibraryTakesAtOnce) {
  const std::size_t size = (std::size_t{1} << 30) + 100;
  const std::unique_ptr<void, decltype(&std::free)> zeros(std::calloc(size, 1), &std::free);
  ASSERT_NE(zeros, nullptr);
  const ByteView all(static_cast<const std::byte*>(zeros.get()), size);
  const std::size_t cut = std::size_t{600} << 20;
  EXPECT_EQ(crc32c(1, all), crc32c(crc32c(1, all.first(cut)), all.subspan(cut)));
}

TEST(Crc, TheCrcOfARunFollowsFromItsPartsInAnyOrder) {
  ByteVector run(1000);
  for (std::size_t i = 0; i < run.size(); ++i) run[i] = static_cast<std::byte>(i * 31);
  std::fill(run.begin() + 300, run.begin() + 400, std::byte{0});  // a part nobody tells of
  const formats::Crc32cOfParts parts(run.size());
  const ByteView bytes(run);
  std::uint32_t crc = parts.zeros();
  crc ^= parts.contribution(400, bytes.subspan(400));
  crc ^= parts.contribution(0, bytes.first(7));
  crc ^= parts.contribution(7, bytes.subspan(7, 293));
  EXPECT_EQ(crc, crc32c(0, bytes));
  EXPECT_EQ(parts.begun_with(0x12345678, crc), crc32c(0x12345678, bytes));
}

TEST(DType, NamesAndNumbersGoBothWays) {
  int known = 0;
  for (std::uint32_t number = 0; number < 256; ++number) {
    const auto dtype = dtype_numbered(static_cast<std::uint8_t>(number));
    if (!dtype) continue;
    ++known;
    EXPECT_EQ(dtype_named(name_of(*dtype)), dtype);
  }
  EXPECT_EQ(known, 23);
  EXPECT_EQ(dtype_named("F128"), std::nullopt);
  EXPECT_EQ(bytes_of(DType::c128), 16u);
  EXPECT_EQ(bits_of(DType::f4), 4u);
  EXPECT_EQ(static_cast<int>(DType::f32), 1) << "frozen: stored in files";
}

TEST(Units, SeeOverflow) {
  const std::uint64_t most = std::numeric_limits<std::uint64_t>::max();
  EXPECT_EQ(checked_add(most, 1), std::nullopt);
  EXPECT_EQ(checked_add(most, 0), most);
  EXPECT_EQ(checked_mul(std::uint64_t{1} << 32, std::uint64_t{1} << 32), std::nullopt);
  EXPECT_EQ(div_ceil(most, 2), std::uint64_t{1} << 63);
  EXPECT_EQ(align_up(4097, 4096), 8192u);
  EXPECT_EQ(div_exact(12, 4), 3u);
}

TEST(ByteReader, StopsAtTheEndWithoutMoving) {
  ByteVector bytes;
  append_le<std::uint32_t>(bytes, 0x01020304u);
  append_text(bytes, "ab");
  ByteReader reader(bytes);
  EXPECT_EQ(reader.number<std::uint32_t>(), 0x01020304u);
  EXPECT_EQ(reader.number<std::uint32_t>(), std::nullopt);
  EXPECT_EQ(reader.position(), 4u);
  EXPECT_EQ(text_of(*reader.take(2)), "ab");
  EXPECT_EQ(reader.take(1), std::nullopt);
}

TEST(ByteSource, RefusesToReadPastTheEndOrMoreThanTheLimit) {
  const MemorySource source("x.bin", ByteVector(10));
  EXPECT_EQ(read_bytes(source, 4, 6, 100)->size(), 6u);
  const auto past = read_bytes(source, 4, 7, 100);
  ASSERT_FALSE(past);
  EXPECT_EQ(past.error().code, Code::corrupt);
  EXPECT_EQ(past.error().message, "x.bin:4: 7 bytes wanted, but the file ends at 10");
  const auto limited = read_bytes(source, 0, 101, 100);
  ASSERT_FALSE(limited);
  EXPECT_EQ(limited.error().code, Code::limit);
  EXPECT_EQ(limited.error().message, "x.bin:0: 101 bytes are more than the limit of 100");
  EXPECT_FALSE(read_bytes(source, ~std::uint64_t{0}, 2, 100));
}

}  // namespace
}  // namespace ebb::formats
