// What a step visits of groups whose trainer keeps the masters: their updates are handed out where
// the masters' tiles would be visited, and no such tile is there.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <tuple>

#include "ebb/libmuon/plan/chunks.h"

namespace ebb {
namespace {

using libmuon::Action;
using libmuon::AdamSpec;
using libmuon::Chunks;
using libmuon::ModelSpec;
using libmuon::MuonSpec;
using libmuon::Out;
using libmuon::Placement;
using libmuon::StatePlan;
using libmuon::TileEntry;
using libmuon::Transit;
using libmuon::Visit;

// Large matrices and many small ones of two groups in turn; those of `updates` hand out updates.
ModelSpec model_of(const std::vector<std::uint32_t>& updates) {
  ModelSpec model;
  model.groups = {MuonSpec::keller(), AdamSpec{}, MuonSpec::keller()};
  model.params = {{"a", {64, 32}, 0},   {"norm", {333}, 1}, {"b", {100, 100}, 2},
                  {"emb", {90, 16}, 1}, {"d", {40, 50}, 0}, {"e", {1, 5}, 2}};
  for (std::uint32_t i = 0; i < 12; ++i)
    model.params.push_back({compose("small.{}", i), {8, 8}, i / 3 % 2 == 0 ? 0u : 2u});
  for (const std::uint32_t group : updates)
    std::get<MuonSpec>(model.groups[group]).out = Out::update;
  return model;
}

struct Case {
  std::uint32_t ranks = 1;
  Placement placement = Placement::owner;
  std::uint64_t tile_bytes = 4096, chunk_bytes = 1u << 28;
  std::vector<std::uint32_t> updates = {0, 2};
};

StatePlan plan_of(const Case& c, std::uint32_t rank, const ModelSpec& model) {
  const Layout::Spec cut{.policy = Policy::zero3, .mesh = {c.ranks, 1}};
  auto plan = StatePlan::make(model, {.gradients = cut, .weights = cut, .placement = c.placement},
                              c.tile_bytes, Rank{rank}, c.chunk_bytes);
  EBB_CHECK(plan.has_value());
  return *std::move(plan);
}

void for_all_cases(const std::function<void(const Case&)>& body) {
  for (const std::uint32_t ranks : {1u, 2u, 3u})
    for (const auto placement : {Placement::owner, Placement::shard})
      for (const std::uint64_t tile : {4096u, 16384u})
        for (const std::uint64_t chunk : {1u, 5000u, 1u << 28})
          for (const auto& updates :
               {std::vector<std::uint32_t>{2}, std::vector<std::uint32_t>{0, 2}})
            body({ranks, placement, tile, chunk, updates});
}

using Elements = std::map<std::uint32_t, std::vector<int>>;  // by parameter: how often each

void count(std::uint32_t param, FlatRange range, Elements& elements) {
  auto& all = elements[param];
  all.resize(std::max<std::size_t>(all.size(), range.first + range.count));
  for (std::uint64_t i = 0; i < range.count; ++i) ++all[range.first + i];
}

bool is_update(const ModelSpec& model, std::uint32_t param) {
  return out_of(model, param) == Out::update;
}

// A visit without its tile's number; what is handed out counts as the masters that it is without.
auto key_of(const StatePlan& plan, const Visit& visit) {
  const TileEntry& entry = plan.entry(visit);
  const Action what = visit.action == Action::emit_update ? Action::finish : visit.action;
  return std::tuple(what, visit.item, entry.first, entry.count, entry.first_part);
}

TEST(HandOuts, ComeInTheOrderInWhichMastersAreVisited) {
  for (const std::uint32_t ranks : {1u, 2u, 3u})
    for (const std::uint64_t tile : {4096u, 16384u})
      for (const std::uint64_t chunk : {1u, 1u << 28})
        for (std::uint32_t rank = 0; rank < ranks; ++rank) {
          const Case c{.ranks = ranks, .tile_bytes = tile, .chunk_bytes = chunk};
          const StatePlan with = plan_of(c, rank, model_of({}));
          const StatePlan without = plan_of(c, rank, model_of({0, 2}));
          const auto keys = [](const StatePlan& plan) {
            std::vector<decltype(key_of(plan, {}))> all;
            for (const Visit& visit : plan.schedule()) all.push_back(key_of(plan, visit));
            return all;
          };
          EXPECT_EQ(keys(with), keys(without)) << "rank " << rank << " of " << ranks;
          const Chunks ours(with, chunk), theirs(without, chunk);
          ASSERT_EQ(ours.count(), theirs.count());
          for (std::size_t i = 0; i < ours.count(); ++i)
            EXPECT_EQ(ours.visits_end(i), theirs.visits_end(i));
        }
}

// A chunk's updates have been handed out when it ends, and each of them once.
TEST(HandOuts, AreThoseOfAChunkWhereItEndsAndEachOnceOverAllRanks) {
  for_all_cases([](const Case& c) {
    const ModelSpec model = model_of(c.updates);
    Elements handed_out;
    for (std::uint32_t rank = 0; rank < c.ranks; ++rank) {
      const StatePlan plan = plan_of(c, rank, model);
      const Chunks chunks(plan, c.chunk_bytes);
      Elements here;
      std::size_t visit = 0;
      for (std::size_t chunk = 0; chunk < chunks.count(); ++chunk) {
        for (; visit < chunks.visits_end(chunk); ++visit) {
          const Visit& one = plan.schedule()[visit];
          if (one.action != Action::emit_update && one.action != Action::finish) continue;
          for (const StatePlan::Span& span : plan.spans(plan.entry(one))) {
            EXPECT_EQ(is_update(model, span.param), one.action == Action::emit_update);
            count(span.param, span.range, here);
            count(span.param, span.range, handed_out);
          }
        }
        for (const Transit& transit : matrices_in(plan, chunks.weights(chunk)))
          for (const FlatRange own : plan.own_ranges(transit.param)) {
            const FlatRange wanted = formats::overlap(own, transit.range);
            auto& found = here[transit.param];
            found.resize(std::max<std::size_t>(found.size(), wanted.first + wanted.count));
            for (std::uint64_t i = 0; i < wanted.count; ++i)
              ASSERT_EQ(found[wanted.first + i], 1) << "chunk " << chunk << " ends too early";
          }
      }
      EXPECT_EQ(visit, plan.schedule().size());
    }
    for (std::uint32_t param = 0; param < model.params.size(); ++param)
      if (is_muon(model, param)) {
        EXPECT_EQ(handed_out[param],
                  std::vector<int>(formats::volume(model.params[param].shape), 1))
            << model.params[param].name;
      }
  });
}

TEST(HandOuts, HaveNoTilesAndShareNoItemWithMasters) {
  for_all_cases([](const Case& c) {
    const ModelSpec model = model_of(c.updates);
    std::uint64_t without = 0, with = 0;
    for (std::uint32_t rank = 0; rank < c.ranks; ++rank) {
      const StatePlan plan = plan_of(c, rank, model);
      for (const TileEntry& tile : plan.tiles())
        for (const auto& segment : plan.segments(tile))
          EXPECT_FALSE(segment.state == libmuon::kMaster && is_update(model, segment.param));
      for (const libmuon::Item& item : plan.items())
        for (const libmuon::ItemPart& part : item.parts)
          EXPECT_EQ(is_update(model, part.param), is_update(model, item.parts.front().param));
      for (const Visit& visit : plan.schedule()) {
        EXPECT_EQ(visit.has_tile(), visit.action != Action::emit_update);
        EXPECT_EQ(visit.changes(), visit.has_tile());
      }
      without += plan.state_bytes();
      with += plan_of(c, rank, model_of({})).state_bytes();
    }
    std::uint64_t masters = 0;
    for (std::uint32_t param = 0; param < model.params.size(); ++param)
      if (is_update(model, param)) masters += 4 * formats::volume(model.params[param].shape);
    EXPECT_EQ(without, with - masters);
  });
}

// Stores of both are not taken for each other.
TEST(HandOuts, AreInTheDigest) {
  for (const auto placement : {Placement::owner, Placement::shard}) {
    const Case c{.placement = placement};
    EXPECT_NE(plan_of(c, 0, model_of({2})).digest(), plan_of(c, 0, model_of({})).digest());
    EXPECT_NE(plan_of(c, 0, model_of({2})).digest(), plan_of(c, 0, model_of({0, 2})).digest());
  }
}

}  // namespace
}  // namespace ebb
