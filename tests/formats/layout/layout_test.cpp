#include "ebb/formats/layout/layout.h"

#include <gtest/gtest.h>

#include "tests/formats/layout/grids.h"

namespace ebb::formats {
namespace {

using oracle::Random;

Layout made(Layout::Spec spec, std::vector<Shape> tensors) {
  auto layout = Layout::make(std::move(spec), std::move(tensors));
  EXPECT_TRUE(layout) << layout.error().message;
  return *std::move(layout);
}

std::vector<std::uint64_t> held_per_rank(const Layout& layout) {
  std::vector<std::uint64_t> out;
  for (std::uint32_t r = 0; r < layout.spec().mesh.world(); ++r)
    out.push_back(layout.buffer_elems(Rank{r}) - layout.padding_elems(Rank{r}));
  return out;
}

TEST(Layout, EqualsTheMaterialisedOracleForEveryPolicy) {
  Random random(11);
  for (const Policy policy : oracle::kEveryPolicy)
    for (int round = 0; round < 300; ++round) {
      const std::vector<Shape> tensors = oracle::awkward_tensors(random);
      const Layout layout = made(oracle::awkward_spec(random, policy, tensors), tensors);
      for (std::uint32_t r = 0; r < layout.spec().mesh.world(); ++r) {
        const oracle::Buffer wanted = oracle::buffer_of(layout.spec(), tensors, r);
        ASSERT_EQ(oracle::buffer_by_layout(layout, Rank{r}), wanted)
            << name_of(policy) << " rank " << r << " of " << layout.spec().mesh.world();
        const auto padding = std::ranges::count(wanted, oracle::Slot{});
        EXPECT_EQ(layout.padding_elems(Rank{r}), static_cast<std::uint64_t>(padding));
      }
    }
}

// On a part of a world every copy has each element once, and the ranks outside have none.
TEST(Layout, IsThatOfItsShardsWhereverTheirRanksAre) {
  Random random(13);
  for (const Policy policy : oracle::kEveryPolicy)
    for (int round = 0; round < 300; ++round) {
      const oracle::Grid grid = oracle::awkward_grid(random);
      const std::vector<Shape> tensors = oracle::awkward_tensors(random);
      Layout::Spec spec{.policy = policy, .mesh = oracle::mesh_of(grid), .align_elems = 2};
      oracle::add_lists(random, tensors, spec);
      const Layout layout = made(spec, tensors);
      spec.mesh = {spec.mesh.shard_world, 1};
      const auto places = oracle::places_of(grid);
      for (std::uint32_t rank = 0; rank < grid.world(); ++rank) {
        const oracle::Buffer wanted =
            places[rank] ? oracle::buffer_of(spec, tensors, places[rank]->shard) : oracle::Buffer();
        ASSERT_EQ(oracle::buffer_by_layout(layout, Rank{rank}), wanted)
            << name_of(policy) << " rank " << rank << " of " << grid.world();
      }
    }
}

TEST(Layout, NamesTheShardsThatHoldARange) {
  Random random(12);
  for (const Policy policy : oracle::kEveryPolicy) {
    if (policy == Policy::replicated) continue;
    for (int round = 0; round < 200; ++round) {
      const std::vector<Shape> tensors = oracle::awkward_tensors(random);
      const Layout layout = made(oracle::awkward_spec(random, policy, tensors), tensors);
      for (std::size_t t = 0; t < tensors.size(); ++t) {
        const std::uint64_t elems = volume(tensors[t]);
        if (elems == 0) continue;
        const std::uint64_t first = oracle::up_to(random, elems - 1);
        const FlatRange range{first, 1 + oracle::up_to(random, elems - first - 1)};
        const Layout::ShardSpan span = layout.shards_of(t, range);
        for (std::uint32_t s = 0; s < layout.spec().mesh.shard_world; ++s) {
          const FlatRange held = layout.held(t, Rank{s});
          if (held.count == 0 && policy == Policy::uneven_rows) continue;
          const bool overlaps = held.first < range.first + range.count &&
                                range.first < held.first + held.count && held.count > 0;
          EXPECT_EQ(overlaps, span.first <= s && s <= span.last);
        }
      }
    }
  }
}

// What a shard has of a tensor is cut evenly, in order, whatever the policy.
TEST(Layout, SplitsShardsAmongThoseNextToEachOther) {
  Random random(17);
  for (const Policy policy : oracle::kEveryPolicy) {
    if (policy == Policy::replicated) continue;
    for (int round = 0; round < 200; ++round) {
      const std::vector<Shape> tensors = oracle::awkward_tensors(random);
      Layout::Spec spec = oracle::awkward_spec(random, policy, tensors);
      spec.mesh.replicas = 1;
      const Layout whole = made(spec, tensors);
      spec.split = static_cast<std::uint32_t>(1 + oracle::up_to(random, 4));
      spec.mesh.shard_world *= spec.split;
      const Layout split = made(spec, tensors);
      for (std::size_t t = 0; t < tensors.size(); ++t)
        for (std::uint32_t shard = 0; shard < whole.spec().mesh.shard_world; ++shard) {
          const FlatRange all = whole.held_by(t, shard);
          const std::uint64_t each = (all.count + spec.split - 1) / spec.split;
          std::uint64_t next = all.first;
          for (std::uint32_t part = 0; part < spec.split; ++part) {
            const std::uint32_t number = shard * spec.split + part;
            const FlatRange held = split.held_by(t, number);
            EXPECT_EQ(held.count, std::min(each, all.first + all.count - next));
            EXPECT_LE(held.count, split.largest_part(t));
            if (held.count == 0) continue;
            EXPECT_EQ(held.first, next);
            next += held.count;
            const Layout::ShardSpan span = split.shards_of(t, held);
            EXPECT_TRUE(span.first == number && span.last == number);
          }
          if (all.count == 0) continue;
          EXPECT_EQ(next, all.first + all.count);
          const Layout::ShardSpan span = split.shards_of(t, all);
          EXPECT_EQ(span.first, shard * spec.split);
          EXPECT_LT(span.last, (shard + 1) * spec.split);
        }
    }
  }
}

TEST(Layout, RefusesShardsThatCannotBeSplitSo) {
  for (const std::uint32_t split : {0u, 2u, 4u})
    EXPECT_FALSE(Layout::make({.policy = Policy::zero3, .mesh = {3, 1}, .split = split}, {{4}}));
}

TEST(Zero12, PadsTheTailToTwiceTheWorldAsDeepSpeedDoes) {
  // 3 + 4 elements over 2 ranks, alignment 2: 8 elements, 4 each, the last is padding.
  const Layout layout =
      made({.policy = Policy::zero12, .mesh = {2, 1}, .align_elems = 2}, {{3}, {2, 2}});
  EXPECT_EQ(layout.buffer_elems(Rank{0}), 4u);
  EXPECT_EQ(layout.padding_elems(Rank{0}), 0u);
  EXPECT_EQ(layout.padding_elems(Rank{1}), 1u);
  EXPECT_EQ(layout.held(1, Rank{0}), (FlatRange{0, 1}));
  EXPECT_EQ(layout.held(1, Rank{1}), (FlatRange{1, 3}));
  EXPECT_EQ(layout.buffer_first(1, Rank{0}), 3u);
  EXPECT_EQ(layout.buffer_first(1, Rank{1}), 0u);
}

TEST(Zero12, TailRanksMayBeAllPadding) {
  const Layout layout = made({.policy = Policy::zero12, .mesh = {4, 1}, .align_elems = 2}, {{3}});
  EXPECT_EQ(held_per_rank(layout), (std::vector<std::uint64_t>{2, 1, 0, 0}));
  EXPECT_EQ(layout.padding_elems(Rank{3}), 2u);
}

TEST(Zero12Boundary, PadsEachPartitionNotOnlyTheTail) {
  const Layout layout =
      made({.policy = Policy::zero12_boundary, .mesh = {3, 1}}, {{2, 2}, {5}, {1}});
  EXPECT_EQ(held_per_rank(layout), (std::vector<std::uint64_t>{4, 5, 1}));
  for (std::uint32_t r = 0; r < 3; ++r) {
    EXPECT_EQ(layout.buffer_elems(Rank{r}), 5u);
    EXPECT_EQ(layout.held(r, Rank{r}).count, volume(layout.tensors()[r]));
    EXPECT_EQ(layout.buffer_first(r, Rank{r}), 0u);
  }
  EXPECT_EQ(layout.padding_elems(Rank{0}), 1u);
  EXPECT_EQ(layout.padding_elems(Rank{1}), 0u);
  EXPECT_EQ(layout.padding_elems(Rank{2}), 4u);
}

TEST(Zero12Boundary, StartsEveryPartitionAligned) {
  const Layout layout = made({.policy = Policy::zero12_boundary, .mesh = {3, 1}, .align_elems = 8},
                             {{2, 2}, {5}, {1}});
  EXPECT_EQ(layout.buffer_elems(Rank{0}), 8u);
  EXPECT_EQ(layout.padding_elems(Rank{1}), 3u);
}

TEST(Zero12Boundary, FewerTensorsThanRanksLeavesEmptyPartitions) {
  const Layout layout =
      made({.policy = Policy::zero12_boundary, .mesh = {4, 1}}, {{100, 100}, {3}});
  EXPECT_EQ(held_per_rank(layout), (std::vector<std::uint64_t>{10000, 3, 0, 0}));
  EXPECT_EQ(layout.padding_elems(Rank{3}), 10000u);
}

TEST(Zero3, PadsInsideEachTensor) {
  const Layout layout = made({.policy = Policy::zero3, .mesh = {4, 1}}, {{5}, {3, 3}});
  // ceil(5/4) = 2 and ceil(9/4) = 3 elements on every rank.
  EXPECT_EQ(layout.buffer_elems(Rank{3}), 5u);
  EXPECT_EQ(layout.held(0, Rank{2}), (FlatRange{4, 1}));
  EXPECT_EQ(layout.held(0, Rank{3}), FlatRange{});
  EXPECT_EQ(layout.held(1, Rank{3}), FlatRange{});
  EXPECT_EQ(layout.buffer_first(1, Rank{2}), 2u);
  EXPECT_EQ(held_per_rank(layout), (std::vector<std::uint64_t>{5, 5, 4, 0}));
}

TEST(RowShard, CutsAsTorchChunkAndLeavesTrailingRanksShort) {
  const Layout layout = made({.policy = Policy::rows, .mesh = {4, 1}}, {{5, 3}, {2, 8}, {}});
  const auto pieces = [&](std::size_t t, std::uint32_t r) { return layout.pieces(t, Rank{r}); };
  EXPECT_EQ(pieces(0, 1).at(0).box, (Box{{2, 0}, {2, 3}}));
  EXPECT_EQ(pieces(0, 2).at(0).box, (Box{{4, 0}, {1, 3}}));
  EXPECT_TRUE(pieces(0, 3).empty());
  EXPECT_EQ(pieces(1, 1).at(0).box, (Box{{1, 0}, {1, 8}}));
  EXPECT_TRUE(pieces(1, 2).empty());
  EXPECT_EQ(pieces(2, 0).at(0).box, Box{});
  EXPECT_TRUE(pieces(2, 1).empty());
  EXPECT_EQ(layout.padding_elems(Rank{2}), 3u + 8u + 1u);
}

TEST(UnevenRows, BeginAtTheSumOfTheRowsBefore) {
  const Layout layout = made(
      {.policy = Policy::uneven_rows, .mesh = {3, 1}, .rows = {{5, 0, 3}, {1, 6, 2}, {0, 0, 1}}},
      {{8, 2}, {9}, {}});
  EXPECT_EQ(layout.held(0, Rank{0}), (FlatRange{0, 10}));
  EXPECT_EQ(layout.held(0, Rank{1}), FlatRange{});
  EXPECT_EQ(layout.held(0, Rank{2}), (FlatRange{10, 6}));
  EXPECT_EQ(layout.held(1, Rank{1}), (FlatRange{1, 6}));
  EXPECT_EQ(layout.held(2, Rank{2}), (FlatRange{0, 1}));
  EXPECT_EQ(layout.buffer_first(1, Rank{2}), 6u);
  EXPECT_EQ(layout.buffer_elems(Rank{2}), 9u);
  EXPECT_EQ(layout.padding_elems(Rank{2}), 0u);
  EXPECT_EQ(layout.largest_part(1), 6u);
}

TEST(Layout, FrozenTensorsLeaveTheOthersOffsetsAlone) {
  // Only trainable tensors are partitioned, so a frozen one is simply not in the list.
  const std::vector<Shape> trainable = {{7, 3}, {11}};
  for (const Policy policy : {Policy::zero12, Policy::zero3, Policy::rows}) {
    const Layout one = made({.policy = policy, .mesh = {3, 1}}, trainable);
    for (std::uint32_t r = 0; r < 3; ++r)
      EXPECT_EQ(oracle::buffer_by_layout(one, Rank{r}),
                oracle::buffer_of(one.spec(), trainable, r));
  }
}

TEST(Mesh, ReplicasHoldTheSamePieces) {
  const Layout layout = made({.policy = Policy::zero3, .mesh = {2, 3}}, {{5, 5}});
  for (std::uint32_t r = 0; r < 6; ++r)
    EXPECT_EQ(layout.held(0, Rank{r}), layout.held(0, Rank{r % 2}));
}

TEST(Layout, RefusesWhatCannotBe) {
  const auto message = [](Layout::Spec spec, std::vector<Shape> tensors) {
    const auto layout = Layout::make(std::move(spec), std::move(tensors));
    return layout ? "made" : layout.error().message;
  };
  EXPECT_EQ(message({.mesh = {0, 1}}, {}), "a mesh needs at least 1 rank and 1 copy");
  EXPECT_EQ(message({.mesh = {1u << 16, 1u << 16}}, {}),
            "4294967296 ranks are more than the limit of 1048576");
  EXPECT_EQ(message({.policy = Policy::zero12, .align_elems = 0}, {}),
            "partitions aligned to 0 elements: must be 1 to 1073741824");
  EXPECT_EQ(message({.policy = Policy::layer_wise, .mesh = {2, 1}, .owners = {0, 2}}, {{1}, {1}}),
            "tensor 1: owner 2 of 2 shards");
  EXPECT_EQ(message({.policy = Policy::layer_wise, .mesh = {2, 1}, .owners = {0}}, {{1}, {1}}),
            "layer-wise: 1 owners given, 2 wanted");
  const auto uneven = [&](std::vector<std::vector<std::uint64_t>> rows) {
    return message({.policy = Policy::uneven_rows, .mesh = {3, 1}, .rows = std::move(rows)},
                   {{8, 2}});
  };
  EXPECT_EQ(uneven({{5, 0, 3}}), "made");
  EXPECT_EQ(uneven({{5, 0, 2}}), "tensor 0 of shape [8, 2]: its shards have 7 rows of 8");
  EXPECT_EQ(uneven({{5, ~std::uint64_t{0}, 4}}),
            "tensor 0 of shape [8, 2]: its shards have more rows of 8");
  EXPECT_EQ(uneven({{5, 3}}), "tensor 0: rows of 2 shards given, 3 wanted");
  EXPECT_EQ(uneven({}), "uneven-rows: rows of 0 tensors given, 1 wanted");
  EXPECT_EQ(message({}, {{1}, {std::uint64_t{1} << 40, std::uint64_t{1} << 40}}),
            "tensor 1 of shape [1099511627776, 1099511627776]: with it there are more than 2^60 "
            "elements");
}

TEST(Policy, NamesGoBothWays) {
  for (const Policy policy : oracle::kEveryPolicy) EXPECT_EQ(policy_named(name_of(policy)), policy);
  EXPECT_EQ(policy_named("zero12_boundary"), Policy::zero12_boundary);
  EXPECT_EQ(policy_named("zero4"), std::nullopt);
}

}  // namespace
}  // namespace ebb::formats
