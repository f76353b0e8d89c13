// What one round must hold is known from the layouts alone, and no rank moves more.
#include "ebb/libmuon/step/exchange.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>

namespace ebb::libmuon {
namespace {

using formats::ReshardPlan;

Layout layout_of(Policy policy, formats::Mesh mesh, const std::vector<Shape>& shapes,
                 std::mt19937& random) {
  Layout::Spec spec{.policy = policy, .mesh = mesh, .align_elems = 4};
  for (std::size_t i = 0; policy == Policy::layer_wise && i < shapes.size(); ++i)
    spec.owners.push_back(static_cast<std::uint32_t>(random() % mesh.shard_world));
  auto made = Layout::make(std::move(spec), shapes);
  EBB_CHECK(made.has_value());
  return std::move(*made);
}

// By tensor: what the busiest rank sends or receives, counted from all ranks' plans.
std::vector<std::uint64_t> counted(const Layout& from, const Layout& to, std::uint32_t world) {
  std::vector<std::uint64_t> busiest(from.tensors().size());
  for (std::uint32_t rank = 0; rank < world; ++rank) {
    const auto plan = ReshardPlan::between(from, to, Rank{rank});
    EBB_CHECK(plan.has_value());
    for (const auto* moves : {&(*plan).sends, &(*plan).receives}) {
      std::map<std::uint32_t, std::uint64_t> bytes;
      for (const formats::Move& move : *moves) bytes[move.tensor] += move.elems() * sizeof(float);
      for (const auto& [tensor, sum] : bytes) busiest[tensor] = std::max(busiest[tensor], sum);
    }
  }
  return busiest;
}

TEST(Exchange, TheBusiestRanksBytesAreThoseOfTheRanksPlans) {
  std::mt19937 random(3);
  const std::vector<Shape> shapes = {{37, 24}, {24}, {96, 8}, {1, 5}, {}, {13, 31}};
  constexpr std::array kPolicies = {Policy::replicated, Policy::zero12, Policy::zero12_boundary,
                                    Policy::zero3,      Policy::rows,   Policy::layer_wise};
  for (const formats::Mesh mesh : {formats::Mesh{1, 1}, {3, 1}, {2, 2}, {1, 4}, {8, 1}})
    for (const Policy policy : kPolicies) {
      const Layout trainer = layout_of(policy, mesh, shapes, random);
      for (const Policy state_policy : {Policy::layer_wise, Policy::zero3}) {
        const Layout state = layout_of(state_policy, {mesh.world(), 1}, shapes, random);
        const auto in = counted(trainer, state, mesh.world());
        const auto out = counted(state, trainer, mesh.world());
        for (std::uint32_t tensor = 0; tensor < shapes.size(); ++tensor) {
          const std::string what = std::string(name_of(policy)) + " of " +
                                   std::to_string(mesh.shard_world) + " x " +
                                   std::to_string(mesh.replicas);
          EXPECT_EQ(busiest_rank_bytes(trainer, state, tensor), in[tensor]) << what;
          EXPECT_EQ(busiest_rank_bytes(state, trainer, tensor), out[tensor]) << what;
        }
      }
    }
}

}  // namespace
}  // namespace ebb::libmuon
