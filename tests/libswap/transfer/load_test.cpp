#include "ebb/libswap/read/load.h"

#include <gtest/gtest.h>

#include "ebb/libswap/read/digest.h"
#include "tests/libswap/transfer/memory_checkpoint.h"
#include "tests/support/in_child.h"

namespace ebb::libswap {
namespace {

using testing::Fickle;
using testing::layout_of;
using testing::MemoryCheckpoint;
using testing::Random;

class Load : public ::testing::Test {
 protected:
  Load() {
    source_.add("a", DType::f32, {13, 7}, random_);
    source_.add("b", DType::bf16, {2, 3, 5}, random_);
    source_.add("scalar", DType::i64, {}, random_);
    source_.add("none", DType::f32, {0, 4}, random_);
    cut(Policy::zero3, 3);
  }
  void cut(Policy policy, std::uint32_t world) {
    source_.cut(layout_of(policy, world, source_.catalog()), random_);
  }

  // A box and memory of its size.
  void want(std::uint32_t tensor, Box box) {
    const auto bytes =
        formats::packed_bytes(source_.tensor(tensor).dtype, formats::volume(box.extent));
    memory_.push_back(std::make_unique<ByteVector>(*bytes));
    wanted_.push_back({tensor, std::move(box), *memory_.back()});
  }
  void want_all(const Layout& layout, Rank rank) {
    for (std::uint32_t t = 0; t < source_.catalog().tensors.size(); ++t)
      for (const formats::Piece& piece : layout.pieces(t, rank)) want(t, piece.box);
  }
  void expect_filled() {
    for (std::size_t i = 0; i < wanted_.size(); ++i)
      EXPECT_EQ(*memory_[i], source_.elements(wanted_[i].tensor, wanted_[i].box)) << i;
  }
  Error failure(const LoadOptions& options = {}) {
    const auto loaded = load(source_, wanted_, options);
    EXPECT_FALSE(loaded);
    return loaded ? Error{} : loaded.error();
  }

  Random random_{83};
  MemoryCheckpoint source_;
  std::vector<Wanted> wanted_;
  std::vector<std::unique_ptr<ByteVector>> memory_;
};

TEST_F(Load, ALoaderIsRefusedInAChild) {
  Loader loader(source_);
  EXPECT_EQ(test_support::in_child([&] {
              test_support::Refused calls;
              calls.expect("load", loader.load({}));
              return calls.others();
            }),
            "");
  EXPECT_TRUE(loader.load({}));
}

TEST_F(Load, FillsTheMemoryOfEveryRankFromAnyCut) {
  for (const Policy from : {Policy::zero12, Policy::zero3, Policy::rows})
    for (const Policy to : {Policy::zero12, Policy::zero12_boundary, Policy::zero3, Policy::rows})
      for (const std::uint32_t world : {1u, 2u, 5u}) {
        cut(from, 3);
        const Layout layout = layout_of(to, world, source_.catalog());
        std::vector<std::uint64_t> sums(source_.catalog().tensors.size(), 0);
        for (std::uint32_t rank = 0; rank < world; ++rank) {
          wanted_.clear();
          memory_.clear();
          want_all(layout, Rank{rank});
          const auto loaded = load(source_, wanted_);
          ASSERT_TRUE(loaded) << loaded.error().message;
          expect_filled();
          std::uint64_t bytes = 0;
          for (std::size_t i = 0; i < wanted_.size(); ++i) {
            sums[wanted_[i].tensor] += loaded->fingerprints[i];
            bytes += memory_[i]->size();
          }
          EXPECT_EQ(loaded->bytes, bytes);
        }
        for (std::uint32_t t = 0; t < sums.size(); ++t)
          EXPECT_EQ(sums[t], *fingerprint_of(source_, source_.tensor(t))) << t;
      }
}

TEST_F(Load, FillsColumnsOutOfRowsAndRowsOutOfColumns) {
  source_.catalog().tensors[0].chunks.clear();
  source_.add_chunk(0, {{0, 0}, {13, 3}}, 0);
  source_.add_chunk(0, {{0, 3}, {13, 4}}, 1);
  want(0, {{2, 0}, {5, 7}});
  want(0, {{0, 2}, {13, 2}});
  want(0, {{12, 6}, {1, 1}});
  ASSERT_TRUE(load(source_, wanted_));
  expect_filled();
}

TEST_F(Load, ReadsEachByteOnceAndNoMoreThanARunAtATime) {
  source_.add("large", DType::f32, {2300, 2048}, random_);
  source_.add_chunk(4, formats::whole({2300, 2048}), 0);
  const Layout layout = layout_of(Policy::rows, 3, source_.catalog());
  for (std::uint32_t rank = 0; rank < 3; ++rank) want(4, layout.pieces(4, Rank{rank})[0].box);
  ASSERT_TRUE(load(source_, wanted_, {.workers = 3}));
  expect_filled();
  EXPECT_EQ(source_.bytes_read(), source_.bytes(4).size());
  EXPECT_LE(source_.largest_read(), std::uint64_t{4} << 20);
  EXPECT_LE(source_.reads(), 8u);
}

// Notes where it is read.
class Ordered : public MemoryCheckpoint {
 public:
  Result<> read_chunk(const TensorEntry& tensor, const Chunk& chunk, std::uint64_t first,
                      std::span<std::byte> into) const override {
    places.emplace_back(chunk.file, first);
    return MemoryCheckpoint::read_chunk(tensor, chunk, first, into);
  }
  mutable std::vector<std::pair<std::uint32_t, std::uint64_t>> places;
};

TEST_F(Load, ReadsInTheOrderOfTheFilesWhateverTheOrderOfWhatIsWanted) {
  Ordered source;
  for (const std::uint32_t file : {2u, 0u, 1u}) {
    const std::uint32_t tensor = source.add("t", DType::f32, {1500, 1024}, random_);
    source.add_chunk(tensor, formats::whole({1500, 1024}), 0);
    source.catalog().tensors[tensor].chunks[0].file = file;
    ByteVector& memory =
        *memory_.emplace_back(std::make_unique<ByteVector>(std::uint64_t{1500} * 1024 * 4));
    wanted_.push_back({tensor, formats::whole({1500, 1024}), memory});
  }
  ASSERT_TRUE(load(source, wanted_, {.workers = 1}));
  EXPECT_EQ(source.places.size(), 6u);
  EXPECT_TRUE(std::ranges::is_sorted(source.places));
}

TEST_F(Load, ATensorWithAMissingPartIsIncompleteWhateverIsWantedOfIt) {
  source_.catalog().tensors[0].chunks.clear();
  source_.add_chunk(0, {{0, 0}, {6, 7}}, 0);
  source_.add_chunk(0, {{8, 0}, {5, 7}}, 1);
  want(0, {{0, 0}, {3, 7}});
  const Error error = failure();
  EXPECT_EQ(error.code, Code::incomplete);
  EXPECT_EQ(error.message, "a (master): rows 6-7 are in no shard");
  wanted_.clear();
  want(1, formats::whole({2, 3, 5}));  // another tensor is none the worse
  EXPECT_TRUE(load(source_, wanted_));
}

TEST_F(Load, ShardsThatOverlapAreCorrupt) {
  source_.catalog().tensors[0].chunks.clear();
  source_.add_chunk(0, {{0, 0}, {7, 7}}, 0);
  source_.add_chunk(0, {{6, 0}, {7, 7}}, 1);
  want(0, formats::whole({13, 7}));
  EXPECT_EQ(failure().code, Code::corrupt);
}

TEST_F(Load, SaysWhatReadingSaid) {
  for (std::uint32_t t = 0; t < 3; ++t) want(t, formats::whole(source_.tensor(t).shape));
  for (const int at : {1, 2, 5}) {
    source_.fail_on_read(at);
    EXPECT_EQ(failure({.workers = 2}).message, "shard.bin:77: checksum does not match");
  }
}

TEST_F(Load, RefusesMemoryOfAnotherSizeAndBoxesOutside) {
  want(0, {{0, 0}, {2, 7}});
  wanted_[0].into = wanted_[0].into.first(55);
  EXPECT_EQ(failure().message,
            "a (master): the memory for [0:2, 0:7] has 55 bytes, its elements 56");
  wanted_[0].box = {{12, 0}, {2, 7}};
  EXPECT_EQ(failure().message, "a (master): [12:14, 0:7] is wanted of a tensor of shape [13, 7]");
  EXPECT_EQ(failure().code, Code::layout);
  wanted_[0].tensor = 4;
  EXPECT_EQ(failure().message, "tensor 4 is wanted of a checkpoint that has 4");
  wanted_[0] = {0, {{0}, {14}}, *memory_[0]};
  EXPECT_EQ(failure().message, "a (master): [0:14] is wanted of a tensor of shape [13, 7]");
  wanted_[0] = {0, {{0, 0}, {2, 7}}, std::span(static_cast<std::byte*>(nullptr), 56)};
  EXPECT_EQ(failure().message,
            "a (master): the memory for [0:2, 0:7] has 56 bytes and no address, its elements 56");
}

// What want_range() makes of what it cannot make boxes of is refused by load().
TEST_F(Load, RefusesRangesThatAreNotInsideAndMemoryThatIsNotTheirs) {
  ByteVector bytes(4 * 91);
  for (const auto& [range, size] : {std::pair(FlatRange{0, 92}, std::size_t{368}),
                                    {FlatRange{90, 2}, 8},
                                    {FlatRange{~std::uint64_t{0}, 2}, 8},
                                    {FlatRange{0, ~std::uint64_t{0}}, 8},
                                    {FlatRange{0, 7}, 27},
                                    {FlatRange{0, 7}, 0},
                                    {FlatRange{3, 9}, 4 * 10}}) {
    wanted_.clear();
    bytes.resize(size);
    want_range(0, {13, 7}, range, bytes, wanted_);
    EXPECT_EQ(failure().code, Code::layout) << range.first << ", " << range.count;
  }
}

TEST_F(Load, StopsOnRequest) {
  want(0, formats::whole({13, 7}));
  const std::atomic<bool> cancel = true;
  EXPECT_EQ(failure({.cancel = &cancel}).code, Code::cancelled);
}

TEST_F(Load, ProvesThatWhatArrivedIsWhatTheShardsHold) {
  Fickle source;
  source.add("a", DType::f32, {4, 2}, random_);
  source.add_chunk(0, {{0, 0}, {2, 2}}, 0);
  source.add_chunk(0, {{2, 0}, {2, 1}}, 1);  // columns: not read to where they are wanted
  source.add_chunk(0, {{2, 1}, {2, 1}}, 2);
  ByteVector memory(32);
  const Wanted wanted{0, formats::whole({4, 2}), memory};
  const auto loaded = load(source, {&wanted, 1}, {.workers = 1});
  ASSERT_FALSE(loaded);
  EXPECT_EQ(loaded.error().code, Code::corrupt);
}

}  // namespace
}  // namespace ebb::libswap
