// Streams over a store: order, budget, bytes, errors.
#include "ebb/libswap/pager/stream.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <random>
#include <sstream>
#include <thread>

#include "tests/libswap/pager/pager_rig.h"
#include "tests/support/chrome_trace.h"

namespace ebb::test {
namespace {

TEST(Pager, SpendsABudgetOnFramesAndResidentTiles) {
  EXPECT_EQ((*TileBudget::divide(10, kTile, 10 * kTile)).resident, 10u);
  EXPECT_EQ((*TileBudget::divide(10, kTile, 10 * kTile)).frames, 0u);
  for (std::uint64_t budget = 1; budget < 100; ++budget) {
    const TileBudget split = *TileBudget::divide(100, kTile, budget * kTile);
    EXPECT_LE(split.bytes(kTile), budget * kTile);
    EXPECT_GE(split.frames, 1u);
  }
  // The more tiles there are beyond a budget, the less it saves that one stays.
  EXPECT_EQ((*TileBudget::divide(20, kTile, 15 * kTile)).frames, 6u);
  EXPECT_EQ((*TileBudget::divide(115, kTile, 15 * kTile)).frames, 15u);
  EXPECT_EQ((*TileBudget::divide(1000, kTile, 15 * kTile)).frames, 15u);
  EXPECT_EQ((*TileBudget::divide(67, kTile, 40 * kTile)).frames, 9u);
  EXPECT_EQ((*TileBudget::divide(340, kTile, 40 * kTile)).frames, 30u);
  EXPECT_EQ((*TileBudget::divide(1000, kTile, 40 * kTile)).frames, 40u);
  // But not without an end.
  constexpr std::uint64_t kMiB = 1u << 20;
  EXPECT_EQ((*TileBudget::divide(9000, 4 * kMiB, 1000 * 4 * kMiB)).frames, 48u);
}

TEST(Pager, RefusesABudgetBelowOneTileAndSaysWhatWorks) {
  const auto split = TileBudget::divide(10, kTile, kTile - 1);
  ASSERT_FALSE(split);
  EXPECT_EQ(split.error().code, Code::no_memory);
  EXPECT_NE(split.error().message.find("4096 bytes"), std::string::npos);
}

TEST(Pager, SweepsInOrderAndMovesExactlyThePagedTilesForAnyBudget) {
  std::mt19937_64 random(7);
  for (std::uint32_t round = 0; round < 40; ++round) {
    const std::uint64_t tiles = 1 + random() % 60;
    Rig rig(tiles, 1 + random() % 20, {.threads = 1 + round % 3});
    ASSERT_TRUE(rig.create());
    const std::uint64_t before = rig.cache->stats().written_bytes;
    constexpr std::uint64_t kSweeps = 5;
    for (std::uint64_t step = 1; step <= kSweeps; ++step) {
      std::uint64_t expected = 0;
      ASSERT_TRUE(rig.update(step));
      ASSERT_TRUE(rig.round(Use::read, step,
                            [&](std::uint64_t tile, auto) { EXPECT_EQ(tile, expected++); }));
      EXPECT_EQ(expected, tiles);
    }
    EXPECT_EQ(rig.cache->stats().read_bytes, 2 * kSweeps * rig.paged() * kTile);
    EXPECT_EQ(rig.cache->stats().written_bytes - before, kSweeps * rig.paged() * kTile);
  }
}

std::size_t count_of(const std::string& text, const std::string& what) {
  std::size_t count = 0;
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1))
    ++count;
  return count;
}

TEST(Pager, TheTraceShowsEveryTransferWithItsTileAndBytes) {
  libswap::Trace trace;
  Rig rig(8, 3, {.trace = &trace});
  ASSERT_TRUE(rig.create());
  ASSERT_TRUE(rig.update(1));
  rig.close();  // write-behind ends with it
  const std::string json = trace.to_chrome_json();
  const std::size_t paged = 8 - rig.budget.resident;
  EXPECT_GE(count_of(json, ",\"bytes\":4096}}"), 3 * paged);  // read once, written twice
  EXPECT_EQ(test_support::crossing_spans(json), "");
  const std::string all = std::to_string((rig.budget.resident + rig.budget.frames) * kTile);
  EXPECT_NE(json.find("{\"bytes of tiles in memory\":" + all + "}"), std::string::npos);
  // The counter ends at nothing under way.
  EXPECT_TRUE(json.ends_with("\"args\":{\"transfers\":0}}\n]}\n")) << json.substr(json.size() - 80);
}

// The most reads of tiles at one time. (Who waits for one has a span of that name, too.)
std::size_t reads_at_once(const std::string& json) {
  std::string transfers;
  std::istringstream lines(json);
  for (std::string line; std::getline(lines, line);)
    if (line.find(",\"bytes\":4096}}") != std::string::npos) transfers += line + "\n";
  std::vector<std::pair<double, int>> changes;  // ends come before beginnings of the same time
  for (const auto& event : test_support::chrome_events(transfers)) {
    if (event.name != "page-in") continue;
    changes.emplace_back(event.begin, 1);
    changes.emplace_back(event.begin + event.length - 0.0015, -1);  // thousandths are rounded
  }
  std::ranges::sort(changes);
  int now = 0, most = 0;
  for (const auto& [time, change] : changes) most = std::max(most, now += change);
  return static_cast<std::size_t>(most);
}

TEST(Pager, ReadsIntoHalfOfItsFramesAtATime) {
  for (const std::uint64_t budget : {1, 2, 8, 30}) {
    libswap::Trace trace;
    Rig rig(60, budget, {.trace = &trace, .bytes_per_s = 4096 * 2000});
    ASSERT_TRUE(rig.create());
    for (std::uint64_t step = 1; step <= 2; ++step) ASSERT_TRUE(rig.update(step));
    rig.close();
    const std::size_t most = reads_at_once(trace.to_chrome_json());
    EXPECT_EQ(most, std::max<std::uint64_t>(1, rig.budget.frames / 2)) << budget;
  }
}

// Flips one bit of a tile's newest version on the disk, below store and pager.
void damage_tile(Rig& rig, std::uint64_t tile) {
  const Store::Place place = rig.store->read_place(tile);
  alignas(4096) std::array<std::byte, kTile> bytes{};
  ASSERT_TRUE(rig.io->read(place.file, place.offset, bytes));
  bytes[100] ^= std::byte{1};
  ASSERT_TRUE(rig.io->write(place.file, place.offset, bytes));
}

TEST(Pager, VerifiesEveryTileThatItReads) {
  for (std::uint64_t tile = 0; tile < 10; ++tile) {
    Rig rig(10, 3);
    ASSERT_TRUE(rig.create());
    ASSERT_TRUE(rig.update(1));
    ASSERT_TRUE(*rig.commit(1));
    rig.close();
    damage_tile(rig, tile);
    rig.open();
    Result<> read = rig.cache->load_residents();
    if (read) read = rig.round(Use::modify, 2, [](auto, auto) {});
    ASSERT_FALSE(read) << "tile " << tile;
    EXPECT_EQ(read.error().code, Code::corrupt);
    EXPECT_NE(read.error().message.find("of tile " + std::to_string(tile)), std::string::npos)
        << read.error().message;
  }
}

TEST(Pager, VerifiesTheResidentTilesThatItLoads) {
  for (std::uint64_t tile = 0; tile < 6; ++tile) {
    Rig rig(6, 6);
    ASSERT_TRUE(rig.create());
    ASSERT_TRUE(*rig.commit(0));
    rig.close();
    damage_tile(rig, tile);
    rig.open();
    const auto loaded = rig.cache->load_residents();
    ASSERT_FALSE(loaded) << "tile " << tile;
    EXPECT_EQ(loaded.error().code, Code::corrupt);
  }
}

// Every operation of a round fails once, or until it is asked again after it was given up.
TEST(Pager, ARoundGoesOnWhereItsReadOrWriteFailed) {
  for (const auto on : {libswap::FaultOn::read, libswap::FaultOn::write})
    for (const std::uint64_t budget : {1u, 2u, 3u, 7u})
      for (const std::uint32_t threads : {1u, 3u})
        for (std::uint64_t at = 0; at < 9; ++at) {
          Rig rig(9, budget, {.threads = threads});
          ASSERT_TRUE(rig.create());
          ASSERT_TRUE(rig.update(1));
          rig.faults->add({.on = on, .at = at, .count = libswap::FaultPlan::kForEver});
          std::uint64_t step = 2;
          Result<> stepped = rig.update(step);
          while (stepped && step < 6) stepped = rig.update(++step);
          ASSERT_FALSE(stepped) << "operation " << at;
          EXPECT_EQ(stepped.error().code, Code::io);
          EXPECT_FALSE(rig.go_on(step)) << "nothing was mended";
          rig.faults->clear();
          rig.cache->go_on();
          ASSERT_TRUE(rig.go_on(step));
          ASSERT_TRUE(*rig.commit(step));
          rig.close();
          rig.open();
          ASSERT_TRUE(rig.cache->load_residents());
          ASSERT_TRUE(rig.update(step + 1)) << "finds the step in every tile";
        }
}

TEST(Pager, AReadOrWriteThatFailsATimeOrTwoIsNotNoticed) {
  for (const auto on : {libswap::FaultOn::read, libswap::FaultOn::write}) {
    Rig rig(9, 3);
    ASSERT_TRUE(rig.create());
    ASSERT_TRUE(rig.update(1));
    rig.faults->add({.on = on, .at = 2, .count = 2});
    for (std::uint64_t step = 2; step < 5; ++step) ASSERT_TRUE(rig.update(step));
    EXPECT_EQ(rig.cache->stats().retries, 2u);
  }
}

TEST(Pager, AReadThatBroughtOtherBytesIsRepeated) {
  Rig rig(9, 3);
  ASSERT_TRUE(rig.create());
  rig.faults->add({.on = libswap::FaultOn::read, .at = 3, .kind = libswap::FaultKind::misdirected});
  for (std::uint64_t step = 1; step < 4; ++step) ASSERT_TRUE(rig.update(step));
  EXPECT_EQ(rig.cache->stats().retries, 1u);
}

// A tile is read as often as the schedule says, and written where it changes.
TEST(Pager, ARoundMayVisitATileMoreThanOnce) {
  std::mt19937_64 random(3);
  for (std::uint32_t round = 0; round < 60; ++round) {
    Rig rig(6, 1 + random() % 5, {.threads = 1 + round % 3});
    ASSERT_TRUE(rig.create());
    std::vector<TileVisit> schedule;
    std::uint64_t reads = 0, writes = rig.cache->stats().written_bytes / kTile;
    for (int visit = 0; visit < 20; ++visit) {
      schedule.push_back({random() % 6, random() % 2 == 0 ? Use::read : Use::modify});
      if (rig.cache->resident(schedule.back().tile)) continue;
      reads += 3;
      writes += schedule.back().use == Use::modify ? 3 : 0;
    }
    std::array<std::uint64_t, 6> expected{};
    for (std::uint64_t tile = 0; tile < 6; ++tile) expected[tile] = first_value(tile);
    Stream stream(*rig.cache, schedule, Stream::Repeats::yes);
    for (std::uint64_t step = 1; step <= 3; ++step) {
      stream.begin(step);
      for (std::size_t i = 0; !stream.ended(); ++i) {
        const auto lease = stream.take();
        ASSERT_TRUE(lease) << lease.error().message;
        std::uint64_t value = 0;
        std::memcpy(&value, (*lease).buffer.data, sizeof value);
        EXPECT_EQ(value, expected[(*lease).tile]);
        if (schedule[i].use == Use::modify) value = ++expected[(*lease).tile];
        std::memcpy((*lease).buffer.data, &value, sizeof value);
        stream.give_back(*lease, {});
      }
      ASSERT_TRUE(rig.cache->settle());
      if (step == 2) {
        ASSERT_TRUE(*rig.commit(step));
      }
    }
    EXPECT_EQ(rig.cache->stats().read_bytes, reads * kTile);
    EXPECT_EQ(rig.cache->stats().written_bytes, writes * kTile);
  }
}

// Left-out tiles stay what they are and cost nothing; the rounds that follow have them again.
// It moves nothing, and the tiles around it are what they are without.
TEST(Pager, APlaceInTheScheduleMayHaveNoTile) {
  for (std::uint64_t frames = 1; frames < 5; ++frames) {
    Rig rig(6, frames);
    ASSERT_TRUE(rig.create());
    const std::uint64_t before = rig.cache->stats().read_bytes;
    std::vector<TileVisit> schedule = {{kNoTile}, {kNoTile, Use::read}};
    for (std::uint64_t tile = 0; tile < 6; ++tile) {
      schedule.push_back({tile, Use::read});
      schedule.push_back({kNoTile});
    }
    Stream stream(*rig.cache, schedule, Stream::Repeats::no);
    stream.begin(1, {2});
    std::string seen;
    while (!stream.ended()) {
      const auto lease = stream.take();
      ASSERT_TRUE(lease) << lease.error().message;
      EXPECT_EQ(lease->buffer.empty(), lease->tile == kNoTile);
      seen += lease->tile == kNoTile ? "-" : std::to_string(lease->tile);
      stream.give_back(*lease, {});
    }
    EXPECT_EQ(seen, "--0-1--3-4-5-");
    std::uint64_t paged = 0;
    for (const std::uint64_t tile : {0u, 1u, 3u, 4u, 5u})
      paged += rig.cache->resident(tile) ? 0 : 1;
    EXPECT_EQ(rig.cache->stats().read_bytes - before, paged * kTile);
  }
}

TEST(Pager, ARoundMayLeaveTilesOut) {
  std::mt19937_64 random(11);
  for (std::uint32_t round = 0; round < 60; ++round) {
    Rig rig(12, 1 + random() % 8, {.threads = 1 + round % 3});
    ASSERT_TRUE(rig.create());
    const std::uint64_t created = rig.cache->stats().written_bytes / kTile;
    std::array<std::uint64_t, 12> expected{};
    for (std::uint64_t tile = 0; tile < 12; ++tile) expected[tile] = first_value(tile);
    std::uint64_t moved = 0;
    for (std::uint64_t step = 1; step <= 6; ++step) {
      std::vector<std::uint64_t> left_out, visited;
      const std::uint64_t few = step == 3 ? 1 : 1 + random() % 4;
      for (std::uint64_t tile = 0; tile < 12; ++tile) {
        if (step % 2 == 1 && random() % few == 0)
          left_out.push_back(tile);
        else
          moved += rig.cache->resident(tile) ? 0 : 1;
      }
      rig.updates->begin(step, left_out);
      ASSERT_TRUE(rig.rest(*rig.updates, [&](std::uint64_t tile, std::span<std::byte> bytes) {
        visited.push_back(tile);
        std::uint64_t value = 0;
        std::memcpy(&value, bytes.data(), sizeof value);
        EXPECT_EQ(value, expected[tile]++);
        ++value;
        std::memcpy(bytes.data(), &value, sizeof value);
      }));
      EXPECT_EQ(visited.size() + left_out.size(), 12u);
      for (const std::uint64_t tile : left_out)
        EXPECT_EQ(std::ranges::find(visited, tile), visited.end());
      if (step == 4) {
        ASSERT_TRUE(*rig.commit(step));
      }
    }
    EXPECT_EQ(rig.cache->stats().read_bytes, moved * kTile);
    EXPECT_EQ(rig.cache->stats().written_bytes, (created + moved) * kTile);
  }
}

// A tile is not written, and its frame serves nobody else, before its user said so.
TEST(Pager, WhatUsesATileMayEndLongAfterItWasGivenBack) {
  for (const std::uint64_t budget : {2u, 4u}) {
    Rig rig(8, budget, {.threads = 2});
    ASSERT_TRUE(rig.create());
    for (std::uint64_t step = 1; step <= 3; ++step) {
      rig.updates->begin(step);
      std::vector<std::thread> late;
      while (!rig.updates->ended()) {
        const auto lease = rig.updates->take();
        ASSERT_TRUE(lease);
        const libswap::EventSource done;
        late.emplace_back([bytes = (*lease).buffer.bytes(), done, tile = (*lease).tile, step] {
          std::this_thread::sleep_for(std::chrono::milliseconds(2));
          std::uint64_t value = 0;
          std::memcpy(&value, bytes.data(), sizeof value);
          EXPECT_EQ(value, first_value(tile) + step - 1);
          ++value;
          std::memcpy(bytes.data(), &value, sizeof value);
          done.pass();
        });
        rig.updates->give_back(*lease, done.event());
      }
      ASSERT_TRUE(rig.cache->settle());
      for (std::thread& one : late) one.join();
    }
    ASSERT_TRUE(*rig.commit(3));
    ASSERT_TRUE(rig.update(4));
  }
}

// Schedules may come to a tile more than once; one that stays in memory is not read in between.
TEST(Pager, ATileThatStaysIsTakenAgainOnlyBehindItsLastUse) {
  constexpr std::uint64_t kTiles = 3;
  Rig rig(kTiles, kTiles, {.threads = 2});
  ASSERT_EQ(rig.budget.resident, kTiles);
  ASSERT_TRUE(rig.create());
  for (const Use second : {Use::read, Use::modify}) {
    Stream stream(*rig.cache, {{1, Use::modify}, {1, second}}, Stream::Repeats::no);
    stream.begin(1);
    const auto first = stream.take();
    ASSERT_TRUE(first);
    const libswap::EventSource done;
    std::atomic<bool> ended = false;
    stream.give_back(*first, done.event());
    std::thread late([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      ended = true;
      done.pass();
    });
    const auto again = stream.take();
    EXPECT_TRUE(ended);
    late.join();
    ASSERT_TRUE(again);
    stream.give_back(*again, {});
    ASSERT_TRUE(rig.cache->settle());
  }
}

}  // namespace
}  // namespace ebb::test
