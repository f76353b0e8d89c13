// Where masters lie that are kept in halves.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "ebb/libmuon/plan/state_plan.h"

namespace ebb::libmuon {
namespace {

// Both halves once, the high ones in tiles that no step visits, cut as the low ones of matrices
// are.
TEST(StatePlanHalves, LieInTilesOfTheirOwn) {
  ModelSpec model;
  model.groups = {MuonSpec::keller(), AdamSpec{}};
  model.params = {{"a", {64, 32}, 0}, {"norm", {33}, 1},    {"b", {100, 100}, 0}, {"c", {8, 8}, 0},
                  {"d", {7, 3}, 0},   {"emb", {50, 16}, 1}, {"e", {1, 5}, 0}};
  for (ParamSpec& param : model.params) param.weight = DType::bf16;
  const StateDTypes halves = {{"master", DType::u16}, {"momentum_buffer", DType::i8}};
  for (const std::uint32_t ranks : {1u, 3u})
    for (const std::uint64_t tile_bytes : {4096u, 65536u}) {
      const PartitionSpec partition = {
          .gradients = {.policy = Policy::zero3, .mesh = {ranks, 1}},
          .weights = {.policy = Policy::replicated, .mesh = {ranks, 1}}};
      std::map<std::string, std::map<std::uint32_t, std::vector<int>>> held;  // state, parameter
      for (std::uint32_t rank = 0; rank < ranks; ++rank) {
        const auto plan =
            StatePlan::make(model, partition, tile_bytes, Rank{rank}, 1u << 28, halves);
        ASSERT_TRUE(plan) << plan.error().message;
        std::set<std::uint64_t> visited;
        for (const auto& visit : (*plan).schedule()) visited.insert(visit.tile);
        std::set<std::pair<std::uint32_t, std::uint64_t>> low, high;
        for (std::uint64_t i = 0; i < (*plan).tiles().size(); ++i) {
          const TileEntry& tile = (*plan).tiles()[i];
          const bool keeps = tile.kind == TileKind::bound;
          EXPECT_EQ(visited.contains(i), !keeps);
          EXPECT_EQ((*plan).has_weights(tile), keeps);
          if (tile.kind == TileKind::masters) low.emplace(tile.item, tile.first);
          if (keeps && tile.item < (*plan).order().items()) high.emplace(tile.item, tile.first);
          for (const auto& segment : (*plan).segments(tile)) {
            const std::string& state = (*plan).columns().names()[segment.state];
            EXPECT_EQ(state == "param", keeps);
            if (state != "master" && !keeps) continue;
            EXPECT_EQ(segment.dtype, keeps ? DType::bf16 : DType::u16);
            EXPECT_EQ(segment.encoding, keeps ? 0 : formats::native::kLowHalves);
            auto& times = held[state][segment.param];
            times.resize(formats::volume(model.params[segment.param].shape));
            for (std::uint64_t e = 0; e < segment.count; ++e) ++times[segment.first + e];
          }
        }
        EXPECT_EQ(low, high);
      }
      for (const char* state : {"master", "param"}) {
        EXPECT_EQ(held[state].size(), model.params.size());
        for (const auto& [param, times] : held[state])
          EXPECT_TRUE(std::ranges::all_of(times, [](int count) { return count == 1; })) << param;
      }
    }
}

}  // namespace
}  // namespace ebb::libmuon
