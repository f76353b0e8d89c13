// What a step visits of a matrix whose update is never whole, and in which order.
#include "ebb/libmuon/plan/streaming.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "ebb/libmuon/plan/chunks.h"
#include "ebb/libmuon/spec/presets.h"

namespace ebb::libmuon {
namespace {

constexpr std::uint64_t kTile = 4096;

MuonSpec gram() {
  MuonSpec spec = *preset("gram");
  spec.restarts = {2};
  return spec;
}

ModelSpec model_to_stream() {
  return {.params = {{"first", {40, 60}, 0},
                     {"tall", {2600, 11}, 0},
                     {"wide", {11, 2600}, 0},
                     {"second", {700, 3}, 0},
                     {"square", {50, 50}, 0},
                     {"stack", {2, 1500, 13}, 0},
                     {"vector", {9000}, 1}},
          .groups = {gram(), AdamSpec{}}};
}

StatePlan plan_of(std::uint64_t above, std::uint32_t ranks = 1, std::uint32_t rank = 0,
                  const StateDTypes& dtypes = {}) {
  const Layout::Spec over = {.policy = Policy::zero12, .mesh = {ranks, 1}};
  auto plan = StatePlan::make(model_to_stream(), {.gradients = over, .weights = over}, kTile,
                              Rank{rank}, 1u << 20, dtypes, above);
  EXPECT_TRUE(plan) << plan.error().message;
  return std::move(*plan);
}

TEST(Streaming, PanelsAreAsShortAsTilesAndSumsAllow) {
  EXPECT_EQ(streaming_of(3, Block::matrix(9999, 11), {1024, 1024}).panel(), 512u * 11);
  EXPECT_EQ(streaming_of(3, Block::matrix(9999, 1), {1024, 2048}).panel(), 2048u);
  EXPECT_EQ(streaming_of(3, Block::matrix(9999, 3), {1024, 1600}).panel(), 1024u * 3);
}

// Each of three passes over all is one over each strip, but for the first.
TEST(Streaming, StripsAreAnEighthOfTheColumnsOrAFewTilesLong) {
  const auto strips = [](std::uint64_t cols) {
    return streaming_of(3, Block::matrix(11, cols), {1024, 1024});
  };
  EXPECT_EQ(strips(2600).strip_cols, 512u);
  EXPECT_EQ(strips(2600).strips(), 6u);
  EXPECT_EQ(strips(2600).panel(), 11u * 512);
  EXPECT_EQ(strips(2600).passes, 1 + 6 + 6u);
  EXPECT_EQ(strips(20481).strip_cols, 3072u);
  EXPECT_EQ(strips(20481).strips(), 7u);
  EXPECT_EQ(strips(4096000).strip_cols, 4096u);
  EXPECT_EQ(strips(4096000).strips(), 1000u);
  EXPECT_FALSE(strips(512)) << "one strip would be all";
  const Streaming wider = streaming_of(3, Block::matrix(11, 20481), {1024, 1024}, 120000);
  EXPECT_EQ(wider.strip_cols, 5120u) << "two of which are 112,640 elements";
  EXPECT_EQ(wider.strips(), 5u);
}

// Simulates the ring: no visit takes the room of an element that is still to be applied, and what
// is applied has been made, whole panel by whole panel.
TEST(Streaming, TheRingHoldsWhatIsStillToBeApplied) {
  for (const TileElems tiles :
       {TileElems{1024, 1024}, {1024, 2048}, {4096, 1000}, {512, 5632}, {5000, 5600}})
    for (const std::uint64_t elems : {100u, 5632u, 5633u, 28600u, 3000000u}) {
      const Streaming streaming = streaming_of(4, Block::matrix(300000, 11), tiles);
      std::uint64_t made = 0, applied = 0, place = 7;
      std::map<std::uint32_t, std::uint64_t> passed;
      for (const Leg& leg : legs_of(streaming, elems, tiles, 7)) {
        EXPECT_EQ(leg.place, place);
        place += leg.elems.count;
        const std::uint64_t end = leg.elems.first + leg.elems.count;
        const std::uint64_t tile = leg.action == Action::finish ? tiles.masters : tiles.momentum;
        EXPECT_EQ(leg.elems.first % tile, 0u);
        EXPECT_TRUE(end % tile == 0 || end == elems);
        if (leg.action == Action::finish) {
          EXPECT_EQ(leg.elems.first, applied);
          applied = end;
          EXPECT_TRUE(made == elems || made / streaming.panel() * streaming.panel() >= applied);
          continue;
        }
        EXPECT_EQ(leg.action, leg.pass == 1 ? Action::prepare : Action::recompute);
        EXPECT_EQ(leg.elems.first, std::exchange(passed[leg.pass], end));
        if (leg.pass < streaming.passes) continue;
        made = end;
        EXPECT_LE(made - applied, streaming.ring());
      }
      EXPECT_EQ(applied, elems);
      for (std::uint32_t pass = 1; pass <= streaming.passes; ++pass) EXPECT_EQ(passed[pass], elems);
      EXPECT_EQ(place, 7 + elems * (streaming.passes + 1));
    }
}

// Simulates both rooms of strips: what is applied is the strip that was made for it, whole; no room
// is taken again before; and every element is made in each pass, and moved once.
TEST(Streaming, AStripStaysUntilItIsApplied) {
  for (const std::uint64_t tile : {64u, 1000u, 2600u, 5000u, 100000u}) {
    constexpr std::uint64_t kRows = 11, kElems = kRows * 2600;
    const Streaming streaming = streaming_of(4, Block::matrix(kRows, 2600), {tile, tile});
    std::map<std::uint32_t, std::uint64_t> in_room;      // the pass whose strip is there
    std::map<std::uint32_t, std::uint64_t> made, moved;  // elements, by pass
    std::uint64_t place = 7;
    for (const Leg& leg : legs_of(streaming, kElems, {tile, tile}, 7)) {
      EXPECT_EQ(leg.place, std::exchange(place, place + leg.elems.count));
      EXPECT_EQ(leg.elems.first, 0u);
      EXPECT_EQ(leg.elems.count, kElems);
      if (leg.action == Action::prepare) continue;
      const std::uint32_t pass = streaming.made_in(leg.action, leg.pass);
      const Slice strip = streaming.strip_made_in(pass, kElems);
      const bool moves = leg.action == Action::finish;
      if (moves) {
        EXPECT_EQ(in_room[pass % 2], pass);
        EXPECT_EQ(made[pass], strip.elems);
      }
      for (std::uint64_t first = 0; first < kElems; first += tile) {
        const FlatRange some = {first, std::min(tile, kElems - first)};
        const std::uint64_t here = strip.local(some).count;
        const bool needed = streaming.needs(leg.action, leg.pass, some, kElems);
        EXPECT_EQ(needed, here > 0 || (moves && streaming.hands_out(leg.pass)));
        (moves ? moved : made)[pass] += here;
      }
      if (!moves) in_room[pass % 2] = pass;
    }
    std::uint64_t all_made = 0, all_moved = 0;
    for (const auto& [pass, elems] : made) all_made += elems;
    for (const auto& [pass, elems] : moved) all_moved += elems;
    EXPECT_EQ(all_made, 3 * kElems);
    EXPECT_EQ(all_moved, kElems);
  }
}

TEST(Streaming, AStepVisitsTheMomentumInEachPassAndTheMastersOnce) {
  const StatePlan plan = plan_of(20000);
  std::map<std::uint64_t, std::map<Action, std::uint32_t>> visits;
  for (const Visit& visit : plan.schedule()) {
    if (plan.items()[visit.item].streaming.wide()) continue;
    const std::uint32_t before = visits[visit.tile][visit.action]++;
    if (visit.action == Action::recompute) {
      EXPECT_EQ(visit.pass, before + 2);
      EXPECT_TRUE(visits[visit.tile].contains(Action::prepare));
      EXPECT_FALSE(visit.changes());
    }
  }
  std::uint32_t streamed = 0;
  for (std::uint64_t tile = 0; tile < plan.tiles().size(); ++tile) {
    const TileEntry& entry = plan.tiles()[tile];
    const Item& item = plan.items()[entry.item];
    if (item.streaming.wide()) continue;
    const bool momentum = entry.kind == TileKind::momentum;
    const bool masters = entry.kind == TileKind::masters;
    const Action moves = momentum ? Action::prepare : masters ? Action::finish : Action::local;
    EXPECT_EQ(visits[tile][moves], 1u);
    const bool again = item.streaming && momentum;
    EXPECT_EQ(visits[tile][Action::recompute], again ? 3u : 0u) << tile;
    streamed += again;
  }
  // tall, and each matrix of the stack.
  EXPECT_EQ(streamed, 28u + 20 + 20);
}

// A row of 2,600 is longer than a tile of 1,024: most strips leave most tiles alone. Weights leave
// once, behind the last.
TEST(Streaming, AStepVisitsTheTilesOfAWideMatrixForTheStripsThatTheyHave) {
  const StatePlan plan = plan_of(20000);
  std::map<std::pair<std::uint64_t, Action>, std::vector<std::uint32_t>> passes;
  std::map<std::uint64_t, std::uint32_t> handed_out;
  std::uint64_t again = 0;
  for (const Visit& visit : plan.schedule()) {
    const Item& item = plan.items()[visit.item];
    if (!item.streaming.wide()) continue;
    auto& before = passes[{visit.tile, visit.action}];
    EXPECT_TRUE(before.empty() || before.back() < visit.pass);
    before.push_back(visit.pass);
    const TileEntry& entry = plan.entry(visit);
    EXPECT_TRUE(
        item.streaming.needs(visit.action, visit.pass, {entry.first, entry.count}, item.elems));
    if (visit.action == Action::finish) handed_out[visit.tile] += plan.hands_out(visit);
    if (visit.action == Action::recompute) ++again;
  }
  EXPECT_EQ(handed_out.size(), 28u) << "tiles of masters";
  for (const auto& [tile, times] : handed_out) EXPECT_EQ(times, 1u);
  // Three passes over six strips.
  EXPECT_LT(again, 28 * 3 * 6 * 2 / 3u);
  EXPECT_GE(again, 28 * 3u);
}

TEST(Streaming, AWideMatrixStaysWholeWhereAStripWouldCutABlock) {
  const auto in_strips = [](const StatePlan& plan) {
    return std::ranges::count_if(plan.items(),
                                 [](const Item& item) { return item.streaming.strips() > 1; });
  };
  EXPECT_EQ(in_strips(plan_of(20000)), 1);
  EXPECT_EQ(in_strips(plan_of(20000, 1, 0, {{"momentum_buffer", DType::i8}})), 0);
}

TEST(Streaming, MovesNoTileAndNeedsNoOtherStore) {
  const StatePlan whole = plan_of(kNothingStreamed), streamed = plan_of(0);
  EXPECT_EQ(whole.digest(), streamed.digest());
  ASSERT_EQ(whole.tiles().size(), streamed.tiles().size());
  for (std::uint64_t tile = 0; tile < whole.tiles().size(); ++tile)
    EXPECT_EQ(whole.segments(whole.tiles()[tile]), streamed.segments(streamed.tiles()[tile]));
}

TEST(Streaming, TakesRoomForARingWhereUpdatesWereWhole) {
  const StatePlan plan = plan_of(20000);
  const std::uint64_t ring = 4 * 512 * 13;  // of the stack's matrices, the widest
  EXPECT_EQ(plan.order().room(), 2 * ring);
}

// Gradients of each pass come with the chunk of their visits, and never twice in one chunk.
TEST(Streaming, EachPassHasItsGradientInItsChunks) {
  for (const std::uint64_t chunk_bytes : {1u, 5000u, 40000u, 1u << 28})
    for (std::uint32_t rank = 0; rank < 3; ++rank) {
      const StatePlan plan = plan_of(0, 3, rank);
      const Chunks chunks(plan, chunk_bytes);
      std::size_t i = 0;
      for (std::size_t chunk = 0; chunk < chunks.count(); ++chunk) {
        const auto held = [&](std::span<const Transit> transits, std::uint32_t param,
                              std::uint64_t element) {
          std::uint32_t count = 0;
          for (const Transit& transit : transits)
            count += transit.param == param && element >= transit.range.first &&
                     element < transit.range.first + transit.range.count;
          return count;
        };
        for (; i < chunks.visits_end(chunk); ++i) {
          const Visit& visit = plan.schedule()[i];
          if (visit.action == Action::local) continue;
          const bool applies = visit.action == Action::finish;
          if (applies && !plan.hands_out(visit)) continue;
          for (const StatePlan::Span& span : plan.spans(plan.entry(visit)))
            for (const std::uint64_t element :
                 {span.range.first, span.range.first + span.range.count - 1})
              EXPECT_EQ(held(applies ? chunks.weights(chunk) : chunks.gradients(chunk), span.param,
                             element),
                        1u)
                  << "chunk " << chunk << " of " << chunks.count() << ", visit " << i;
        }
      }
      EXPECT_EQ(i, plan.schedule().size());
    }
}

}  // namespace
}  // namespace ebb::libmuon
