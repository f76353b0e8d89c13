// What travels in which chunk: every element once, where its owner visits it, in little memory.
#include "ebb/libmuon/plan/chunks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "tests/libmuon/plan/adam_in.h"

namespace ebb::libmuon {
namespace {

ModelSpec model_of_many_matrices() {
  ModelSpec model;
  model.groups = {MuonSpec::keller(), AdamSpec{}};
  model.params = {{"a", {64, 32}, 0},  {"norm", {33}, 1},    {"b", {100, 100}, 0},
                  {"c", {8, 8}, 0},    {"d", {7, 3}, 0},     {"emb", {50, 16}, 1},
                  {"e", {1, 5}, 0},    {"f", {200, 64}, 0},  {"g", {64, 64}, 0},
                  {"h", {300, 70}, 0}, {"i", {16, 1000}, 0}, {"j", {31, 13}, 0}};
  return model;
}

struct Case {
  std::uint32_t ranks = 1;
  Policy gradients = Policy::zero3, weights = Policy::zero3;
  std::uint64_t tile_bytes = 4096;
  std::uint64_t chunk_bytes = 4096;
  DType momentum = DType::f32;
};

StatePlan plan_of(const Case& c, std::uint32_t rank) {
  const formats::Mesh mesh{c.ranks, 1};
  auto plan =
      StatePlan::make(model_of_many_matrices(),
                      {.gradients = {.policy = c.gradients, .mesh = mesh},
                       .weights = {.policy = c.weights, .mesh = mesh}},
                      c.tile_bytes, Rank{rank}, c.chunk_bytes, {{"momentum_buffer", c.momentum}});
  EBB_CHECK(plan.has_value());
  return std::move(*plan);
}

const std::vector<Policy> kPolicies = {Policy::zero12, Policy::zero3, Policy::replicated};

template <typename Check>
void for_all_cases(const Check& check, const std::vector<Policy>& policies = kPolicies) {
  for (const std::uint32_t ranks : {1u, 2u, 3u, 8u})
    for (const Policy policy : policies)
      for (const std::uint64_t tile : {4096u, 16384u})
        for (const std::uint64_t chunk : {1u, 4096u, 50000u, 1u << 28})
          for (const DType momentum : {DType::f32, DType::bf16})
            check(Case{ranks, policy, Policy::zero3, tile, chunk, momentum});
}

// (parameter, element) -> how often.
using Counts = std::map<std::uint32_t, std::vector<int>>;

void count(std::span<const Transit> transits, Counts& counts) {
  const ModelSpec model = model_of_many_matrices();
  for (const Transit& transit : transits) {
    auto& times = counts[transit.param];
    times.resize(formats::volume(model.params[transit.param].shape));
    ASSERT_LE(transit.range.first + transit.range.count, times.size());
    for (std::uint64_t i = 0; i < transit.range.count; ++i) ++times[transit.range.first + i];
  }
}

TEST(Chunks, BringEveryElementOfEveryMatrixOnceAndAreTheSameOnAllRanks) {
  for_all_cases([](const Case& c) {
    std::vector<std::vector<std::uint64_t>> seen;  // by rank
    for (std::uint32_t rank = 0; rank < c.ranks; ++rank) {
      const StatePlan plan = plan_of(c, rank);
      const Chunks chunks(plan, c.chunk_bytes);
      Counts gradients, weights;
      auto& numbers = seen.emplace_back();
      for (std::size_t chunk = 0; chunk < chunks.count(); ++chunk) {
        count(matrices_in(plan, chunks.gradients(chunk)), gradients);
        count(matrices_in(plan, chunks.weights(chunk)), weights);
        for (const auto transits : {chunks.gradients(chunk), chunks.weights(chunk)})
          for (const Transit& transit : transits)
            numbers.insert(numbers.end(),
                           {chunk, transit.param, transit.range.first, transit.range.count});
      }
      for (const auto* counts : {&gradients, &weights}) {
        EXPECT_EQ(counts->size(), 10u);
        for (const auto& [param, times] : *counts)
          EXPECT_TRUE(std::ranges::all_of(times, [](int one) { return one == 1; })) << param;
      }
    }
    for (const auto& numbers : seen) EXPECT_EQ(numbers, seen.front());
  });
}

// What a rank visits in a chunk is what came for it, and what goes from it.
TEST(Chunks, BringWhatTheVisitsOfTheChunkNeed) {
  for_all_cases([](const Case& c) {
    for (std::uint32_t rank = 0; rank < c.ranks; ++rank) {
      const StatePlan plan = plan_of(c, rank);
      const Chunks chunks(plan, c.chunk_bytes);
      const auto schedule = plan.schedule();
      std::size_t visit = 0;
      for (std::size_t chunk = 0; chunk < chunks.count(); ++chunk) {
        Counts visited[2], travelling[2];
        for (; visit < chunks.visits_end(chunk); ++visit) {
          const TileEntry& tile = plan.tiles()[schedule[visit].tile];
          if (tile.kind == TileKind::adam) continue;
          for (const auto& span : plan.spans(tile)) {
            const Transit part{span.param, span.range};
            count({&part, 1}, visited[tile.kind == TileKind::momentum ? 0 : 1]);
          }
        }
        const auto own = [&](std::span<const Transit> transits, Counts& counts) {
          for (const Transit& transit : transits)
            if (plan.run_of(transit.param, transit.range.first).owner == plan.rank())
              count({&transit, 1}, counts);
        };
        own(matrices_in(plan, chunks.gradients(chunk)), travelling[0]);
        own(matrices_in(plan, chunks.weights(chunk)), travelling[1]);
        EXPECT_EQ(visited[0], travelling[0]) << "gradients of chunk " << chunk;
        EXPECT_EQ(visited[1], travelling[1]) << "weights of chunk " << chunk;
      }
      EXPECT_EQ(visit, schedule.size()) << "AdamW tiles too";
    }
  });
}

// Whoever keeps some of it has visited all of that.
TEST(Chunks, HandOutAdamWRangesOnceAndWhenTheyHaveBeenVisitedWhereverTheyAreKept) {
  std::size_t before_the_last = 0;
  for_all_cases(
      [&](const Case& c) {
        std::vector<std::vector<std::uint64_t>> seen;  // by rank
        for (std::uint32_t rank = 0; rank < c.ranks; ++rank) {
          const StatePlan plan = plan_of(c, rank);
          const Chunks chunks(plan, c.chunk_bytes);
          Counts visited, handed_out;
          auto& numbers = seen.emplace_back();
          std::size_t visit = 0;
          for (std::size_t chunk = 0; chunk < chunks.count(); ++chunk) {
            for (; visit < chunks.visits_end(chunk); ++visit) {
              const TileEntry& tile = plan.tiles()[plan.schedule()[visit].tile];
              if (tile.kind != TileKind::adam) continue;
              for (const auto& span : plan.spans(tile)) {
                const Transit part{span.param, span.range};
                count({&part, 1}, visited);
              }
            }
            count(adam_in(plan, chunks.weights(chunk)), handed_out);
            for (const Transit& transit : adam_in(plan, chunks.weights(chunk))) {
              numbers.insert(numbers.end(),
                             {chunk, transit.param, transit.range.first, transit.range.count});
              const auto own = plan.own_ranges(transit.param);
              const FlatRange mine =
                  own.empty() ? FlatRange{} : formats::overlap(own.front(), transit.range);
              const auto elements = std::span(visited[transit.param]);
              EXPECT_TRUE(mine.count == 0 ||
                          std::ranges::all_of(elements.subspan(mine.first, mine.count),
                                              [](int once) { return once == 1; }))
                  << "chunk " << chunk;
              before_the_last += chunk + 1 < chunks.count() ? 1 : 0;
            }
          }
          EXPECT_EQ(handed_out.size(), 2u);
          for (const auto& [param, times] : handed_out)
            EXPECT_TRUE(std::ranges::all_of(times, [](int one) { return one == 1; })) << param;
        }
        for (const auto& numbers : seen) EXPECT_EQ(numbers, seen.front());
      },
      {Policy::zero12, Policy::zero12_boundary, Policy::rows, Policy::replicated});
  EXPECT_GT(before_the_last, 100u);
}

TEST(Chunks, AsManyOfTheLastComeEarlyAsHaveRoomOnEveryRank) {
  const Case c{.ranks = 3, .chunk_bytes = 20000};
  std::vector<StatePlan> plans;
  for (std::uint32_t rank = 0; rank < c.ranks; ++rank) plans.push_back(plan_of(c, rank));
  const Chunks chunks(plans[0], c.chunk_bytes);
  // Bytes of the rank that needs the most for the last 0, 1, 2, ... chunks.
  std::vector<std::uint64_t> need = {0};
  std::vector<std::uint64_t> staged(c.ranks, 0);
  for (std::size_t chunk = chunks.count(); chunk-- > 0;) {
    for (std::uint32_t rank = 0; rank < c.ranks; ++rank)
      staged[rank] += staged_bytes(plans[rank], plans[rank].gradients(),
                                   matrices_in(plans[rank], chunks.gradients(chunk)));
    need.push_back(std::ranges::max(staged));
  }
  for (const std::uint64_t bytes : {0u, 10000u, 20000u, 60000u, 1u << 30})
    for (std::uint32_t rank = 0; rank < c.ranks; ++rank) {
      const std::size_t early =
          early_chunks(plans[rank], Chunks(plans[rank], c.chunk_bytes), bytes);
      EXPECT_LE(need[early], bytes);
      // The next ones need more room, or nothing.
      const auto fits = std::ranges::upper_bound(need, bytes) - need.begin() - 1;
      EXPECT_EQ(need[early], need[static_cast<std::size_t>(fits)]);
      EXPECT_EQ(early == 0, bytes == 0);
    }
  EXPECT_EQ(early_chunks(plans[1], chunks, 1u << 30), chunks.count());
}

TEST(Chunks, StageNoMoreThanTheirSizeAndATile) {
  for_all_cases([](const Case& c) {
    for (std::uint32_t rank = 0; rank < c.ranks; ++rank) {
      const StatePlan plan = plan_of(c, rank);
      const Chunks chunks(plan, c.chunk_bytes);
      for (std::size_t chunk = 0; chunk < chunks.count(); ++chunk) {
        const std::uint64_t bytes =
            staged_bytes(plan, plan.gradients(), matrices_in(plan, chunks.gradients(chunk))) +
            staged_bytes(plan, plan.weights(), matrices_in(plan, chunks.weights(chunk)));
        const std::uint64_t tiles =
            plan.capacity(TileKind::momentum) + plan.capacity(TileKind::masters);
        EXPECT_LE(bytes, c.chunk_bytes + tiles * sizeof(float)) << "chunk " << chunk;
      }
    }
  });
}

TEST(Chunks, GiveEveryOwnerItsShareOfEach) {
  const Case c{.ranks = 3, .chunk_bytes = 20000};
  for (std::uint32_t rank = 0; rank < c.ranks; ++rank) {
    const Chunks chunks(plan_of(c, rank), c.chunk_bytes);
    ASSERT_GT(chunks.count(), 5u);
    std::size_t end = 0;
    for (std::size_t chunk = 0; chunk < chunks.count(); ++chunk) {
      EXPECT_GT(chunks.visits_end(chunk), end) << "rank " << rank << " idles in " << chunk;
      end = chunks.visits_end(chunk);
    }
  }
}

TEST(Chunks, HaveSomethingToBringEach) {
  for_all_cases([](const Case& c) {
    const Chunks chunks(plan_of(c, 0), c.chunk_bytes);
    for (std::size_t chunk = 0; chunk < chunks.count(); ++chunk)
      EXPECT_FALSE(chunks.gradients(chunk).empty() && chunks.weights(chunk).empty()) << chunk;
  });
}

// What of a stack lies at one owner is one range of each message.
TEST(Chunks, BringTheMatricesOfAStackAtOneOwnerAsOneRange) {
  ModelSpec model;
  model.groups = {MuonSpec::keller()};
  model.params = {{"stack", {24, 16, 12}, 0}, {"other", {40, 20}, 0}};
  const Layout::Spec cut{.policy = Policy::zero3, .mesh = {3, 1}};
  const auto plan = StatePlan::make(model, {.gradients = cut, .weights = cut}, 4096, Rank{0}, 1024);
  ASSERT_TRUE(plan) << plan.error().message;
  std::uint64_t runs = 1;  // of "other"
  for (std::uint64_t first = 0; first < plan->elems(0); ++runs)
    first += plan->run_of(0, first).range.count;
  ASSERT_LT(runs, 25u);
  const Chunks chunks(*plan, 1u << 28);
  ASSERT_EQ(chunks.count(), 1u);
  EXPECT_EQ(chunks.gradients(0).size(), runs);
  EXPECT_EQ(chunks.weights(0).size(), runs);
}

TEST(Chunks, AreOneWhereTheTrainerHoldsEverythingItself) {
  EXPECT_EQ(Chunks(plan_of({.ranks = 1, .chunk_bytes = 1}, 0), 1).count(), 1u);
  const Case all{.ranks = 4, .gradients = Policy::replicated, .weights = Policy::replicated};
  EXPECT_EQ(Chunks(plan_of(all, 2), 1).count(), 1u);
}

}  // namespace
}  // namespace ebb::libmuon
