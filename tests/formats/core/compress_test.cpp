// Frames of any size, fed in any parts, are what is decoded again.
#include "ebb/formats/core/compress.h"

#include <gtest/gtest.h>

#include <random>

#include "ebb/formats/core/decompress.h"
#include "ebb/formats/core/units.h"

namespace ebb {

namespace {

using formats::KiB;
using formats::MiB;
using formats::ZstdWriter;

// Half of it repeats, half does not.
ByteVector mixed(std::uint64_t size) {
  std::mt19937_64 random(size);
  ByteVector bytes(size);
  for (std::uint64_t i = 0; i < size; ++i)
    bytes[i] = static_cast<std::byte>(i % 8 < 4 ? random() : i % 8);
  return bytes;
}

Result<ByteVector> frame_of(ZstdWriter& writer, ByteView plain, std::uint64_t part) {
  ByteVector frame(ZstdWriter::bound(plain.size()));
  EBB_TRY(writer.begin(plain.size(), frame));
  for (std::uint64_t at = 0; at < plain.size(); at += part)
    EBB_TRY(writer.feed(plain.subspan(at, std::min(part, plain.size() - at))));
  EBB_TRY_ASSIGN(const std::uint64_t size, writer.end());
  frame.resize(size);
  return frame;
}

// Among them those that fill a decoder's passes exactly.
TEST(Zstd, FramesOfAnySizeAndPartsComeBack) {
  auto writer = ZstdWriter::make(ZstdWriter::kDefaultLevel);
  ASSERT_TRUE(writer);
  for (const std::uint64_t size : {std::uint64_t{0}, std::uint64_t{1}, 128 * KiB - 1, 128 * KiB,
                                   128 * KiB + 1, 256 * KiB, MiB, 3 * MiB + 5})
    for (const std::uint64_t part : {std::uint64_t{1000}, 128 * KiB, 4 * MiB}) {
      const ByteVector plain = mixed(size);
      const auto frame = frame_of(*writer, plain, part);
      ASSERT_TRUE(frame) << frame.error().message;
      const auto back = formats::unzstd(*frame, size, "frame");
      ASSERT_TRUE(back) << size << " bytes in parts of " << part << ": " << back.error().message;
      EXPECT_EQ(*back, plain);
    }
}

TEST(Zstd, BytesThatDoNotCompressFitTheBound) {
  auto writer = ZstdWriter::make(ZstdWriter::kFirstLevel);
  ASSERT_TRUE(writer);
  std::mt19937_64 random(5);
  for (const std::uint64_t size : {std::uint64_t{1}, std::uint64_t{100}, 200 * KiB, 2 * MiB}) {
    ByteVector plain(size);
    for (std::byte& byte : plain) byte = static_cast<std::byte>(random());
    const auto frame = frame_of(*writer, plain, 64 * KiB);
    ASSERT_TRUE(frame);
    EXPECT_LE(frame->size(), ZstdWriter::bound(size));
    EXPECT_EQ(*formats::unzstd(*frame, size, "frame"), plain);
  }
}

TEST(Zstd, SaysWhatALevelTakes) {
  const auto usual = ZstdWriter::memory(ZstdWriter::kDefaultLevel, 8 * MiB);
  const auto hardest = ZstdWriter::memory(ZstdWriter::kLastLevel, 8 * MiB);
  ASSERT_TRUE(usual && hardest);
  EXPECT_GT(*usual, MiB);
  EXPECT_LT(*usual, 16 * MiB);
  EXPECT_GT(*hardest, 2 * *usual);
  EXPECT_LT(*hardest, 128 * MiB) << "one worker fits what --memory is without the flag";
}

}  // namespace

}  // namespace ebb
