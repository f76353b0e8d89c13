// Where masters lie that are bound weights, or whose high halves are.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "ebb/libmuon/plan/state_plan.h"

namespace ebb::libmuon {
namespace {

// What is bound lies once in tiles that no step visits, of matrices cut as the low halves are, or
// as it is handed out.
void expect_tiles_of_their_own(DType weight, const StateDTypes& dtypes) {
  const bool in_halves = weight == DType::bf16;
  ModelSpec model;
  model.groups = {MuonSpec::keller(), AdamSpec{}};
  model.params = {{"a", {64, 32}, 0}, {"norm", {33}, 1},    {"b", {100, 100}, 0}, {"c", {8, 8}, 0},
                  {"d", {7, 3}, 0},   {"emb", {50, 16}, 1}, {"e", {1, 5}, 0}};
  for (ParamSpec& param : model.params) param.weight = weight;
  for (const std::uint32_t ranks : {1u, 3u})
    for (const std::uint64_t tile_bytes : {4096u, 65536u}) {
      const PartitionSpec partition = {
          .gradients = {.policy = Policy::zero3, .mesh = {ranks, 1}},
          .weights = {.policy = Policy::replicated, .mesh = {ranks, 1}}};
      std::map<std::string, std::map<std::uint32_t, std::vector<int>>> held;  // state, parameter
      for (std::uint32_t rank = 0; rank < ranks; ++rank) {
        const auto plan =
            StatePlan::make(model, partition, tile_bytes, Rank{rank}, 1u << 28, dtypes);
        ASSERT_TRUE(plan) << plan.error().message;
        std::set<std::uint64_t> visited;
        std::set<std::pair<std::uint32_t, std::uint64_t>> moved, kept;  // item, first
        for (const auto& visit : (*plan).schedule()) {
          if (visit.has_tile()) visited.insert(visit.tile);
          const TileEntry& entry = (*plan).entry(visit);
          if (entry.kind == TileKind::masters) moved.emplace(entry.item, entry.first);
        }
        for (std::uint64_t i = 0; i < (*plan).tiles().size(); ++i) {
          const TileEntry& tile = (*plan).tiles()[i];
          const bool keeps = tile.kind == TileKind::bound;
          EXPECT_EQ(visited.contains(i), !keeps);
          EXPECT_EQ((*plan).has_weights(tile), keeps);
          if (keeps && tile.item < (*plan).order().updates()) kept.emplace(tile.item, tile.first);
          for (const auto& segment : (*plan).segments(tile)) {
            const std::string& state = (*plan).columns().names()[segment.state];
            EXPECT_EQ(state == (in_halves ? "param" : "master"), keeps);
            if (state != "master" && !keeps) continue;
            EXPECT_EQ(segment.dtype, keeps ? weight : DType::u16);
            EXPECT_EQ(segment.encoding, keeps ? 0 : formats::native::kLowHalves);
            auto& times = held[state][segment.param];
            times.resize(formats::volume(model.params[segment.param].shape));
            for (std::uint64_t e = 0; e < segment.count; ++e) ++times[segment.first + e];
          }
        }
        EXPECT_EQ(moved, kept);
      }
      for (const char* state : {"master", "param"}) {
        if (state == std::string("param") && !in_halves) continue;
        EXPECT_EQ(held[state].size(), model.params.size());
        for (const auto& [param, times] : held[state])
          EXPECT_TRUE(std::ranges::all_of(times, [](int count) { return count == 1; })) << param;
      }
    }
}

TEST(BoundMasters, LieInTilesOfTheirOwn) {
  expect_tiles_of_their_own(DType::bf16, {{"master", DType::u16}, {"momentum_buffer", DType::i8}});
  expect_tiles_of_their_own(DType::f32, {{"master", {}}, {"momentum_buffer", DType::i8}});
}

}  // namespace
}  // namespace ebb::libmuon
