// A store of two ranks on a real disk, for tests of what other processes see of it.
#pragma once

#include <gtest/gtest.h>

#include <array>

#include "ebb/formats/native/ebb.h"
#include "ebb/libswap/store/store_set.h"
#include "ebb/libswap/tree/file_tree.h"
#include "tests/libswap/store/store_world.h"
#include "tests/libswap/sys/test_files.h"

namespace ebb::libswap {

constexpr std::uint32_t kWorld = 2;

// Each rank holds one half of "w": its tiles are its rows.
inline Manifest manifest_of(std::uint32_t rank) {
  Manifest manifest = test_manifest(kWorld * kTestTiles);
  manifest.tiles.resize(kTestTiles);
  for (formats::native::Tile& tile : manifest.tiles)
    tile.segments[0].first += rank * kTestTiles * kTestTile / 4;
  return manifest;
}

inline Result<bool> write_rank(IoQueue& io, Store& store, Agreement& ranks, std::uint64_t step) {
  EBB_TRY(write_tiles(io, store, step));
  store.cut(step);
  return settle(store, ranks, store.prepare(manifest_of(index_of(store.superblock().rank))));
}

// "" when the checkpoint holds exactly what fill_tile gave at `step`.
inline std::string differs(const Checkpoint& checkpoint, std::uint64_t step) {
  const TensorEntry& w = checkpoint.catalog().tensors.at(0);
  std::uint64_t row = 0;
  for (const Chunk& chunk : w.chunks) {
    ByteVector read(kTestTile), wanted(kTestTile);
    if (auto done = checkpoint.read(w, chunk, 0, read); !done) return done.error().message;
    fill_tile(static_cast<std::uint32_t>(row / kTestTiles), row % kTestTiles, step, wanted);
    if (read != wanted) return "row " + std::to_string(row);
    ++row;
  }
  return row == kWorld * kTestTiles ? "" : "rows are missing";
}

inline std::shared_ptr<const formats::SourceTree> tree_at(const fs::path& path) {
  auto opened = open_tree(path);
  EBB_CHECK(opened.has_value());
  return *opened;
}

inline std::unique_ptr<IoQueue> best_queue() {
  auto backend = open_backend(BackendChoice::automatic);
  EBB_CHECK(backend.has_value());
  return start_queue(std::move(backend->backend));
}

// Two ranks that train in `directory`, in step with the test.
class StoreOnDisk : public testing::Test {
 protected:
  explicit StoreOnDisk(std::uint32_t slots = 3) : slots_(slots) {}

  const std::uint32_t slots_;
  const TemporaryDirectory folder_;
  std::unique_ptr<IoQueue> io_;
  std::unique_ptr<SwapDirectory> directory_;
  Alone alone_;
  std::array<std::unique_ptr<Store>, 2> stores_;

  void SetUp() override {
    io_ = best_queue();
    auto opened = SwapDirectory::open(*io_, folder_ / "swap");
    ASSERT_TRUE(opened) << opened.error().message;
    directory_ = std::move(*opened);
    const auto fresh = *directory_->fresh(alone_);
    run_ranks(2, [&](std::uint32_t rank, Agreement& ranks) {
      Store::Config config = test_config(rank, 2, slots_);
      config.directory = fresh.path;
      config.uuid = fresh.uuid;
      auto store = Store::create(*io_, config);
      ASSERT_TRUE(store) << store.error().message;
      ASSERT_TRUE((*store)->recover(ranks));
      stores_[rank] = std::move(*store);
    });
    train(1);
    ASSERT_TRUE(directory_->adopt(alone_));
  }
  void train(std::uint64_t step) {
    run_ranks(2, [&](std::uint32_t rank, Agreement& ranks) {
      const auto committed = write_rank(*io_, *stores_[rank], ranks, step);
      ASSERT_TRUE(committed && *committed);
    });
  }
  std::shared_ptr<const formats::SourceTree> tree() const { return tree_at(folder_ / "swap"); }
};

}  // namespace ebb::libswap
