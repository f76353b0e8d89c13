// A world of ranks on one memory disk, for tests of the store: ranks are threads, tiles are filled
// from (rank, tile, step) so that any mix of steps is seen.
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "ebb/libswap/store/store.h"
#include "ebb/libswap/sys/aligned_buffer.h"
#include "ebb/libswap/testing/memory_backend.h"
#include "tests/libswap/rank_threads.h"

namespace ebb::libswap {

constexpr std::uint64_t kTestTile = 8192;
constexpr std::uint64_t kTestBlock = 4096;
constexpr std::uint64_t kTestTiles = 3;

inline Store::Config test_config(std::uint32_t rank, std::uint32_t world, std::uint32_t slots = 3) {
  Store::Config config;
  config.directory = "/swap/store-" + std::string(32, '7');
  config.uuid.fill(std::byte{0x77});
  config.rank = Rank{rank};
  config.world = world;
  config.tile_bytes = kTestTile;
  config.block_bytes = kTestBlock;
  config.slots = slots;
  config.tiles = kTestTiles;
  config.manifest_bytes = 4096;
  config.layout_digest = 99;
  return config;
}

// What a tile holds at a step. The step's number stands in each 8 bytes: torn or stale parts show.
inline void fill_tile(std::uint32_t rank, std::uint64_t tile, std::uint64_t step,
                      std::span<std::byte> into) {
  for (std::size_t i = 0; i < into.size() / 8; ++i) {
    const std::uint64_t word = (step << 32) ^ (std::uint64_t{rank} << 24) ^ (tile << 16) ^ i;
    std::memcpy(into.data() + 8 * i, &word, 8);
  }
}

// The manifest of a step as an engine would fill it: one tensor [tiles, 2048] in f32.
inline Manifest test_manifest(std::uint64_t tiles = kTestTiles) {
  Manifest manifest;
  manifest.fingerprint = "test";
  manifest.states = {"master"};
  manifest.groups = {{"adamw", {{"lr", "0.1"}}}};
  manifest.params = {{"w", {tiles, kTestTile / 4}, 0}};
  for (std::uint64_t tile = 0; tile < tiles; ++tile) {
    formats::native::Tile entry;
    entry.used_bytes = kTestTile;
    entry.segments = {{0, 0, DType::f32, tile * kTestTile / 4, kTestTile / 4, 0}};
    manifest.tiles.push_back(std::move(entry));
  }
  return manifest;
}

// One tile to its place; the step is also the sweep that wrote it.
inline Result<> write_tile(IoQueue& io, Store& store, std::uint64_t tile, std::uint64_t step) {
  EBB_TRY_ASSIGN(AlignedBuffer buffer, AlignedBuffer::allocate(kTestTile));
  fill_tile(index_of(store.superblock().rank), tile, step, buffer.bytes());
  EBB_TRY_ASSIGN(Store::Write write, store.begin_write(tile, step));
  store.seal(write, buffer.bytes());
  EBB_TRY(io.write(write.place.file, write.place.offset, buffer.bytes()));
  store.wrote(std::move(write));
  return {};
}

inline Result<> write_tiles(IoQueue& io, Store& store, std::uint64_t step) {
  for (std::uint64_t tile = 0; tile < kTestTiles; ++tile)
    EBB_TRY(write_tile(io, store, tile, step));
  return {};
}

// Whether the pending generation was committed.
inline Result<bool> settle(Store& store, Agreement& ranks, const Result<>& prepared) {
  EBB_TRY_ASSIGN(const Store::Settled settled, store.agree(ranks, prepared));
  return settled == Store::Settled::committed;
}

// A whole step with its commit.
inline Result<bool> write_and_commit(IoQueue& io, Store& store, Agreement& ranks,
                                     std::uint64_t step) {
  Result<> written = write_tiles(io, store, step);
  store.cut(step);
  Result<> prepared = written ? store.prepare(test_manifest()) : std::move(written);
  return settle(store, ranks, prepared);
}

// Every tile is as its newest version says (Code::corrupt otherwise), and exactly what fill_tile
// gave at `step` (Code::layout otherwise: wrong bytes that nothing noticed).
inline Result<> check_tiles(IoQueue& io, Store& store, std::uint64_t step) {
  EBB_TRY_ASSIGN(AlignedBuffer read, AlignedBuffer::allocate(kTestTile));
  EBB_TRY_ASSIGN(AlignedBuffer wanted, AlignedBuffer::allocate(kTestTile));
  for (std::uint64_t tile = 0; tile < kTestTiles; ++tile) {
    const Store::Place place = store.read_place(tile);
    EBB_TRY(io.read(place.file, place.offset, read.bytes()));
    EBB_TRY(store.verify(tile, read.bytes()));
    fill_tile(index_of(store.superblock().rank), tile, step, wanted.bytes());
    if (!std::ranges::equal(read.bytes(), wanted.bytes()))
      return Error{Code::layout,
                   "tile " + std::to_string(tile) + " is not at step " + std::to_string(step)};
  }
  return {};
}

inline std::unique_ptr<IoQueue> start_queue(std::unique_ptr<IoBackend> backend) {
  auto queue = IoQueue::start(std::move(backend), {});
  EBB_CHECK(queue.has_value());
  return std::move(*queue);
}
inline std::unique_ptr<IoQueue> start_queue(const std::shared_ptr<MemoryDisk>& disk) {
  return start_queue(make_memory_backend(disk));
}
inline std::shared_ptr<MemoryDisk> disk_with_swap_folder(std::uint64_t capacity = 64u << 20) {
  auto disk = MemoryDisk::create(capacity);
  auto backend = make_memory_backend(disk);
  EBB_CHECK(backend->make_directory("/swap").has_value());
  EBB_CHECK(backend->sync_directory("/").has_value());
  return disk;
}

}  // namespace ebb::libswap
