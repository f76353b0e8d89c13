// Streams over a real store on a disk in memory: order, budget, bytes, cuts, errors.
#include "ebb/libswap/pager/stream.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <functional>
#include <numeric>
#include <random>
#include <thread>

#include "ebb/libswap/testing/fault_backend.h"
#include "ebb/libswap/testing/memory_backend.h"
#include "tests/support/chrome_trace.h"

namespace ebb {

namespace {

using libswap::Alone;
using libswap::Homes;
using libswap::IoQueue;
using libswap::Pool;
using libswap::Store;
using libswap::Stream;
using libswap::TileBudget;
using libswap::TileCache;
using libswap::TileVisit;
using Use = libswap::TileCache::Use;

constexpr std::uint64_t kTile = 4096;

// No step of one tile looks like a step of another.
std::uint64_t first_value(std::uint64_t tile) { return tile * 1000; }

using Visitor = std::function<void(std::uint64_t tile, std::span<std::byte> bytes)>;

struct Rig {
  std::shared_ptr<libswap::MemoryDisk> disk = libswap::MemoryDisk::create(1u << 28);
  std::shared_ptr<libswap::FaultPlan> faults = std::make_shared<libswap::FaultPlan>();
  std::unique_ptr<Pool> pool;
  std::unique_ptr<IoQueue> io;
  std::unique_ptr<Store> store;
  TileBudget budget;
  libswap::Trace* trace = nullptr;
  std::vector<std::uint64_t> order;
  std::unique_ptr<TileCache> cache;
  std::unique_ptr<Stream> updates;

  Rig(std::uint64_t tiles, std::uint64_t budget_tiles, std::uint32_t slots = 3,
      libswap::Trace* traced = nullptr, std::uint32_t threads = 1)
      : trace(traced), order(tiles) {
    pool = std::move(*Pool::start(threads));
    io = std::move(*IoQueue::start(
        libswap::make_fault_backend(libswap::make_memory_backend(disk), faults), {}));
    Store::Config config{.directory = "/store",
                         .tile_bytes = kTile,
                         .block_bytes = kTile,
                         .slots = slots,
                         .tiles = tiles,
                         .manifest_bytes = 1u << 20};
    config.uuid[0] = std::byte{1};
    auto created = Store::create(*io, config);
    EXPECT_TRUE(created) << created.error().message;
    store = std::move(*created);
    Alone alone;
    EXPECT_TRUE(store->recover(alone));
    std::iota(order.begin(), order.end(), std::uint64_t{0});
    budget = *TileBudget::divide(tiles, kTile, budget_tiles * kTile);
    open();
  }
  ~Rig() { close(); }

  void open() {
    cache = std::move(
        *TileCache::open(*io, *store, *pool, Homes::spread(budget, order), nullptr, trace));
    updates = std::make_unique<Stream>(*cache, visits(Use::modify), Stream::Repeats::yes);
  }
  void close() {
    updates.reset();
    cache.reset();
  }
  std::uint64_t paged() const { return store->superblock().tiles - budget.resident; }

  std::vector<TileVisit> visits(Use use) const {
    std::vector<TileVisit> visits;
    for (const std::uint64_t tile : order) visits.push_back({tile, use});
    return visits;
  }
  // What is left of the stream's round.
  Result<> rest(Stream& stream, const Visitor& visit) {
    while (!stream.ended()) {
      EBB_TRY_ASSIGN(const Stream::Lease lease, stream.take());
      visit(lease.tile, lease.buffer.bytes());
      stream.give_back(lease, {});
    }
    return cache->settle();
  }
  Result<> round(Use use, std::uint64_t step, const Visitor& visit) {
    Stream stream(*cache, visits(use), Stream::Repeats::no);
    stream.begin(step);
    return rest(stream, visit);
  }

  Result<> create() {
    return round(Use::create, 0, [](std::uint64_t tile, std::span<std::byte> bytes) {
      const std::uint64_t value = first_value(tile);
      std::memcpy(bytes.data(), &value, sizeof value);
    });
  }
  // Adds one to the number in each tile; expects what `step` earlier updates left.
  Result<> update(std::uint64_t step) {
    updates->begin(step);
    return go_on(step);
  }
  Result<> go_on(std::uint64_t step) {
    return rest(*updates, [&](std::uint64_t tile, std::span<std::byte> bytes) {
      std::uint64_t value = 0;
      std::memcpy(&value, bytes.data(), sizeof value);
      EXPECT_EQ(value, first_value(tile) + (step - 1)) << "tile " << tile;
      ++value;
      std::memcpy(bytes.data(), &value, sizeof value);
    });
  }
  Result<bool> commit(std::uint64_t step) {
    EXPECT_TRUE(store->can_cut());
    store->cut(step);
    cache->begin_cut();
    EBB_TRY(cache->finish_cut());
    Alone alone;
    EBB_TRY_ASSIGN(const auto settled, store->agree(alone, store->prepare(manifest())));
    return settled == Store::Settled::committed;
  }
  formats::native::Manifest manifest() const {
    formats::native::Manifest manifest;
    manifest.states = {"master"};
    manifest.params = {{"p", {store->superblock().tiles * kTile / 4}, 0}};
    manifest.groups = {{"adamw", {}}};
    for (std::uint64_t tile = 0; tile < store->superblock().tiles; ++tile) {
      formats::native::Tile entry;
      entry.used_bytes = kTile;
      entry.segments = {{.first = tile * kTile / 4, .count = kTile / 4}};
      manifest.tiles.push_back(entry);
    }
    return manifest;
  }
};

TEST(Pager, SpendsABudgetOnFramesAndResidentTiles) {
  EXPECT_EQ((*TileBudget::divide(10, kTile, 10 * kTile)).resident, 10u);
  EXPECT_EQ((*TileBudget::divide(10, kTile, 10 * kTile)).frames, 0u);
  for (std::uint64_t budget = 1; budget < 100; ++budget) {
    const TileBudget split = *TileBudget::divide(100, kTile, budget * kTile);
    EXPECT_LE(split.bytes(kTile), budget * kTile);
    EXPECT_GE(split.frames, 1u);
  }
}

TEST(Pager, RefusesABudgetBelowOneTileAndSaysWhatWorks) {
  const auto split = TileBudget::divide(10, kTile, kTile - 1);
  ASSERT_FALSE(split);
  EXPECT_EQ(split.error().code, Code::no_memory);
  EXPECT_NE(split.error().message.find("4096 bytes"), std::string::npos);
}

TEST(Pager, SweepsInOrderAndMovesExactlyThePagedTilesForAnyBudget) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 40; ++round) {
    const std::uint64_t tiles = 1 + random() % 60;
    Rig rig(tiles, 1 + random() % 20, 3, nullptr, 1 + round % 3);
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
  Rig rig(8, 3, 3, &trace);
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

TEST(Pager, WritesAResidentTileOfACutBeforeItIsModified) {
  for (const std::uint64_t budget : {1u, 7u, 12u, 30u}) {
    Rig rig(30, budget);
    ASSERT_TRUE(rig.create());
    ASSERT_TRUE(rig.update(1));
    rig.store->cut(1);
    rig.cache->begin_cut();
    // The next step runs while the cut is being written.
    Result<> finished, prepared;
    std::thread committer([&] {
      finished = rig.cache->finish_cut();
      if (finished) prepared = rig.store->prepare(rig.manifest());
    });
    ASSERT_TRUE(rig.update(2));
    committer.join();
    ASSERT_TRUE(finished) << finished.error().message;
    ASSERT_TRUE(prepared) << prepared.error().message;
    Alone alone;
    ASSERT_EQ(*rig.store->agree(alone, prepared), Store::Settled::committed);
    // What recovers is step 1, not step 2.
    rig.close();
    rig.store.reset();
    rig.store = std::move(*Store::open(*rig.io, "/store", Rank{0}, 1));
    const auto manifest = rig.store->recover(alone);
    ASSERT_TRUE(manifest) << manifest.error().message;
    ASSERT_TRUE((*manifest).has_value());
    EXPECT_EQ((**manifest).step, 1u);
    rig.open();
    ASSERT_TRUE(rig.cache->load_residents());
    ASSERT_TRUE(rig.update(2)) << "finds step 1 in every tile";
  }
}

TEST(Pager, ManyCutsUnderWayNeverLoseATile) {
  Rig rig(25, 8);
  ASSERT_TRUE(rig.create());
  for (std::uint64_t step = 1; step <= 30; ++step) {
    ASSERT_TRUE(rig.update(step));
    if (step % 3 == 0) {
      const auto committed = rig.commit(step);
      ASSERT_TRUE(committed) << committed.error().message;
      EXPECT_TRUE(*committed);
    }
  }
  EXPECT_EQ(rig.store->committed_generation(), 10u);
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

TEST(Pager, AResidentTileThatCouldNotBeWrittenIsWrittenByTheNextCut) {
  Rig rig(8, 8);
  ASSERT_TRUE(rig.create());
  ASSERT_TRUE(*rig.commit(0));
  ASSERT_TRUE(rig.update(1));
  rig.faults->add({.on = libswap::FaultOn::write,
                   .at = 3,
                   .count = libswap::FaultPlan::kForEver,
                   .path_part = ".data"});
  rig.store->cut(1);
  rig.cache->begin_cut();
  const auto finished = rig.cache->finish_cut();
  ASSERT_FALSE(finished);
  EXPECT_EQ(finished.error().code, Code::io);
  rig.faults->clear();
  Alone alone;
  ASSERT_EQ(*rig.store->agree(alone, finished), Store::Settled::abandoned);
  ASSERT_TRUE(rig.update(2));
  ASSERT_TRUE(*rig.commit(2));
  rig.close();
  rig.open();
  ASSERT_TRUE(rig.cache->load_residents());
  ASSERT_TRUE(rig.update(3)) << "finds step 2 in every tile";
}

TEST(Pager, AResidentTileWhoseWriteFailsATimeOrTwoIsPartOfItsCut) {
  Rig rig(8, 8);
  ASSERT_TRUE(rig.create());
  ASSERT_TRUE(rig.update(1));
  rig.faults->add({.on = libswap::FaultOn::write, .at = 3, .count = 2, .path_part = ".data"});
  ASSERT_TRUE(*rig.commit(1));
  EXPECT_EQ(rig.cache->stats().retries, 2u);
}

// Every operation of a round fails once, or until it is asked again after it was given up.
TEST(Pager, ARoundGoesOnWhereItsReadOrWriteFailed) {
  for (const auto on : {libswap::FaultOn::read, libswap::FaultOn::write})
    for (const std::uint64_t budget : {1u, 2u, 3u, 7u})
      for (const std::uint32_t threads : {1u, 3u})
        for (std::uint64_t at = 0; at < 9; ++at) {
          Rig rig(9, budget, 3, nullptr, threads);
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
  for (int round = 0; round < 60; ++round) {
    Rig rig(6, 1 + random() % 5, 3, nullptr, 1 + round % 3);
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

// A tile is not written, and its frame serves nobody else, before its user said so.
TEST(Pager, WhatUsesATileMayEndLongAfterItWasGivenBack) {
  for (const std::uint64_t budget : {2u, 4u}) {
    Rig rig(8, budget, 3, nullptr, 2);
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

}  // namespace

}  // namespace ebb
