// A store on a real disk, read the way the tools read it: the engine's files are the checkpoint.
#include <gtest/gtest.h>

#include "ebb/formats/describe.h"
#include "ebb/formats/native/ebb.h"
#include "ebb/libswap/store/store_set.h"
#include "ebb/libswap/tree/file_tree.h"
#include "tests/libswap/store/store_on_disk.h"

namespace ebb::libswap {
namespace {

TEST_F(StoreOnDisk, IsACheckpointWhileTheTrainerHoldsIt) {
  const auto described = formats::describe(tree());
  ASSERT_TRUE(described) << described.error().message;
  const Catalog& catalog = (*described)->catalog();
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
  EXPECT_EQ(differs(**pinned, 2), "");  // its reader holds it, too
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
  {  // a reader holds its generation, and this store has two slots
    const auto described = formats::describe(tree_at(swap));
    ASSERT_TRUE(described) << described.error().message;
    EXPECT_EQ((*described)->catalog().step, 12);
    EXPECT_EQ(differs(**described, 12), "");
    EXPECT_EQ((*described)->catalog().values.at(1).key, "data_position");
  }
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
