// The sweep over a real store on a disk in memory: order, budget, bytes, cuts, errors.
#include "ebb/libswap/pager/pager.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <random>
#include <thread>

#include "ebb/libswap/testing/fault_backend.h"
#include "ebb/libswap/testing/memory_backend.h"

namespace ebb {

namespace {

using libswap::Alone;
using libswap::IoQueue;
using libswap::Pager;
using libswap::Store;

constexpr std::uint64_t kTile = 4096;

struct Rig {
  std::shared_ptr<libswap::MemoryDisk> disk = libswap::MemoryDisk::create(1u << 28);
  std::shared_ptr<libswap::FaultPlan> faults = std::make_shared<libswap::FaultPlan>();
  std::unique_ptr<IoQueue> io;
  std::unique_ptr<Store> store;
  std::unique_ptr<Pager> pager;
  Pager::Split split;

  Rig(std::uint64_t tiles, std::uint64_t budget_tiles, std::uint32_t slots = 3,
      libswap::Trace* trace = nullptr) {
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
    split = *Pager::split(tiles, kTile, budget_tiles * kTile);
    pager = std::move(*Pager::open(*io, *store, split, trace));
  }

  std::uint64_t paged() const { return store->superblock().tiles - split.resident; }

  Result<> create() {
    return pager->sweep(Pager::Mode::create, 0, [](std::uint64_t tile, auto bytes) -> Result<> {
      std::memcpy(bytes.data(), &tile, sizeof tile);
      return {};
    });
  }
  // Adds one to the number in each tile; expects what `step` earlier updates left.
  Result<> update(std::uint64_t step) {
    return pager->sweep(Pager::Mode::update, step, [&](std::uint64_t tile, auto bytes) -> Result<> {
      std::uint64_t value = 0;
      std::memcpy(&value, bytes.data(), sizeof value);
      EXPECT_EQ(value, tile + (step - 1)) << "tile " << tile;
      ++value;
      std::memcpy(bytes.data(), &value, sizeof value);
      return {};
    });
  }
  Result<bool> commit(std::uint64_t step) {
    EXPECT_TRUE(store->can_cut());
    store->cut(step);
    pager->begin_cut();
    EBB_TRY(pager->finish_cut());
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
  EXPECT_EQ((*Pager::split(10, kTile, 10 * kTile)).resident, 10u);
  EXPECT_EQ((*Pager::split(10, kTile, 10 * kTile)).frames, 0u);
  for (std::uint64_t budget = 1; budget < 100; ++budget) {
    const Pager::Split split = *Pager::split(100, kTile, budget * kTile);
    EXPECT_LE(split.bytes(kTile), budget * kTile);
    EXPECT_GE(split.frames, 1u);
  }
}

TEST(Pager, RefusesABudgetBelowOneTileAndSaysWhatWorks) {
  const auto split = Pager::split(10, kTile, kTile - 1);
  ASSERT_FALSE(split);
  EXPECT_EQ(split.error().code, Code::no_memory);
  EXPECT_NE(split.error().message.find("4096 bytes"), std::string::npos);
}

TEST(Pager, SweepsInOrderAndMovesExactlyThePagedTilesForAnyBudget) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 40; ++round) {
    const std::uint64_t tiles = 1 + random() % 60;
    Rig rig(tiles, 1 + random() % 20);
    ASSERT_TRUE(rig.create());
    const std::uint64_t before = rig.pager->stats().written_bytes;
    constexpr std::uint64_t kSweeps = 5;
    for (std::uint64_t step = 1; step <= kSweeps; ++step) {
      std::uint64_t expected = 0;
      ASSERT_TRUE(rig.update(step));
      ASSERT_TRUE(rig.pager->sweep(Pager::Mode::look, step, [&](std::uint64_t tile, auto) {
        EXPECT_EQ(tile, expected++);
        return Result<>();
      }));
      EXPECT_EQ(expected, tiles);
    }
    EXPECT_EQ(rig.pager->stats().read_bytes, 2 * kSweeps * rig.paged() * kTile);
    EXPECT_EQ(rig.pager->stats().written_bytes - before, kSweeps * rig.paged() * kTile);
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
  rig.pager.reset();  // write-behind ends with it
  const std::string json = trace.to_chrome_json();
  const std::size_t paged = 8 - rig.split.resident;
  EXPECT_GE(count_of(json, "{\"ph\":\"b\",\"name\":\"page-in\""), paged);
  EXPECT_GE(count_of(json, "{\"ph\":\"b\",\"name\":\"write-behind\""), 2 * paged);
  EXPECT_EQ(count_of(json, "\"ph\":\"b\""), count_of(json, "\"ph\":\"e\""));
  EXPECT_EQ(count_of(json, "\"ph\":\"b\""), count_of(json, ",\"bytes\":4096}}"));
  // The counter ends at nothing under way.
  EXPECT_TRUE(json.ends_with("\"args\":{\"bytes\":0}}\n]}\n")) << json.substr(json.size() - 80);
}

TEST(Pager, WritesAResidentTileOfACutBeforeItIsModified) {
  for (const std::uint64_t budget : {1u, 7u, 12u, 30u}) {
    Rig rig(30, budget);
    ASSERT_TRUE(rig.create());
    ASSERT_TRUE(rig.update(1));
    rig.store->cut(1);
    rig.pager->begin_cut();
    // The next step runs while the cut is being written.
    Result<> finished, prepared;
    std::thread committer([&] {
      finished = rig.pager->finish_cut();
      if (finished) prepared = rig.store->prepare(rig.manifest());
    });
    ASSERT_TRUE(rig.update(2));
    committer.join();
    ASSERT_TRUE(finished) << finished.error().message;
    ASSERT_TRUE(prepared) << prepared.error().message;
    Alone alone;
    ASSERT_EQ(*rig.store->agree(alone, prepared), Store::Settled::committed);
    // What recovers is step 1, not step 2.
    const auto split = rig.split;
    rig.pager.reset();
    rig.store.reset();
    rig.store = std::move(*Store::open(*rig.io, "/store", Rank{0}, 1));
    const auto manifest = rig.store->recover(alone);
    ASSERT_TRUE(manifest) << manifest.error().message;
    ASSERT_TRUE((*manifest).has_value());
    EXPECT_EQ((**manifest).step, 1u);
    rig.pager = std::move(*Pager::open(*rig.io, *rig.store, split, nullptr));
    ASSERT_TRUE(rig.pager->load_residents());
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
    const Pager::Split split = rig.split;
    rig.pager.reset();
    damage_tile(rig, tile);
    rig.pager = std::move(*Pager::open(*rig.io, *rig.store, split, nullptr));
    Result<> read = rig.pager->load_residents();
    if (read)
      read = rig.pager->sweep(Pager::Mode::update, 2, [](auto, auto) { return Result<>(); });
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
    rig.pager.reset();
    damage_tile(rig, tile);
    rig.pager = std::move(*Pager::open(*rig.io, *rig.store, rig.split, nullptr));
    const auto loaded = rig.pager->load_residents();
    ASSERT_FALSE(loaded) << "tile " << tile;
    EXPECT_EQ(loaded.error().code, Code::corrupt);
  }
}

TEST(Pager, AResidentTileThatCouldNotBeWrittenIsWrittenByTheNextCut) {
  Rig rig(8, 8);
  ASSERT_TRUE(rig.create());
  ASSERT_TRUE(*rig.commit(0));
  ASSERT_TRUE(rig.update(1));
  rig.faults->add({.on = libswap::FaultOn::write, .at = 3, .path_part = ".data"});
  rig.store->cut(1);
  rig.pager->begin_cut();
  const auto finished = rig.pager->finish_cut();
  ASSERT_FALSE(finished);
  EXPECT_EQ(finished.error().code, Code::io);
  Alone alone;
  ASSERT_EQ(*rig.store->agree(alone, finished), Store::Settled::abandoned);
  ASSERT_TRUE(rig.update(2));
  ASSERT_TRUE(*rig.commit(2));
  rig.pager = std::move(*Pager::open(*rig.io, *rig.store, rig.split, nullptr));
  ASSERT_TRUE(rig.pager->load_residents());
  ASSERT_TRUE(rig.update(3)) << "finds step 2 in every tile";
}

TEST(Pager, AVisitorsErrorStopsTheSweepForGood) {
  Rig rig(10, 3);
  ASSERT_TRUE(rig.create());
  const auto failed =
      rig.pager->sweep(Pager::Mode::update, 1, [](std::uint64_t tile, auto) -> Result<> {
        if (tile == 4) return Error{Code::io, "no more"};
        return {};
      });
  ASSERT_FALSE(failed);
  const auto again = rig.pager->sweep(Pager::Mode::look, 1, [](auto, auto) { return Result<>(); });
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().message, "no more");
}

}  // namespace

}  // namespace ebb
