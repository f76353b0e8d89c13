// DTensors and ShardedTensors whose pickles contradict themselves, or say what is not known.
#include <gtest/gtest.h>

#include "ebb/formats/torch_save/torch_save.h"
#include "tests/formats/torch/sharded_pickles.h"

namespace ebb {
namespace {

using test_support::MemoryTree;
using test_support::Numbers;
using test_support::pickle_dtensor;
using test_support::pickle_sharded_tensor;
using test_support::PickledDTensor;
using test_support::PickledShard;
using test_support::rank_file;

// Two files, each with "w" as `write` gives it for a rank, and "plain".
template <typename Write>
Result<std::unique_ptr<Checkpoint>> described(Write write) {
  auto tree = std::make_shared<MemoryTree>("ck");
  for (std::uint64_t rank = 0; rank < 2; ++rank)
    tree->add("x_rank" + std::to_string(rank) + ".pt", rank_file([&](auto& pickle) {
                pickle.string("plain");
                test_support::plain_tensor(pickle, "1", {2});
                pickle.string("w");
                write(pickle, rank);
              }));
  return formats::describe_torch(std::move(tree));
}

struct Contradiction {
  std::string_view name;
  PickledDTensor what;
  std::string_view message;
};
void PrintTo(const Contradiction& one, std::ostream* out) { *out << one.name; }

class ShardedPickle : public testing::TestWithParam<Contradiction> {};

TEST_P(ShardedPickle, R05ThatContradictsItselfIsRefused) {
  const auto checkpoint = described([&](auto& pickle, std::uint64_t rank) {
    PickledDTensor what = GetParam().what;
    if (what.rank == 0) what.rank = what.coordinate[0] = rank;
    pickle_dtensor(pickle, "0", what);
  });
  ASSERT_FALSE(checkpoint.has_value());
  const Error& error = checkpoint.error();
  EXPECT_TRUE(error.code == Code::layout || error.code == Code::limit) << error.message;
  EXPECT_NE(error.message.find(GetParam().message), std::string::npos) << error.message;
  EXPECT_NE(error.message.find("x_rank0.pt"), std::string::npos) << error.message;
  EXPECT_NE(error.message.find("\"w\""), std::string::npos) << error.message;
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, ShardedPickle,
    testing::Values(
        Contradiction{"Part",
                      {.shape = {4, 3}, .local = {3, 3}},
                      "whose part has shape [3, 3], where its mesh of [2] and its placements make "
                      "it [2, 3]"},
        Contradiction{"MeshSize",
                      {.shape = {4, 3}, .local = {2, 3}, .mesh = {3}},
                      "a device mesh has a layout larger than its list of ranks"},
        Contradiction{"HugeMesh",
                      {.shape = {4, 3}, .local = {2, 3}, .mesh = {1ull << 32, 1ull << 31}},
                      "layout larger than its list of ranks"},
        Contradiction{"Coordinate",
                      {.shape = {4, 3}, .local = {2, 3}, .rank = 1, .coordinate = {5}},
                      "says the coordinates [5]"},
        Contradiction{"Rank",
                      {.shape = {4, 3}, .local = {2, 3}, .rank = 1, .coordinate = {0}},
                      "has rank 0 where rank 1 says that it is"},
        Contradiction{"HighRank",
                      {.shape = {4, 3}, .local = {2, 3}, .rank = 9, .coordinate = {0}},
                      "has rank 0 where rank 9 says that it is"},
        Contradiction{"Placements",
                      {.shape = {4, 3}, .local = {2, 3}, .placements = {{}, {}}},
                      "2 placements on a mesh of shape [2]"},
        Contradiction{"Dimension",
                      {.shape = {4, 3}, .local = {2, 3}, .placements = {{"Shard", 2}}},
                      "dimension 2 of a tensor of shape [4, 3] is cut"},
        Contradiction{
            "Volume", {.shape = {1ull << 40, 1ull << 40}, .local = {2, 3}}, "does not fit 64 bits"},
        Contradiction{"Strides",
                      {.shape = {1ull << 40},
                       .local = {2},
                       .placements = {{"_StridedShard", 0, std::int64_t{1} << 30}}},
                      "the limit is 65536"}),
    [](const auto& one) { return std::string(one.param.name); });

TEST(ShardedPickles, PlacedInAWayThatIsNoValueAreNotReadAndHideNothing) {
  for (const auto& [name, words] : {std::pair{"Partial", "a DTensor placed as Partial"},
                                    std::pair{"RaggedShard", "a DTensor placed as RaggedShard"}}) {
    const auto checkpoint = described([&](auto& pickle, std::uint64_t rank) {
      pickle_dtensor(pickle, "0",
                     {.shape = {4, 3},
                      .local = {4, 3},
                      .rank = rank,
                      .coordinate = {rank},
                      .placements = {{name}}});
    });
    ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().message;
    const Catalog& catalog = (*checkpoint)->catalog();
    EXPECT_EQ(catalog.tensors.size(), 1u);
    ASSERT_EQ(catalog.unread.size(), 1u);
    EXPECT_NE(catalog.unread[0].what.find(words), std::string::npos) << catalog.unread[0].what;
  }
}

std::string sharded(const std::vector<PickledShard>& said, const std::vector<PickledShard>& held) {
  const auto checkpoint = described([&](auto& pickle, std::uint64_t rank) {
    pickle_sharded_tensor(pickle, "0", {4, 3}, said, held[rank]);
  });
  return checkpoint ? std::string() : checkpoint.error().message;
}

TEST(ShardedPickles, R06ShardsThatAreOutsideOverlapOrLeaveAHoleAreRefused) {
  const PickledShard first{{0, 0}, {2, 3}, 0}, second{{2, 0}, {2, 3}, 1};
  EXPECT_EQ(sharded({first, second}, {first, second}), "");
  const PickledShard outside{{3, 0}, {2, 3}, 1}, overlapping{{1, 0}, {3, 3}, 1},
      small{{3, 0}, {1, 3}, 1};
  const auto has = [](const std::string& text, std::string_view words) {
    return text.find(words) != std::string::npos;
  };
  EXPECT_TRUE(has(sharded({first, outside}, {first, outside}), "with a shard [3:5, 0:3] outside"));
  EXPECT_TRUE(has(sharded({first, second}, {first, outside}), "whose shard [3:5, 0:3] holds"));
  EXPECT_TRUE(has(sharded({first, second}, {first, overlapping}), "row 1 is in shards of ranks"));
  EXPECT_TRUE(has(sharded({first, second}, {first, small}), "row 2 is in no shard"));
}

TEST(ShardedPickles, R07WholeInOneFileAndAPartInAnotherIsNotRead) {
  const auto checkpoint = described([&](auto& pickle, std::uint64_t rank) {
    if (rank == 0)
      pickle_dtensor(pickle, "0", {.shape = {4, 3}, .local = {2, 3}});
    else
      test_support::plain_tensor(pickle, "0", {4, 3});
  });
  ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().message;
  EXPECT_EQ((*checkpoint)->catalog().tensors.size(), 1u);
  ASSERT_EQ((*checkpoint)->catalog().unread.size(), 1u);
  EXPECT_EQ((*checkpoint)->catalog().unread[0].what,
            "a tensor of which x_rank0.pt has a part, and x_rank1.pt all");
}

TEST(ShardedPickles, OfARankOutsideOfTheMeshHoldNothing) {
  const auto checkpoint = described([&](auto& pickle, std::uint64_t rank) {
    PickledDTensor what{.shape = {4, 3}, .local = {4, 3}, .mesh = {1}, .ranks = {0}};
    what.rank = rank;
    what.in_mesh = rank == 0;
    if (rank == 1) what.local = {0};
    pickle_dtensor(pickle, "0", what);
  });
  ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().message;
  EXPECT_TRUE((*checkpoint)->catalog().unread.empty());
  ASSERT_EQ((*checkpoint)->catalog().tensors.size(), 2u);
  EXPECT_EQ((*checkpoint)->catalog().tensors[1].chunks.size(), 1u);
}

}  // namespace
}  // namespace ebb
