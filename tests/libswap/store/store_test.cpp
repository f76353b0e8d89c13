#include "ebb/libswap/store/store.h"

#include <gtest/gtest.h>

#include "tests/libswap/store/store_world.h"

namespace ebb::libswap {
namespace {

std::unique_ptr<Store> must(Result<std::unique_ptr<Store>> store) {
  if (!store) ADD_FAILURE() << store.error().message;
  return store ? std::move(*store) : nullptr;
}

class StoreTest : public testing::Test {
 protected:
  std::shared_ptr<MemoryDisk> disk_ = disk_with_swap_folder();
  std::unique_ptr<IoQueue> io_ = start_queue(disk_);
  Alone alone_;

  std::unique_ptr<Store> create(std::uint32_t slots = 3) {
    auto store = must(Store::create(*io_, test_config(0, 1, slots)));
    if (store) {
      EXPECT_TRUE(store->recover(alone_));
    }
    return store;
  }
  std::unique_ptr<Store> reopen() {
    return must(Store::open(*io_, test_config(0, 1).directory, Rank{0}, 1));
  }
  void commit(Store& store, std::uint64_t step) {
    const auto committed = write_and_commit(*io_, store, alone_, step);
    ASSERT_TRUE(committed) << committed.error().message;
    EXPECT_TRUE(*committed);
  }
};

TEST_F(StoreTest, IsNewAfterCreate) {
  const auto store = create();
  const auto recovered = store->recover(alone_);
  ASSERT_TRUE(recovered) << recovered.error().message;
  EXPECT_FALSE(recovered->has_value());
  EXPECT_EQ(store->committed_generation(), 0u);
}

TEST_F(StoreTest, WritesNothingBeforeTheRanksRecovered) {
  const auto store = must(Store::create(*io_, test_config(0, 1)));
  EXPECT_FALSE(store->can_cut());
  const auto refused = store->begin_write(0, 1);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::state);
}

TEST_F(StoreTest, ComesBackAtTheCommittedStepAndForgetsWhatCameAfter) {
  {
    const auto store = create();
    commit(*store, 1);
    commit(*store, 2);
    ASSERT_TRUE(write_tiles(*io_, *store, 3));
  }
  const auto store = reopen();
  const auto recovered = store->recover(alone_);
  ASSERT_TRUE(recovered) << recovered.error().message;
  ASSERT_TRUE(recovered->has_value());
  EXPECT_EQ((*recovered)->step, 2u);
  EXPECT_EQ((*recovered)->generation, 2u);
  EXPECT_EQ((*recovered)->params[0].name, "w");
  const auto intact = check_tiles(*io_, *store, 2);
  EXPECT_TRUE(intact) << intact.error().message;
  commit(*store, 3);
  EXPECT_EQ(store->committed_generation(), 3u);
}

TEST_F(StoreTest, NeverWritesASlotOfTheCommittedGeneration) {
  for (const std::uint32_t slots : {2u, 3u, 4u}) {
    disk_ = disk_with_swap_folder();
    io_ = start_queue(disk_);
    const auto store = create(slots);
    for (std::uint64_t step = 1; step < 6; ++step) {
      commit(*store, step);
      const Store::Place committed = store->read_place(0);
      const auto next = store->begin_write(0, step + 1);
      ASSERT_TRUE(next);
      EXPECT_NE(next->place.slot, committed.slot);
      EXPECT_NE(next->place.offset, committed.offset);
    }
  }
}

TEST_F(StoreTest, WritesOfTheCutMayStillFinishAndLaterStepsGoElsewhere) {
  const auto store = create(3);
  commit(*store, 1);
  ASSERT_TRUE(write_tile(*io_, *store, 0, 2));
  ASSERT_TRUE(write_tile(*io_, *store, 1, 2));
  store->cut(2);
  ASSERT_TRUE(write_tile(*io_, *store, 2, 2));  // a resident that was dirty at the cut
  ASSERT_TRUE(write_tiles(*io_, *store, 3));    // the next step's sweep, before the commit
  const auto prepared = store->prepare(test_manifest());
  ASSERT_TRUE(prepared) << prepared.error().message;
  EXPECT_TRUE(*settle(*store, alone_, prepared));
  EXPECT_TRUE(check_tiles(*io_, *store, 3));
  auto copy = disk_->after({PowerLoss::Unsynced::lost, 0});
  auto io = start_queue(copy);
  const auto reopened = must(Store::open(*io, test_config(0, 1).directory, Rank{0}, 1));
  ASSERT_TRUE(reopened->recover(alone_));
  const auto intact = check_tiles(*io, *reopened, 2);
  EXPECT_TRUE(intact) << intact.error().message;
}

TEST_F(StoreTest, WithTwoSlotsTheNextSweepWaitsForTheCommit) {
  const auto store = create(2);
  commit(*store, 1);
  EXPECT_TRUE(store->room_to_sweep());
  ASSERT_TRUE(write_tiles(*io_, *store, 2));
  store->cut(2);
  EXPECT_FALSE(store->room_to_sweep());
  EXPECT_FALSE(store->can_cut());
  const auto refused = store->begin_write(0, 3);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::busy);
  EXPECT_TRUE(*settle(*store, alone_, store->prepare(test_manifest())));
  EXPECT_TRUE(store->room_to_sweep());
  EXPECT_TRUE(store->begin_write(0, 3));
}

TEST_F(StoreTest, AnAbandonedGenerationLeavesTheOldOneAndItsNumberIsNotReused) {
  const auto store = create(2);
  commit(*store, 1);
  ASSERT_TRUE(write_tiles(*io_, *store, 2));
  EXPECT_EQ(store->cut(2), 2u);
  ASSERT_TRUE(store->prepare(test_manifest()));
  const auto committed = settle(*store, alone_, Result<>(Error{Code::io, "a write failed"}));
  ASSERT_TRUE(committed) << committed.error().message;
  EXPECT_FALSE(*committed);
  EXPECT_EQ(store->committed_generation(), 1u);
  commit(*store, 3);
  EXPECT_EQ(store->committed_generation(), 3u);
}

TEST_F(StoreTest, AResidentWrittenForAnAbandonedCutIsWrittenAgainForTheNextEvenWithTwoSlots) {
  const auto store = create(2);
  commit(*store, 1);
  for (std::uint64_t step = 2; step < 5; ++step) {
    store->cut(step);
    ASSERT_TRUE(write_tiles(*io_, *store, step)) << step;
    const bool last = step == 4;
    const Result<> prepared = store->prepare(test_manifest());
    ASSERT_TRUE(prepared) << prepared.error().message;
    const auto committed =
        settle(*store, alone_, last ? prepared : Result<>(Error{Code::io, "a write failed"}));
    ASSERT_TRUE(committed) << committed.error().message;
    EXPECT_EQ(*committed, last);
  }
  EXPECT_TRUE(check_tiles(*io_, *store, 4));
}

TEST_F(StoreTest, APinKeepsAGenerationReadableAndRefusesOnlyCutsItCannotCarry) {
  const auto store = create(3);
  commit(*store, 1);
  const Store::Place pinned = store->read_place(0);
  ASSERT_TRUE(store->pin(1));
  for (std::uint64_t step = 2; step < 6; ++step) {
    ASSERT_TRUE(store->can_cut());
    const auto write = store->begin_write(0, step);
    ASSERT_TRUE(write);
    EXPECT_NE(write->place.slot, pinned.slot);
    commit(*store, step);
  }
  EXPECT_FALSE(store->pin(1 + 1));  // long gone
  ASSERT_TRUE(store->pin(5));
  EXPECT_FALSE(store->can_cut());  // 1 and 5 hold two of three slots
  EXPECT_TRUE(store->room_to_sweep());
  ASSERT_TRUE(write_tiles(*io_, *store, 6));
  store->unpin(1);
  EXPECT_TRUE(store->can_cut());
  store->unpin(5);
}

TEST_F(StoreTest, WithTwoSlotsNothingCanBeCutBesideAPin) {
  const auto store = create(2);
  commit(*store, 1);
  ASSERT_TRUE(store->pin(1));
  EXPECT_FALSE(store->can_cut());
  EXPECT_TRUE(store->room_to_sweep());
  store->unpin(1);
  EXPECT_TRUE(store->can_cut());
}

TEST_F(StoreTest, CreateRefusesADiskThatIsTooSmallWithBothNumbersAndLeavesNothing) {
  disk_ = disk_with_swap_folder(100000);
  io_ = start_queue(disk_);
  const Store::Config config = test_config(0, 1);
  const auto store = Store::create(*io_, config);
  ASSERT_FALSE(store);
  EXPECT_EQ(store.error().code, Code::no_space);
  EXPECT_NE(store.error().message.find(std::to_string(Store::disk_bytes(config))),
            std::string::npos)
      << store.error().message;
  const auto left = io_->backend().list("/swap");
  ASSERT_TRUE(left);
  EXPECT_TRUE(left->empty());
}

TEST_F(StoreTest, RefusesASecondCreateAndASecondOwner) {
  const auto store = create();
  const auto second = Store::create(*start_queue(disk_), test_config(0, 1));
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, Code::busy);
  const auto other = start_queue(disk_);
  const auto opened = Store::open(*other, test_config(0, 1).directory, Rank{0}, 1);
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code, Code::busy);
}

TEST_F(StoreTest, ADamagedBlockIsRefusedAtPageInWithItsPlace) {
  const auto store = create();
  commit(*store, 1);
  const Store::Place place = store->read_place(2);
  AlignedBuffer tile = *AlignedBuffer::allocate(kTestTile);
  ASSERT_TRUE(io_->read(place.file, place.offset, tile.bytes()));
  tile.bytes()[kTestBlock + 9] ^= std::byte{1};
  const auto verified = store->verify(2, tile.bytes());
  ASSERT_FALSE(verified);
  EXPECT_EQ(verified.error().code, Code::corrupt);
  EXPECT_NE(verified.error().message.find(
                "-00000.data:" + std::to_string(place.offset + kTestBlock) + ": block 1 of tile 2"),
            std::string::npos)
      << verified.error().message;
}

TEST_F(StoreTest, ATornSuperblockIsRepairedFromTheOther) {
  {
    create();
  }
  const fs::path meta = test_config(0, 1).directory / "rank-00000-of-00001" / "meta.ebb";
  const auto read_both = [&] {
    ByteVector bytes(8192);
    const auto file = io_->backend().open(meta, {.access = Access::read});
    EBB_CHECK(file && io_->read(*file, 0, bytes));
    EBB_CHECK(io_->backend().close(*file));
    return bytes;
  };
  const auto good = read_both();
  for (const std::uint64_t damaged_at : {std::uint64_t{100}, std::uint64_t{4096 + 3000}}) {
    {
      const auto file = io_->backend().open(meta, {.access = Access::read_write});
      const ByteVector garbage(512, std::byte{0x5a});
      ASSERT_TRUE(file && io_->write(*file, damaged_at, garbage));
      ASSERT_TRUE(io_->backend().close(*file));
    }
    EXPECT_NE(read_both(), good);
    reopen();
    EXPECT_EQ(read_both(), good);
  }
}

TEST_F(StoreTest, AManifestThatDoesNotFitItsRegionIsRefusedAndTheGenerationAbandoned) {
  const auto store = create();
  commit(*store, 1);
  ASSERT_TRUE(write_tiles(*io_, *store, 2));
  store->cut(2);
  Manifest manifest = test_manifest();
  manifest.blobs = {{"big", ByteVector(5000)}};
  const auto prepared = store->prepare(manifest);
  ASSERT_FALSE(prepared);
  EXPECT_EQ(prepared.error().code, Code::limit);
  EXPECT_FALSE(*settle(*store, alone_, prepared));
  commit(*store, 3);
}

// As an engine uses it: one thread a rank sweeps, another prepares behind it, an export pins, reads
// and releases. Meant for the thread sanitizer; the state at the end is checked anyway.
TEST(StoreThreads, SweepCommitAndExportRunBesideEachOther) {
  const auto disk = disk_with_swap_folder();
  const auto io = start_queue(disk);
  constexpr std::uint64_t kLast = 40;
  run_ranks(2, [&](std::uint32_t rank, Agreement& ranks) {
    const auto store = must(Store::create(*io, test_config(rank, 2, 4)));
    ASSERT_TRUE(store->recover(ranks));
    ASSERT_TRUE(*write_and_commit(*io, *store, ranks, 0));
    for (std::uint64_t step = 1; step <= kLast; ++step) {
      ASSERT_TRUE(store->can_cut());
      store->cut(step - 1);
      Result<> prepared;
      std::thread committer([&] { prepared = store->prepare(test_manifest()); });
      std::thread exporter([&] {
        const std::uint64_t generation = store->committed_generation();
        if (store->pin(generation)) store->unpin(generation);
      });
      ASSERT_TRUE(store->room_to_sweep());
      ASSERT_TRUE(write_tiles(*io, *store, step));
      ASSERT_TRUE(check_tiles(*io, *store, step));
      committer.join();
      exporter.join();
      const auto committed = settle(*store, ranks, prepared);
      ASSERT_TRUE(committed && *committed);
    }
  });
  run_ranks(2, [&](std::uint32_t rank, Agreement& ranks) {
    const auto store = must(Store::open(*io, test_config(0, 2).directory, Rank{rank}, 2));
    const auto recovered = store->recover(ranks);
    ASSERT_TRUE(recovered && recovered->has_value());
    EXPECT_TRUE(check_tiles(*io, *store, kLast - 1));
  });
}

TEST(StoreRanks, CommitTogetherAndRecoverTogether) {
  const auto disk = disk_with_swap_folder();
  const auto io = start_queue(disk);
  run_ranks(3, [&](std::uint32_t rank, Agreement& ranks) {
    const auto store = must(Store::create(*io, test_config(rank, 3)));
    ASSERT_TRUE(store->recover(ranks));
    for (std::uint64_t step = 1; step < 4; ++step) {
      const auto committed = write_and_commit(*io, *store, ranks, step);
      ASSERT_TRUE(committed && *committed);
    }
  });
  run_ranks(3, [&](std::uint32_t rank, Agreement& ranks) {
    const auto store = must(Store::open(*io, test_config(0, 3).directory, Rank{rank}, 3));
    const auto recovered = store->recover(ranks);
    ASSERT_TRUE(recovered && recovered->has_value());
    EXPECT_EQ((*recovered)->step, 3u);
    EXPECT_TRUE(check_tiles(*io, *store, 3));
  });
}

TEST(StoreRanks, OneRankThatFailsMakesAllAbandon) {
  const auto disk = disk_with_swap_folder();
  const auto io = start_queue(disk);
  run_ranks(3, [&](std::uint32_t rank, Agreement& ranks) {
    const auto store = must(Store::create(*io, test_config(rank, 3)));
    ASSERT_TRUE(store->recover(ranks));
    ASSERT_TRUE(*write_and_commit(*io, *store, ranks, 1));
    ASSERT_TRUE(write_tiles(*io, *store, 2));
    store->cut(2);
    const Result<> prepared =
        rank == 1 ? Result<>(Error{Code::io, "write failed"}) : store->prepare(test_manifest());
    const auto committed = settle(*store, ranks, prepared);
    ASSERT_TRUE(committed) << committed.error().message;
    EXPECT_FALSE(*committed);
    ASSERT_TRUE(*write_and_commit(*io, *store, ranks, 3));
    EXPECT_EQ(store->committed_generation(), 3u);
  });
}

TEST(StoreRanks, FoldersOfDifferentStoresAreRefused) {
  const auto disk = disk_with_swap_folder();
  const auto io = start_queue(disk);
  run_ranks(2, [&](std::uint32_t rank, Agreement& ranks) {
    Store::Config config = test_config(rank, 2);
    if (rank == 1) config.layout_digest = 100;
    const auto store = must(Store::create(*io, config));
    const auto recovered = store->recover(ranks);
    ASSERT_FALSE(recovered);
    EXPECT_EQ(recovered.error().code, Code::layout);
  });
}

}  // namespace
}  // namespace ebb::libswap
