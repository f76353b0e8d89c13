#include "ebb/formats/elements/box_reader.h"

#include <gtest/gtest.h>

#include "ebb/formats/core/sha256.h"
#include "ebb/formats/elements/fingerprint.h"
#include "ebb/libswap/read/digest.h"
#include "tests/libswap/transfer/memory_checkpoint.h"

namespace ebb::libswap {
namespace {

using testing::MemoryCheckpoint;
using testing::Random;

const std::vector<Shape> kShapes = {{13, 7}, {2, 3, 5, 2}, {5}, {1, 9}, {}, {0, 3}, {4, 1, 6}};

Layout layout_of(Policy policy, std::uint32_t world) {
  auto layout = Layout::make({.policy = policy, .mesh = {world, 1}, .align_elems = 2}, kShapes);
  EXPECT_TRUE(layout);
  return *std::move(layout);
}

MemoryCheckpoint& fill(MemoryCheckpoint& checkpoint, DType dtype, Random& random) {
  for (std::size_t t = 0; t < kShapes.size(); ++t)
    checkpoint.add(std::to_string(t), dtype, kShapes[t], random);
  return checkpoint;
}

Box random_box(const Shape& shape, Random& random) {
  Box box = formats::whole(shape);
  for (std::size_t d = 0; d < shape.size(); ++d) {
    box.offset[d] = random() % (shape[d] + 1);
    box.extent[d] = random() % (shape[d] - box.offset[d] + 1);
  }
  return box;
}

ByteVector read(const MemoryCheckpoint& checkpoint, std::uint32_t tensor, const Box& box) {
  const TensorEntry& entry = checkpoint.tensor(tensor);
  ByteVector bytes(formats::volume(box.extent) * formats::bytes_of(entry.dtype));
  const Result<> done = formats::read_box(checkpoint, entry, box, bytes);
  EXPECT_TRUE(done) << done.error().message;
  return bytes;
}

constexpr Policy kCuts[] = {Policy::zero12, Policy::zero12_boundary, Policy::zero3, Policy::rows};

TEST(BoxReader, ReadsAnyBoxFromAnyCut) {
  Random random(41);
  for (const DType dtype : {DType::u8, DType::bf16, DType::f32, DType::c128})
    for (const Policy policy : kCuts)
      for (std::uint32_t world = 1; world < 6; ++world) {
        MemoryCheckpoint checkpoint;
        fill(checkpoint, dtype, random).cut(layout_of(policy, world), random);
        for (std::uint32_t t = 0; t < kShapes.size(); ++t)
          for (int round = 0; round < 8; ++round) {
            const Box box = random_box(kShapes[t], random);
            ASSERT_EQ(read(checkpoint, t, box), checkpoint.elements(t, box))
                << name_of(policy) << " " << formats::to_string(box);
          }
      }
}

TEST(BoxReader, ReadsUnevenRowsAtTheSumOfLowerRanksRows) {
  Random random(42);
  for (const std::vector<std::uint64_t>& rows :
       {std::vector<std::uint64_t>{5, 0, 3}, std::vector<std::uint64_t>{1, 6, 2}}) {
    MemoryCheckpoint checkpoint;
    std::uint64_t total = 0;
    for (const std::uint64_t count : rows) total += count;
    checkpoint.add("w", DType::f32, {total, 3}, random);
    std::uint64_t first = 0;
    for (std::uint32_t r = 0; r < rows.size(); ++r) {
      checkpoint.add_chunk(0, {{first, 0}, {rows[r], 3}}, r);
      first += rows[r];
    }
    const Box all = formats::whole({total, 3});
    EXPECT_EQ(read(checkpoint, 0, all), checkpoint.bytes(0));
  }
}

TEST(BoxReader, AsksForAtMostFourMebibytesAtOnce) {
  Random random(43);
  MemoryCheckpoint checkpoint;
  checkpoint.add("wide", DType::f32, {3, 1u << 20}, random);
  checkpoint.add_chunk(0, formats::whole({3, 1u << 20}), 0);
  const Box left{{0, 0}, {3, 1u << 19}};
  const Box odd{{0, 1}, {3, (1u << 20) - 1}};
  for (const Box& box : {left, odd, formats::whole({3, 1u << 20})})
    EXPECT_EQ(read(checkpoint, 0, box), checkpoint.elements(0, box));
  EXPECT_LE(checkpoint.largest_read(), formats::BoxReader::kMaxRun);
}

TEST(BoxReader, ReadsOnlyTheLongRunsOfANarrowBoxAndShortOnesTogether) {
  Random random(44);
  MemoryCheckpoint checkpoint;
  checkpoint.add("w", DType::f32, {4, 200000}, random);
  checkpoint.add_chunk(0, formats::whole({4, 200000}), 0);
  read(checkpoint, 0, {{0, 0}, {4, 100000}});  // runs of 400 kB: each its own read
  EXPECT_EQ(checkpoint.bytes_read(), 4u * 400000);
  const std::uint64_t before = checkpoint.reads();
  read(checkpoint, 0, {{0, 0}, {4, 10}});  // runs of 40 bytes: one read of the rows
  EXPECT_EQ(checkpoint.reads(), before + 1);
}

TEST(BoxReader, TouchesOnlyTheChunksThatOverlap) {
  Random random(45);
  for (const bool by_column : {false, true}) {
    MemoryCheckpoint checkpoint;
    const Shape shape = by_column ? Shape{2, 1000} : Shape{1000, 2};
    checkpoint.add("w", DType::f32, shape, random);
    for (std::uint64_t i = 0; i < 1000; ++i)
      checkpoint.add_chunk(0, by_column ? Box{{0, i}, {2, 1}} : Box{{i, 0}, {1, 2}}, 0);
    const Box box = by_column ? Box{{0, 400}, {2, 3}} : Box{{400, 0}, {3, 2}};
    EXPECT_EQ(read(checkpoint, 0, box), checkpoint.elements(0, box));
    EXPECT_EQ(checkpoint.reads(), 3u);
  }
}

TEST(BoxReader, SaysHowMuchOfABoxIsInNoShardOrInSeveral) {
  Random random(46);
  MemoryCheckpoint checkpoint;
  checkpoint.add("w", DType::f32, {8, 2}, random);
  checkpoint.add_chunk(0, {{0, 0}, {3, 2}}, 0);
  checkpoint.add_chunk(0, {{5, 0}, {3, 2}}, 1);
  ByteVector bytes(8 * 2 * 4);
  const Result<> hole =
      formats::read_box(checkpoint, checkpoint.tensor(0), formats::whole({8, 2}), bytes);
  ASSERT_FALSE(hole);
  EXPECT_EQ(hole.error().code, Code::incomplete);
  EXPECT_EQ(hole.error().message, "w (master): 4 of the 16 elements of [0:8, 0:2] are in no shard");
  checkpoint.add_chunk(0, {{2, 0}, {4, 2}}, 2);
  const Result<> twice =
      formats::read_box(checkpoint, checkpoint.tensor(0), formats::whole({8, 2}), bytes);
  ASSERT_FALSE(twice);
  EXPECT_EQ(twice.error().code, Code::corrupt);
}

TEST(BoxReader, RefusesChunksOutsideTheShapeAndPassesOnWhatReadingSays) {
  Random random(47);
  MemoryCheckpoint checkpoint;
  checkpoint.add("w", DType::f32, {2}, random);
  checkpoint.add_chunk(0, formats::whole({2}), 0);
  checkpoint.fail_on_read(1);
  ByteVector bytes(8);
  const Result<> damaged =
      formats::read_box(checkpoint, checkpoint.tensor(0), formats::whole({2}), bytes);
  ASSERT_FALSE(damaged);
  EXPECT_EQ(damaged.error().message, "shard.bin:77: checksum does not match");
  checkpoint.add_chunk(0, {{1}, {2}}, 1);
  const auto outside = formats::BoxReader::open(checkpoint, checkpoint.tensor(0));
  ASSERT_FALSE(outside);
  EXPECT_EQ(outside.error().message, "w (master): shard [1:3] lies outside the tensor's shape [2]");
}

TEST(BoxStream, GivesTheSameBytesInPiecesOfAnySize) {
  Random random(48);
  for (const DType dtype : {DType::u8, DType::f32, DType::c128}) {
    MemoryCheckpoint checkpoint;
    fill(checkpoint, dtype, random).cut(layout_of(Policy::zero3, 3), random);
    for (std::uint32_t t = 0; t < kShapes.size(); ++t) {
      const Box box = random_box(kShapes[t], random);
      const auto reader = formats::BoxReader::open(checkpoint, checkpoint.tensor(t));
      ASSERT_TRUE(reader);
      auto stream =
          formats::BoxStream::open(*reader, box, formats::BoxStream::Fingerprint::checked);
      ASSERT_TRUE(stream);
      ByteVector all;
      while (stream->bytes_left() > 0) {
        ByteVector part(1 + random() % std::min<std::uint64_t>(stream->bytes_left(), 40));
        ASSERT_TRUE(stream->read(part));
        all.insert(all.end(), part.begin(), part.end());
      }
      const ByteVector wanted = checkpoint.elements(t, box);
      EXPECT_EQ(all, wanted);
      EXPECT_EQ(stream->fingerprint(),
                formats::fingerprint(kShapes[t], box, wanted, formats::bytes_of(dtype)));
    }
  }
}

TEST(BoxStream, ReadsElementsSmallerThanAByteOnlyAsTheyAreStored) {
  Random random(49);
  MemoryCheckpoint checkpoint;
  checkpoint.add("q", DType::f4, {5, 3}, random);
  checkpoint.add_chunk(0, formats::whole({5, 3}), 0);
  EXPECT_EQ(*sha256_of(checkpoint, checkpoint.tensor(0)), formats::sha256_hex(checkpoint.bytes(0)));
  const auto reader = formats::BoxReader::open(checkpoint, checkpoint.tensor(0));
  ASSERT_TRUE(reader);
  ByteVector bytes(8);
  EXPECT_EQ(reader->read(formats::whole({5, 3}), bytes).error().message,
            "q (master): elements of F4, smaller than a byte, are only read whole");
  const auto half = formats::BoxStream::open(*reader, {{0, 0}, {2, 3}});
  ASSERT_FALSE(half);
  EXPECT_EQ(half.error().code, Code::unsupported);
  EXPECT_EQ(half.error().message,
            "q (master): [0:2, 0:3] of F4 elements, smaller than a byte, is not stored in one "
            "piece");
}

TEST(Digest, Sha256IsOfTheLogicalTensorHoweverItIsCut) {
  Random random(50);
  for (const Policy policy : kCuts) {
    MemoryCheckpoint checkpoint;
    fill(checkpoint, DType::bf16, random).cut(layout_of(policy, 4), random);
    for (std::uint32_t t = 0; t < kShapes.size(); ++t)
      EXPECT_EQ(*sha256_of(checkpoint, checkpoint.tensor(t)),
                formats::sha256_hex(checkpoint.bytes(t)));
  }
}

TEST(Fingerprint, IsTheSameForEveryCutAndTheSumOfItsParts) {
  Random random(51);
  MemoryCheckpoint checkpoint;
  fill(checkpoint, DType::f32, random);
  for (std::uint32_t t = 0; t < kShapes.size(); ++t) {
    const std::uint64_t whole = formats::fingerprint(0, checkpoint.bytes(t), 4);
    for (const Policy policy : kCuts) {
      checkpoint.cut(layout_of(policy, 3), random);
      EXPECT_EQ(*fingerprint_of(checkpoint, checkpoint.tensor(t)), whole);
    }
  }
}

TEST(Fingerprint, ChangesWithEveryBitAndEverySwapOfElements) {
  Random random(52);
  for (const std::uint32_t elem : {1u, 2u, 4u, 8u, 16u}) {
    ByteVector bytes(32 * elem);
    for (std::byte& b : bytes) b = static_cast<std::byte>(random());
    const std::uint64_t original = formats::fingerprint(0, bytes, elem);
    for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
      ByteVector flipped = bytes;
      flipped[bit / 8] ^= static_cast<std::byte>(1u << bit % 8);
      EXPECT_NE(formats::fingerprint(0, flipped, elem), original);
    }
    for (std::size_t i = 1; i < 32; ++i) {
      ByteVector swapped = bytes;
      std::swap_ranges(swapped.begin(), swapped.begin() + elem,
                       swapped.begin() + static_cast<std::ptrdiff_t>(i * elem));
      EXPECT_EQ(formats::fingerprint(0, swapped, elem) == original, swapped == bytes);
    }
    EXPECT_NE(formats::fingerprint(1, bytes, elem), original);
  }
  // Many words, in several vectors and blocks, whose signs change.
  ByteVector many(4 * 1000);
  for (std::byte& b : many) b = static_cast<std::byte>(random());
  const std::uint64_t original = formats::fingerprint(300, many, 4);
  for (std::size_t i = 3; i + 4 < many.size(); i += 4) {
    ByteVector flipped = many;
    flipped[i] ^= std::byte{0x80};
    flipped[i + 4] ^= std::byte{0x80};
    EXPECT_NE(formats::fingerprint(300, flipped, 4), original);
  }
  // Blocks of words trade places as whole.
  ByteVector blocks(4 * 256 * 3);
  for (std::byte& b : blocks) b = static_cast<std::byte>(random());
  ByteVector traded = blocks;
  std::swap_ranges(traded.begin(), traded.begin() + 1024, traded.begin() + 1024);
  EXPECT_NE(formats::fingerprint(0, traded, 4), formats::fingerprint(0, blocks, 4));
  // Any cut adds up.
  for (std::size_t cut = 0; cut <= many.size(); cut += 4)
    EXPECT_EQ(formats::fingerprint(300, ByteView(many).first(cut), 4) +
                  formats::fingerprint(300 + cut / 4, ByteView(many).subspan(cut), 4),
              original);
  // Zeros in other places are other tensors too.
  EXPECT_NE(formats::fingerprint(0, ByteVector(8), 4), formats::fingerprint(0, ByteVector(12), 4));
}

}  // namespace
}  // namespace ebb::libswap
