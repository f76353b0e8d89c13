// Meshes that are parts of a world, beside loops over its coordinates.
#include "ebb/formats/layout/mesh.h"

#include <gtest/gtest.h>

#include <set>

#include "tests/formats/layout/grids.h"

namespace ebb::formats {
namespace {

using oracle::Grid;
using oracle::Random;

TEST(Mesh, KnowsThePlaceOfEveryRankOfItsWorld) {
  Random random(31);
  for (int round = 0; round < 2000; ++round) {
    const Grid grid = oracle::awkward_grid(random);
    const Mesh mesh = oracle::mesh_of(grid);
    ASSERT_TRUE(check(mesh)) << check(mesh).error().message;
    ASSERT_EQ(mesh.world(), grid.world());
    ASSERT_EQ(mesh.shard_world, grid.along(grid.shards));
    ASSERT_EQ(mesh.replicas, grid.along(grid.copies));
    const auto wanted = oracle::places_of(grid);
    for (std::uint32_t rank = 0; rank < grid.world(); ++rank) {
      const auto place = mesh.place_of(Rank{rank});
      ASSERT_EQ(place.has_value(), wanted[rank].has_value()) << rank;
      if (!place) continue;
      EXPECT_EQ(place->shard, wanted[rank]->shard);
      EXPECT_EQ(place->copy, wanted[rank]->copy);
      EXPECT_EQ(mesh.rank_of(*place), Rank{rank});
    }
    EXPECT_FALSE(mesh.place_of(Rank{grid.world()}).has_value());
  }
}

TEST(Mesh, SpreadCountsItsRanksInTheirOrder) {
  Random random(32);
  for (int round = 0; round < 500; ++round) {
    const Grid grid = oracle::awkward_grid(random);
    const Mesh spread = oracle::mesh_of(grid).spread();
    const auto places = oracle::places_of(grid);
    std::uint32_t shard = 0;
    for (std::uint32_t rank = 0; rank < grid.world(); ++rank)
      if (places[rank]) {
        EXPECT_EQ(spread.rank_of({shard++, 0}), Rank{rank});
      }
    EXPECT_EQ(spread.shard_world, shard);
    EXPECT_EQ(spread.replicas, 1u);
  }
}

TEST(Mesh, SpreadByShardHasCopiesNextToEachOther) {
  Random random(33);
  for (int round = 0; round < 500; ++round) {
    const Grid grid = oracle::awkward_grid(random);
    const Mesh mesh = oracle::mesh_of(grid), spread = mesh.spread_by_shard();
    ASSERT_TRUE(check(spread)) << check(spread).error().message;
    ASSERT_EQ(spread.shard_world, mesh.ranks());
    EXPECT_EQ(spread.replicas, 1u);
    for (std::uint32_t shard = 0; shard < mesh.shard_world; ++shard)
      for (std::uint32_t copy = 0; copy < mesh.replicas; ++copy)
        EXPECT_EQ(spread.rank_of({shard * mesh.replicas + copy, 0}), mesh.rank_of({shard, copy}));
  }
}

// However its axes are told, what is all of its world is the mesh that it always was.
TEST(Mesh, HasOneDescription) {
  const auto part = [](std::uint32_t first, std::vector<MeshAxis> shards,
                       std::vector<MeshAxis> copies) {
    return Mesh::part({8, first, std::move(shards), std::move(copies)});
  };
  EXPECT_EQ(part(0, {{2, 4}, {1, 4}, {4, 1}}, {}), (Mesh{8, 1}));
  EXPECT_EQ(part(0, {{4, 1}}, {{2, 4}}), (Mesh{4, 2}));
  EXPECT_EQ(part(0, {}, {{4, 2}, {2, 1}}), (Mesh{1, 8}));
  EXPECT_NE(part(0, {{4, 2}}, {{2, 1}}), (Mesh{4, 2})) << "copies beside each other";
  EXPECT_NE(part(0, {{4, 1}, {2, 4}}, {}), (Mesh{8, 1})) << "the first axis is the fastest";
  EXPECT_EQ(part(4, {{2, 2}, {2, 1}}, {}), part(4, {{4, 1}}, {}));
  EXPECT_NE(part(4, {{4, 1}}, {}), part(0, {{4, 1}}, {}));
  EXPECT_EQ(part(1, {{2, 2}}, {{2, 4}}).spread(), part(1, {{2, 4}}, {{2, 2}}).spread());
}

std::string refusal(const Mesh& mesh) {
  const Result<> answer = check(mesh);
  return answer ? "" : answer.error().message;
}

TEST(Mesh, RefusesWhatIsNoPartOfAWorld) {
  const auto part = [](std::uint32_t first, std::vector<MeshAxis> shards,
                       std::vector<MeshAxis> copies) {
    return Mesh{2, 2, {8, first, std::move(shards), std::move(copies)}};
  };
  EXPECT_EQ(refusal(part(1, {{2, 2}}, {{2, 4}})), "");
  EXPECT_EQ(refusal(part(1, {{2, 1}}, {{2, 4}})),
            "an axis of 2 ranks, 1 apart from rank 1 on, does not fit the other axes of its mesh");
  EXPECT_EQ(refusal(part(0, {{2, 2}}, {{2, 2}})),
            "an axis of 2 ranks, 2 apart from rank 0 on, does not fit the other axes of its mesh");
  EXPECT_EQ(refusal(part(0, {{2, 0}}, {{2, 2}})),
            "an axis of 2 ranks, 0 apart from rank 0 on, does not fit the other axes of its mesh");
  EXPECT_EQ(refusal(part(0, {{2, 2}}, {{2, 8}})),
            "a mesh reaches to rank 10 of a world of 8 ranks");
  EXPECT_EQ(refusal(part(0, {{2, 2}, {2, 1}}, {{2, 4}})),
            "a mesh of 2 shards x 2 copies has axes of 4 x 2 ranks");
  EXPECT_EQ(refusal(Mesh{1, 1, {1u << 21, 0, {}, {}}}),
            "2097152 ranks are more than the limit of 1048576");
}

}  // namespace
}  // namespace ebb::formats
