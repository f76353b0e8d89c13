// State on shards: what lies together, what travels together, and when.
#include "ebb/libmuon/plan/shard_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "ebb/libmuon/plan/chunks.h"
#include "ebb/libmuon/plan/state_plan.h"
#include "ebb/libmuon/spec/presets.h"
#include "tests/libmuon/plan/adam_in.h"

namespace ebb::libmuon::shard_order_tests {
namespace {

constexpr std::uint64_t kTile = 4096;

// A stack whose matrices are bundled, and one of 40 that are larger than a shard.
ModelSpec model_of_many_matrices() {
  MuonSpec emerging = MuonSpec::keller();
  emerging.precision = Precision::bf16;
  ModelSpec model;
  model.groups = {MuonSpec::keller(), AdamSpec{}, emerging};
  model.params = {{"a", {64, 32}, 0},        {"norm", {33}, 1},   {"b", {100, 100}, 2},
                  {"c", {8, 8}, 0},          {"d", {7, 3}, 2},    {"stack", {40, 6, 9}, 0},
                  {"emb", {50, 16}, 1},      {"e", {1, 5}, 0},    {"f", {200, 64}, 0},
                  {"many", {12, 30, 40}, 2}, {"h", {300, 70}, 0}, {"j", {31, 13}, 0}};
  return model;
}

struct Case {
  std::uint32_t ranks = 1, copies = 1;
  Policy policy = Policy::zero3;
  std::uint64_t chunk_bytes = kTile;
};

StatePlan plan_of(const Case& c, std::uint32_t rank,
                  const ModelSpec& model = model_of_many_matrices()) {
  const Layout::Spec cut{.policy = c.policy, .mesh = {c.ranks / c.copies, c.copies}};
  auto plan =
      StatePlan::make(model, {.gradients = cut, .weights = cut, .placement = Placement::shard},
                      kTile, Rank{rank}, c.chunk_bytes);
  EBB_CHECK(plan.has_value());
  return std::move(*plan);
}

template <typename Check>
void for_all_cases(const Check& check) {
  for (const std::uint32_t ranks : {1u, 2u, 3u, 8u})
    for (const Policy policy :
         {Policy::zero12, Policy::zero12_boundary, Policy::zero3, Policy::rows, Policy::replicated})
      for (const std::uint64_t chunk : {1u, 4096u, 50000u, 1u << 28})
        for (const std::uint32_t copies : {1u, 2u})
          if (ranks % copies == 0) check(Case{ranks, copies, policy, chunk});
}

// What of a range this rank keeps the state of, and how many elements of it it computes.
FlatRange kept(const StatePlan& plan, const Transit& transit) {
  const auto own = plan.own_ranges(transit.param);
  return own.empty() ? FlatRange{} : formats::overlap(own.front(), transit.range);
}
std::uint64_t computed(const StatePlan& plan, const Transit& transit) {
  std::uint64_t elems = 0;
  for (const auto& [whole, moments, streaming] : plan.matrix_runs(transit.param))
    if (plan.computes(transit.param, whole.first))
      elems += formats::overlap(whole, transit.range).count;
  return elems;
}

using Counts = std::map<std::uint32_t, std::vector<int>>;  // by parameter: of each element

void count(std::span<const Transit> transits, Counts& counts) {
  const ModelSpec model = model_of_many_matrices();
  for (const Transit& transit : transits) {
    auto& times = counts[transit.param];
    times.resize(formats::volume(model.params[transit.param].shape));
    for (std::uint64_t i = 0; i < transit.range.count; ++i) ++times[transit.range.first + i];
  }
}

void expect_once(const Counts& counts, std::size_t params) {
  EXPECT_EQ(counts.size(), params);
  for (const auto& [param, times] : counts)
    EXPECT_TRUE(std::ranges::all_of(times, [](int one) { return one == 1; })) << param;
}

// Every element of every matrix once, U behind its momentum's turn, O before its masters', whole
// matrices, and the same on all ranks.
TEST(ShardOrder, BringsUTogetherBehindItsTurnAndOApartBeforeItsOwn) {
  for_all_cases([](const Case& c) {
    std::vector<std::vector<std::uint64_t>> seen;  // by rank
    for (std::uint32_t rank = 0; rank < c.ranks; ++rank) {
      const StatePlan plan = plan_of(c, rank);
      const Chunks chunks(plan, c.chunk_bytes);
      Counts updates, results;
      auto& numbers = seen.emplace_back();
      for (std::size_t turn = 0; turn < chunks.count(); ++turn) {
        count(chunks.updates(turn), updates);
        count(chunks.results(turn), results);
        EXPECT_EQ(chunks.updates(turn).size(), matrices_in(plan, chunks.gradients(turn)).size());
        EXPECT_EQ(chunks.results(turn).size(), matrices_in(plan, chunks.weights(turn)).size());
        EXPECT_TRUE(chunks.updates(turn).empty() ||
                    chunks.results(turn + ShardOrder::kTurnsBetween).size() ==
                        chunks.updates(turn).size());
        for (const Transit& transit : chunks.updates(turn)) {
          numbers.insert(numbers.end(),
                         {turn, transit.param, transit.range.first, transit.range.count});
          for (const auto& [whole, moments, streaming] : plan.matrix_runs(transit.param)) {
            const std::uint64_t here = formats::overlap(whole, transit.range).count;
            EXPECT_TRUE(here == 0 || here == whole.count) << "a slice of " << transit.param;
          }
        }
      }
      expect_once(updates, 10);
      expect_once(results, 10);
    }
    for (const auto& numbers : seen) EXPECT_EQ(numbers, seen.front());
  });
}

// What a rank visits in a turn is its part of what travels for it, and AdamW's share.
TEST(ShardOrder, VisitsInATurnWhatTravelsForItAndAllThatIsAdamWs) {
  for_all_cases([](const Case& c) {
    Counts momentum, masters, adam;
    for (std::uint32_t rank = 0; rank < c.ranks; ++rank) {
      const StatePlan plan = plan_of(c, rank);
      const Chunks chunks(plan, c.chunk_bytes);
      Counts handed_out, visited;
      std::size_t visit = 0;
      for (std::size_t turn = 0; turn < chunks.count(); ++turn) {
        Counts travelling[2];
        count(chunks.updates(turn), travelling[0]);
        count(chunks.weights(turn), travelling[1]);
        for (; visit < chunks.visits_end(turn); ++visit) {
          const TileEntry& tile = plan.tiles()[plan.schedule()[visit].tile];
          for (const auto& span : plan.spans(tile)) {
            const Transit part{span.param, span.range};
            if (tile.kind == TileKind::adam) {
              count({&part, 1}, adam);
              count({&part, 1}, visited);
              continue;
            }
            const bool first = tile.kind == TileKind::momentum;
            count({&part, 1}, first ? momentum : masters);
            const auto& travels = travelling[first ? 0 : 1][span.param];
            ASSERT_GE(travels.size(), span.range.first + span.range.count);
            EXPECT_EQ(travels[span.range.first], 1);
            EXPECT_EQ(travels[span.range.first + span.range.count - 1], 1);
          }
        }
        count(adam_in(plan, chunks.weights(turn)), handed_out);
        for (const Transit& transit : adam_in(plan, chunks.weights(turn))) {
          const FlatRange mine = kept(plan, transit);
          for (std::uint64_t i = 0; i < mine.count; ++i)
            EXPECT_EQ(visited[transit.param][mine.first + i], 1) << "not yet visited";
        }
      }
      EXPECT_EQ(visit, plan.schedule().size());
      expect_once(handed_out, 2);
    }
    expect_once(momentum, 10);
    expect_once(masters, 10);
    expect_once(adam, 2);
  });
}

std::vector<Transit> matrices_of(const ShardOrder& order, std::size_t chunk) {
  std::vector<Transit> all;
  for (std::size_t bundle = 0; bundle < order.bundles(); ++bundle)
    if (order.chunk_of(bundle) == chunk)
      std::ranges::copy(order.bundle(bundle), std::back_inserter(all));
  return all;
}

// Of one of a matrix.
std::size_t turn_of(const StatePlan& plan, const Visit& visit) {
  return visit.place * plan.shard_order()->turns() / plan.order().length();
}

// An owner gathers no more than a chunk's bytes, and nobody stages more, but for one bundle.
TEST(ShardOrder, KeepsWhatIsGatheredAndStagedWithinTheChunkSize) {
  for_all_cases([](const Case& c) {
    const StatePlan first = plan_of(c, 0);
    const ShardOrder& order = *first.shard_order();
    std::vector<std::size_t> bundles(order.chunks(), 0);
    for (std::size_t bundle = 0; bundle < order.bundles(); ++bundle)
      ++bundles[order.chunk_of(bundle)];
    for (std::uint32_t rank = 0; rank < c.ranks; ++rank) {
      const StatePlan plan = plan_of(c, rank);
      for (std::size_t chunk = 0; chunk < order.chunks(); ++chunk) {
        std::uint64_t gathered = 0, staged = 0;
        for (const Transit& transit : matrices_of(order, chunk)) {
          const std::uint64_t u = bytes_of(plan.updates().dtype(transit.param)),
                              o = bytes_of(plan.results().dtype(transit.param));
          gathered += computed(plan, transit) * (u == o ? u : u + o);
          staged += kept(plan, transit).count * (u + o + 8);
        }
        if (bundles[chunk] < 2) continue;
        EXPECT_LE(gathered, c.chunk_bytes);
        EXPECT_LE(staged, c.chunk_bytes);
      }
    }
  });
}

TEST(ShardOrder, LaysTilesThatDoNotDependOnTheChunkSize) {
  for_all_cases([](const Case& c) {
    for (std::uint32_t rank = 0; rank < c.ranks; ++rank) {
      Case one = c;
      one.chunk_bytes = 1u << 28;
      const StatePlan a = plan_of(c, rank), b = plan_of(one, rank);
      EXPECT_EQ(a.digest(), b.digest());
      ASSERT_EQ(a.tiles().size(), b.tiles().size());
      for (std::size_t i = 0; i < a.tiles().size(); ++i)
        EXPECT_EQ(a.segments(a.tiles()[i]), b.segments(b.tiles()[i]));
    }
  });
}

// Masters that decay in the gradient are read before the momentum of their item, in its turn, and
// are not changed there; the others are visited once.
TEST(ShardOrder, ReadsWhatDecaysInTheTurnOfItsMomentum) {
  ModelSpec model = model_of_many_matrices();
  MuonSpec decayed = MuonSpec::keller();
  decayed.decay = Decay::l2;
  model.groups[2] = decayed;
  const Layout::Spec cut{.policy = Policy::zero3, .mesh = {3, 1}};
  const PartitionSpec partition{.gradients = cut, .weights = cut, .placement = Placement::shard};
  for (const std::uint64_t chunk_bytes : {1u, 5000u, 1u << 28})
    for (std::uint32_t rank = 0; rank < 3; ++rank) {
      const auto plan = StatePlan::make(model, partition, kTile, Rank{rank}, chunk_bytes);
      ASSERT_TRUE(plan) << plan.error().message;
      std::map<std::uint64_t, std::size_t> read, moved;  // turns, by tile
      std::set<std::uint32_t> prepared;                  // items
      for (const Visit& visit : plan->schedule()) {
        if (visit.action == Action::prepare) prepared.insert(visit.item);
        if (visit.action == Action::finish) moved[visit.tile] = turn_of(*plan, visit);
        if (visit.action != Action::decay) continue;
        EXPECT_FALSE(visit.changes());
        EXPECT_FALSE(prepared.contains(visit.item));
        EXPECT_TRUE(read.emplace(visit.tile, turn_of(*plan, visit)).second);
      }
      for (const auto& [tile, turn] : moved) {
        const auto spans = plan->spans(plan->tiles()[tile]);
        const bool decays = std::ranges::any_of(
            spans, [&](const auto& span) { return model.params[span.param].group == 2; });
        EXPECT_TRUE(!decays || read.contains(tile));
        EXPECT_TRUE(!read.contains(tile) || read[tile] + ShardOrder::kTurnsBetween == turn);
      }
      EXPECT_FALSE(read.empty());
      EXPECT_LT(read.size(), moved.size());
    }
}

// Second moments live with who computes their matrix. They go out in the turn of its momentum and
// come back in that of its masters.
TEST(ShardOrder, LendsSecondMomentsToWhoComputes) {
  ModelSpec model = model_of_many_matrices();
  model.groups[2] = *libmuon::preset("normuon");
  const Layout::Spec cut{.policy = Policy::zero3, .mesh = {3, 1}};
  const PartitionSpec partition{.gradients = cut, .weights = cut, .placement = Placement::shard};
  for (const std::uint64_t chunk_bytes : {1u, 5000u, 1u << 28}) {
    std::map<std::uint32_t, std::uint64_t> moments;  // by parameter, of all ranks
    for (std::uint32_t rank = 0; rank < 3; ++rank) {
      const auto plan = StatePlan::make(model, partition, kTile, Rank{rank}, chunk_bytes);
      ASSERT_TRUE(plan) << plan.error().message;
      const ShardOrder& order = *plan->shard_order();
      std::set<std::pair<std::uint64_t, std::uint32_t>> lent, back;
      std::size_t last = 0;
      for (const Visit& visit : plan->schedule()) {
        if (visit.action == Action::local) continue;
        const std::size_t turn = turn_of(*plan, visit);
        EXPECT_GE(turn, last);
        last = turn;
        if (visit.action == Action::read_moments) {
          EXPECT_FALSE(visit.changes());
          EXPECT_EQ(last, 2u * visit.chunk);
          EXPECT_TRUE(lent.emplace(visit.tile, visit.chunk).second);
        }
        if (visit.action == Action::write_moments) {
          EXPECT_TRUE(visit.changes());
          EXPECT_EQ(last, 2u * visit.chunk + ShardOrder::kTurnsBetween);
          EXPECT_TRUE(back.emplace(visit.tile, visit.chunk).second);
        }
      }
      EXPECT_EQ(lent, back);
      for (const TileEntry& tile : plan->tiles())
        if (tile.kind == TileKind::moments)
          for (const StatePlan::Span& span : plan->spans(tile))
            moments[span.param] += span.range.count;
      for (std::size_t bundle = 0; bundle < order.bundles(); ++bundle)
        for (const Transit& matrix : order.bundle(bundle)) {
          if (model.params[matrix.param].group != 2 ||
              !plan->computes(matrix.param, matrix.range.first))
            continue;
          EXPECT_TRUE(std::ranges::any_of(
              lent, [&](const auto& one) { return one.second == order.chunk_of(bundle); }));
        }
    }
    for (std::uint32_t param = 0; param < model.params.size(); ++param) {
      const bool has = model.params[param].group == 2;
      EXPECT_EQ(
          moments[param],
          has ? formats::volume(moments_shape(*preset("normuon"), model.params[param].shape)) : 0u)
          << model.params[param].name;
    }
  }
}

// So many shards of each of two slices.
PartitionSpec beside_a_tensor_axis(std::uint32_t shards) {
  const AxisLayout cut{{.policy = Policy::zero3}, {"data"}};
  PartitionSpec partition;
  partition.axes = {{"data", shards}, {"tensor", 2}};
  partition.parts = {{"linear", cut, cut}};
  partition.placement = Placement::shard;
  return partition;
}

// Each element of a matrix that an axis cuts by columns is one rank's, and no rank has more than
// its share.
TEST(ShardOrder, CutsAMatrixThatATensorAxisCuts) {
  const PartitionSpec partition = beside_a_tensor_axis(2);
  ModelSpec model;
  model.groups = {MuonSpec::keller()};
  for (int i = 0; i < 3; ++i)
    model.params.push_back({compose("down{}", i), {8, 16}, 0, "linear", {}, {{"tensor", 1}}});
  std::vector<std::vector<int>> kept(3, std::vector<int>(8 * 16));
  for (std::uint32_t rank = 0; rank < 4; ++rank) {
    const auto plan = StatePlan::make(model, partition, kTile, Rank{rank}, kTile);
    ASSERT_TRUE(plan) << plan.error().message;
    std::uint64_t elems = 0;
    for (const TileEntry& tile : plan->tiles()) {
      if (tile.kind != TileKind::momentum) continue;
      for (const StatePlan::Span& span : plan->spans(tile)) {
        EXPECT_EQ(span.range.first % 16 / 8, rank % 2) << "columns of the other";
        elems += span.range.count;
        for (std::uint64_t i = 0; i < span.range.count; ++i)
          ++kept[span.param][span.range.first + i];
      }
    }
    EXPECT_EQ(elems, 3 * 8 * 16 / 4u);
    EXPECT_EQ(plan->shard_order()->bundles(), 1u);
  }
  for (const auto& param : kept) EXPECT_EQ(std::ranges::count(param, 1), 8 * 16);
}

// A block of momentum that two shards would share.
TEST(ShardOrder, RefusesByNameABlockThatShardsCut) {
  const Layout::Spec cut{.policy = Policy::zero3, .mesh = {3, 1}};
  const auto plan = StatePlan::make(
      model_of_many_matrices(), {.gradients = cut, .weights = cut, .placement = Placement::shard},
      kTile, Rank{0}, kTile, {{"momentum_buffer", DType::i8}});
  ASSERT_FALSE(plan);
  EXPECT_EQ(plan.error().code, Code::layout);
  EXPECT_NE(plan.error().message.find("parameter a: shard 1 begins"), std::string::npos)
      << plan.error().message;
}

TEST(ShardOrder, RefusesByNameABlockThatATensorAxisCuts) {
  const PartitionSpec partition = beside_a_tensor_axis(1);
  ModelSpec model;
  model.groups = {MuonSpec::keller()};
  const auto refusal = [&](std::uint64_t columns) {
    model.params = {{"down", {4, columns}, 0, "linear", {}, {{"tensor", 1}}}};
    const auto plan =
        StatePlan::make(model, partition, kTile, Rank{0}, kTile, {{"momentum_buffer", DType::i8}});
    return plan ? std::string() : plan.error().message;
  };
  EXPECT_EQ(refusal(1024), "");
  EXPECT_EQ(refusal(768),
            "parameter down: shard 0 begins with element 384, inside a block of 256 that share a "
            "scale");
}

// Layers of four matrices: each chunk has some for every owner, or, where parameters lie whole on
// few shards, from every shard.
TEST(ShardOrder, GivesEveryChunkWorkForAll) {
  ModelSpec model;
  model.groups = {MuonSpec::keller()};
  for (int layer = 0; layer < 24; ++layer)
    for (const auto& [name, rows] :
         {std::pair{"qkv", 96u}, {"proj", 32u}, {"up", 128u}, {"down", 128u}})
      model.params.push_back({compose("{}.{}", layer, name), {rows, 32}, 0});
  for (const Policy policy : {Policy::zero3, Policy::rows, Policy::zero12, Policy::zero12_boundary})
    for (const std::uint64_t chunk_bytes : {160'000u, 1u << 28}) {
      const Case c{.ranks = 4, .policy = policy, .chunk_bytes = chunk_bytes};
      std::vector<StatePlan> plans;
      for (std::uint32_t rank = 0; rank < c.ranks; ++rank) plans.push_back(plan_of(c, rank, model));
      const ShardOrder& order = *plans[0].shard_order();
      EXPECT_GE(order.chunks(), 4u);
      for (std::size_t chunk = 0; chunk + 1 < order.chunks(); ++chunk) {
        std::set<std::uint32_t> computing, keeping;
        for (const Transit& transit : matrices_of(order, chunk))
          for (std::uint32_t rank = 0; rank < c.ranks; ++rank) {
            if (computed(plans[rank], transit) > 0) computing.insert(rank);
            if (kept(plans[rank], transit).count > 0) keeping.insert(rank);
          }
        const bool evenly = policy == Policy::zero3 || policy == Policy::rows;
        EXPECT_GE(computing.size(), evenly ? c.ranks : 2u)
            << name_of(policy) << ", chunk " << chunk;
        EXPECT_EQ(keeping.size(), c.ranks) << name_of(policy) << ", chunk " << chunk;
      }
    }
}

}  // namespace
}  // namespace ebb::libmuon::shard_order_tests
