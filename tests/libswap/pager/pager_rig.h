// Tiles of numbers over a real store on a disk in memory, a cache and a stream that adds one.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <numeric>

#include "ebb/libswap/pager/stream.h"
#include "ebb/libswap/testing/fault_backend.h"
#include "ebb/libswap/testing/memory_backend.h"
#include "ebb/libswap/testing/paced_backend.h"

namespace ebb::test {

using libswap::Alone;
using libswap::Homes;
using libswap::IoQueue;
using libswap::kNoTile;
using libswap::Pool;
using libswap::Store;
using libswap::Stream;
using libswap::TileBudget;
using libswap::TileCache;
using libswap::TileVisit;
using Use = libswap::TileCache::Use;

constexpr std::uint64_t kTile = 4096;

// No step of one tile looks like a step of another.
inline std::uint64_t first_value(std::uint64_t tile) { return tile * 1000; }

using Visitor = std::function<void(std::uint64_t tile, std::span<std::byte> bytes)>;

struct RigOptions {
  libswap::Trace* trace = nullptr;
  std::uint32_t threads = 1;
  double bytes_per_s = 0;  // of the disk; 0: as fast as memory
  IoQueue::Options io;
};

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

  Rig(std::uint64_t tiles, std::uint64_t budget_tiles, const RigOptions& options = {})
      : trace(options.trace), order(tiles) {
    pool = std::move(*Pool::start(options.threads));
    auto below = libswap::make_fault_backend(libswap::make_memory_backend(disk), faults);
    if (options.bytes_per_s > 0)
      below = libswap::make_paced_backend(std::move(below), {{".data", options.bytes_per_s}});
    io = std::move(*IoQueue::start(std::move(below), options.io));
    Store::Config config{.directory = "/store",
                         .tile_bytes = kTile,
                         .block_bytes = kTile,
                         .slots = 3,
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
  void expect_sound() const { EXPECT_EQ(cache->broken_invariant(), std::nullopt); }

  void open() {
    cache = std::move(
        *TileCache::open(*io, *store, *pool, Homes::spread(budget, order), nullptr, trace));
    updates = std::make_unique<Stream>(*cache, visits(Use::modify), Stream::Repeats::yes);
    expect_sound();
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
      expect_sound();
      EBB_TRY_ASSIGN(const Stream::Lease lease, stream.take());
      expect_sound();
      visit(lease.tile, lease.buffer.bytes());
      stream.give_back(lease, {});
    }
    expect_sound();
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
    expect_sound();
    EBB_TRY(cache->finish_cut());
    expect_sound();
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

}  // namespace ebb::test
