// Parameters that are several matrices, whose owners differ. The witness is one rank.
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "tests/libmuon/support/training.h"

namespace ebb {
namespace {

using libmuon::ModelSpec;
using libmuon::MuonSpec;
using libmuon::Split;
using test::TempDir;
using test::Training;

// Experts, heads, and parts of different sizes; small matrices that share items, and large ones.
ModelSpec stacks() {
  ModelSpec model;
  MuonSpec stack = MuonSpec::keller(), qkv = stack, heads = stack;
  stack.dims = libmuon::Dims::stack;
  qkv.split = {Split::Kind::rows, {40, 12, 12}};
  heads.split = {Split::Kind::heads, {6}};
  model.groups = {stack, libmuon::AdamSpec{}, qkv, heads};
  model.params = {{"experts", {10, 24, 32}, 0}, {"emb", {37, 16}, 1}, {"qkv", {64, 24}, 2},
                  {"heads", {48, 13}, 3},       {"norm", {24}, 1},    {"deep", {3, 2, 17, 5}, 0}};
  return model;
}

void expect_the_bits_of_one_rank(libmuon::Placement placement) {
  const auto setup = [placement](std::uint32_t ranks, Policy policy, std::uint64_t chunk_bytes) {
    return Training{.ranks = ranks,
                    .gradients = policy,
                    .weights = Policy::replicated,
                    .placement = placement,
                    .chunk_bytes = chunk_bytes,
                    .early_gradient_bytes = chunk_bytes,
                    .model = stacks()};
  };
  const TempDir alone;
  const auto wanted = train(Training{.model = stacks()}, alone.path(), 3);
  ASSERT_EQ(wanted.error, "");
  for (const Policy policy : {Policy::zero12, Policy::zero12_boundary, Policy::zero3, Policy::rows,
                              Policy::layer_wise, Policy::uneven_rows, Policy::replicated})
    for (const std::uint32_t ranks : {2u, 3u, 4u}) {
      const TempDir directory;
      const std::string what =
          compose("{} on {} ranks, placement {}", name_of(policy), ranks, name_of(placement));
      const auto outcome = train(setup(ranks, policy, 2048), directory.path(), 3);
      EXPECT_EQ(outcome.error, "") << what;
      EXPECT_TRUE(outcome == wanted) << what;
      const TempDir again;
      const auto first = train(setup(ranks, policy, 2048), again.path(), 1);
      for (std::uint32_t rank = 0; rank < ranks; ++rank)
        EXPECT_EQ(outcome.stats[rank].sent_bytes - first.stats[rank].sent_bytes,
                  2 * outcome.plans[rank].step_sent_bytes)
            << what;
    }
}

TEST(Stacks, OfWhichEveryMatrixHasAnOwnerHaveTheBitsOfOneRank) {
  for (const auto placement : test::kPlacements) expect_the_bits_of_one_rank(placement);
}

// On other ranks its matrices have other owners: the store is transferred.
TEST(Stacks, AreResumedWhereverTheirMatricesWere) {
  const TempDir alone, directory;
  const Training one{.ranks = 1, .model = stacks()};
  const auto wanted = train(one, alone.path(), 6);
  std::uint64_t steps = 0;
  for (const std::uint32_t ranks : {3u, 3u, 2u, 4u, 1u, 2u}) {
    const Training setup{.ranks = ranks,
                         .gradients = Policy::rows,
                         .weights = Policy::replicated,
                         .model = stacks()};
    const auto outcome = train(setup, directory.path(), ++steps);
    ASSERT_EQ(outcome.error, "") << ranks;
    EXPECT_TRUE(steps < 6 || outcome == wanted);
  }
}

TEST(Stacks, HaveOwnersThatDiffer) {
  const auto config =
      test::config_of({.ranks = 4, .gradients = Policy::replicated, .model = stacks()}, stacks());
  std::set<std::uint32_t> owners;
  const auto plan = libmuon::StatePlan::make(config.model, config.partition, config.tile_bytes,
                                             Rank{0}, config.chunk_bytes);
  ASSERT_TRUE(plan);
  for (std::uint64_t expert = 0; expert < 10; ++expert)
    owners.insert(formats::index_of((*plan).run_of(0, expert * 24 * 32).owner));
  EXPECT_EQ(owners.size(), 4u);
}

}  // namespace
}  // namespace ebb
