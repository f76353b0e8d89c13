// A store on a real disk, read the way the tools read it: the engine's files are the checkpoint.
#include <gtest/gtest.h>

#include "ebb/formats/native/ebb.h"
#include "ebb/formats/registry.h"
#include "ebb/libswap/store/store_set.h"
#include "ebb/libswap/tree/file_tree.h"
#include "tests/libswap/store/store_world.h"
#include "tests/libswap/sys/test_files.h"

namespace ebb::libswap {
namespace {

using formats::Checkpoint;

constexpr std::uint32_t kWorld = 2;

// Each rank holds one half of "w": its tiles are its rows.
Manifest manifest_of(std::uint32_t rank) {
  Manifest manifest = test_manifest(kWorld * kTestTiles);
  manifest.tiles.resize(kTestTiles);
  for (formats::native::Tile& tile : manifest.tiles)
    tile.segments[0].first += rank * kTestTiles * kTestTile / 4;
  return manifest;
}

Result<bool> write_rank(IoQueue& io, Store& store, Agreement& ranks, std::uint64_t step) {
  EBB_TRY(write_tiles(io, store, step));
  store.cut(step);
  return store.agree(ranks, store.prepare(manifest_of(index_of(store.superblock().rank))));
}

// "" when the checkpoint holds exactly what fill_tile gave at `step`.
std::string differs(const Checkpoint& checkpoint, std::uint64_t step) {
  const formats::TensorEntry& w = checkpoint.catalog().tensors.at(0);
  std::uint64_t row = 0;
  for (const formats::Chunk& chunk : w.chunks) {
    formats::ByteVector read(kTestTile), wanted(kTestTile);
    if (auto done = checkpoint.read(w, chunk, 0, read); !done) return done.error().message;
    fill_tile(static_cast<std::uint32_t>(row / kTestTiles), row % kTestTiles, step, wanted);
    if (read != wanted) return "row " + std::to_string(row);
    ++row;
  }
  return row == kWorld * kTestTiles ? "" : "rows are missing";
}

std::shared_ptr<const formats::SourceTree> tree_at(const fs::path& path) {
  auto opened = open_tree(path);
  EBB_CHECK(opened.has_value());
  return *opened;
}

std::unique_ptr<IoQueue> best_queue() {
  auto backend = open_backend(BackendChoice::automatic);
  EBB_CHECK(backend.has_value());
  return start_queue(std::move(backend->backend));
}

// Two ranks that train in `directory`, in step with the test.
class StoreOnDisk : public testing::Test {
 protected:
  const TemporaryDirectory folder_;
  std::unique_ptr<IoQueue> io_;
  std::unique_ptr<SwapDirectory> directory_;
  std::array<std::unique_ptr<Store>, 2> stores_;

  void SetUp() override {
    io_ = best_queue();
    auto opened = SwapDirectory::open(*io_, folder_ / "swap");
    ASSERT_TRUE(opened) << opened.error().message;
    directory_ = std::move(*opened);
    const auto fresh = *directory_->fresh();
    run_ranks(2, [&](std::uint32_t rank, Agreement& ranks) {
      Store::Config config = test_config(rank, 2);
      config.directory = fresh.path;
      config.uuid = fresh.uuid;
      auto store = Store::create(*io_, config);
      ASSERT_TRUE(store) << store.error().message;
      ASSERT_TRUE((*store)->recover(ranks));
      stores_[rank] = std::move(*store);
    });
    train(1);
    ASSERT_TRUE(directory_->adopt());
  }
  void train(std::uint64_t step) {
    run_ranks(2, [&](std::uint32_t rank, Agreement& ranks) {
      const auto committed = write_rank(*io_, *stores_[rank], ranks, step);
      ASSERT_TRUE(committed && *committed);
    });
  }
  std::shared_ptr<const formats::SourceTree> tree() const { return tree_at(folder_ / "swap"); }
};

TEST_F(StoreOnDisk, IsACheckpointWhileTheTrainerHoldsIt) {
  const auto described = formats::describe(tree());
  ASSERT_TRUE(described) << described.error().message;
  const formats::Catalog& catalog = (*described)->catalog();
  EXPECT_EQ(catalog.format, "ebb");
  EXPECT_EQ(catalog.world, 2u);
  EXPECT_EQ(catalog.step, 1);
  EXPECT_TRUE(formats::prove_coverage(catalog));
  EXPECT_EQ(differs(**described, 1), "");
}

TEST_F(StoreOnDisk, APinnedGenerationIsReadWholeWhileTrainingGoesOn) {
  train(2);
  ASSERT_TRUE(stores_[0]->pin(2) && stores_[1]->pin(2));
  const auto pinned = formats::describe_ebb_generation(tree(), 2);
  ASSERT_TRUE(pinned) << pinned.error().message;
  for (std::uint64_t step = 3; step < 9; ++step) {
    train(step);
    EXPECT_EQ(differs(**pinned, 2), "") << step;
    const auto again = formats::describe_ebb_generation(tree(), 2);
    ASSERT_TRUE(again) << again.error().message;
    EXPECT_EQ(differs(**again, 2), "") << step;
  }
  stores_[0]->unpin(2);
  stores_[1]->unpin(2);
  train(9);
  train(10);
  EXPECT_NE(differs(**pinned, 2), "");  // its slots were reused, and a checksum says so
  EXPECT_EQ(differs(**formats::describe(tree()), 10), "");
}

TEST_F(StoreOnDisk, AFlippedBitIsNamedByFileBlockAndTensor) {
  const Store::Place place = stores_[1]->read_place(2);
  const auto data = io_->backend().path_of(place.file);
  const auto file = io_->backend().open(data, {.access = Access::read_write});
  ASSERT_TRUE(file);
  std::array<std::byte, 1> byte{};
  const std::uint64_t at = place.offset + kTestBlock + 77;
  ASSERT_TRUE(io_->read(*file, at, byte));
  byte[0] ^= std::byte{4};
  ASSERT_TRUE(io_->write(*file, at, byte));
  ASSERT_TRUE(io_->backend().close(*file));
  const auto described = formats::describe(tree());
  ASSERT_TRUE(described);
  EXPECT_EQ(differs(**described, 1),
            data + ":" + std::to_string(place.offset + kTestBlock) +
                ": block 1 of tile 2, in master.w, does not match its checksum");
}

TEST(GoldenStore, OfVersion1IsReadResumedAndStepped) {
  const TemporaryDirectory folder;
  const fs::path swap = folder / "swap";
  fs::copy(fs::path(EBB_FIXTURES) / "ebb" / "v1_w2" / "data", swap, fs::copy_options::recursive);
  const auto described = formats::describe(tree_at(swap));
  ASSERT_TRUE(described) << described.error().message;
  EXPECT_EQ((*described)->catalog().step, 12);
  EXPECT_EQ(differs(**described, 12), "");
  EXPECT_EQ((*described)->catalog().values.at(1).key, "data_position");
  const auto io = best_queue();
  const auto directory = SwapDirectory::open(*io, swap);
  ASSERT_TRUE(directory) << directory.error().message;
  const auto current = (*directory)->current();
  ASSERT_TRUE(current);
  run_ranks(current->world, [&](std::uint32_t rank, Agreement& ranks) {
    const auto store = Store::open(*io, current->path, Rank{rank}, current->world);
    ASSERT_TRUE(store) << store.error().message;
    const auto recovered = (*store)->recover(ranks);
    ASSERT_TRUE(recovered && *recovered);
    EXPECT_EQ((*recovered)->generation, 3u);
    EXPECT_TRUE(check_tiles(*io, **store, 12));
    const auto committed = write_rank(*io, **store, ranks, 13);
    ASSERT_TRUE(committed && *committed);
  });
  EXPECT_EQ(differs(**formats::describe(tree_at(swap)), 13), "");
}

}  // namespace
}  // namespace ebb::libswap
