// Parameters that are several matrices, whose owners differ.
#include <gtest/gtest.h>

#include <set>

#include "tests/libmuon/support/training.h"

namespace ebb {
namespace {

using libmuon::ModelSpec;
using libmuon::MuonSpec;
using libmuon::Split;

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
