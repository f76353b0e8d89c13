// Keys, and where flat pieces lie: held against Megatron's own rules and plain arithmetic.
#include "ebb/formats/megatron/names.h"

#include <gtest/gtest.h>

#include "ebb/formats/megatron/flat_boxes.h"

namespace ebb::formats::megatron {
namespace {

// Megatron-core takes the key of every item that is no tensor apart at its '/', '_' and '.'; one
// that it cannot take apart is a checkpoint that it cannot open.
TEST(MegatronNames, AnObjectIsWhatMegatronCoreCanTakeApart) {
  for (const char* key : {"rng_state/shard_0.1_2.4", "common_state/shard_0_1", "x/shard_0.0_1"})
    EXPECT_TRUE(is_object_key(key)) << key;
  for (const char* key : {"", "note", "x/shard_0_", "x/shard__1", "x/shard_0..1_1.2",
                          "x/shard_0_1.2", "x/y/shard_0_1", "x/shard_0_1/shard_0_1",
                          "x/shard_0_1_2", "x/shard_00000000000000000000_1", "shard_0_1"})
    EXPECT_FALSE(is_object_key(key)) << key;
  EXPECT_TRUE(is_object_part("rng_state/shard_0.0_1.2.0.0.torch_rng_state"));
  EXPECT_FALSE(is_object_part("rng_state/shard_0.0_1.2"));
  EXPECT_FALSE(is_object_part(""));
}

TEST(MegatronNames, AKeyOfAChainSaysWhichOptimizer) {
  std::string_view key = "chained_12.optimizer.state.exp_avg.w";
  EXPECT_EQ(take_chained(key), 12u);
  EXPECT_EQ(key, "optimizer.state.exp_avg.w");
  for (std::string_view other : {"chained_.x", "chained_1", "chain_1.x"}) {
    EXPECT_EQ(take_chained(other), std::nullopt);
    EXPECT_TRUE(other.starts_with("chain"));
  }
}

// Which element of the tensor a stored one is, by the definition: [X/x, Y/y, x*y] is a grid of
// local boxes, and each is flat in row-major order.
std::vector<std::uint64_t> flat_indexes(const Shape& own, const Shape& stored, const Box& chunk) {
  const std::uint64_t rows = own[0] / stored[0], cols = own[1] / stored[1];
  std::vector<std::uint64_t> out;
  for (std::uint64_t y = chunk.offset[0]; y < chunk.offset[0] + chunk.extent[0]; ++y)
    for (std::uint64_t x = chunk.offset[1]; x < chunk.offset[1] + chunk.extent[1]; ++x)
      for (std::uint64_t i = chunk.offset[2]; i < chunk.offset[2] + chunk.extent[2]; ++i)
        out.push_back((y * rows + i / cols) * own[1] + x * cols + i % cols);
  return out;
}

// Ranges that begin and end inside a row make several boxes, and so do chunks over two local ones.
TEST(MegatronNames, FlatPiecesAreReadFromWhereTheyLieInTheChunk) {
  const Shape own{6, 8}, stored{2, 2, 12};
  const Box chunks[] = {{{0, 0, 2}, {1, 1, 9}},
                        {{1, 1, 3}, {1, 1, 6}},
                        {{0, 0, 0}, {2, 2, 12}},
                        {{0, 1, 1}, {2, 1, 4}},
                        {{0, 0, 4}, {1, 1, 4}}};
  for (const Box& chunk : chunks) {
    const auto pieces = pieces_of_flat_boxes(own, stored, chunk, "w");
    ASSERT_TRUE(pieces.has_value()) << pieces.error().message;
    const auto wanted = flat_indexes(own, stored, chunk);
    std::vector<std::uint64_t> found(wanted.size(), ~0ull);
    for (const FlatPiece& piece : *pieces) {
      std::uint64_t at = piece.first;
      for (std::uint64_t y = 0; y < piece.box.extent[0]; ++y)
        for (std::uint64_t x = 0; x < piece.box.extent[1]; ++x, ++at) {
          ASSERT_LT(at, found.size()) << to_string(chunk);
          found[at] = (piece.box.offset[0] + y) * own[1] + piece.box.offset[1] + x;
        }
    }
    EXPECT_EQ(found, wanted) << to_string(chunk);
  }
}

}  // namespace
}  // namespace ebb::formats::megatron
