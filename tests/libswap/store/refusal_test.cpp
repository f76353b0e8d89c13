// What a store refuses: damage, foreign files, and promises that the disk did not keep.
#include <gtest/gtest.h>

#include "ebb/formats/native/store_files.h"
#include "ebb/libswap/testing/fault_backend.h"
#include "tests/libswap/store/store_on_disk.h"

namespace ebb::libswap {
namespace {

class Refusing : public testing::Test {
 protected:
  std::shared_ptr<MemoryDisk> disk_ = disk_with_swap_folder();
  std::shared_ptr<FaultPlan> plan_ = std::make_shared<FaultPlan>();
  std::unique_ptr<IoQueue> io_ = start_queue(make_fault_backend(make_memory_backend(disk_), plan_));
  Alone alone_;

  std::unique_ptr<Store> create() {
    auto store = Store::create(*io_, test_config(0, 1));
    EXPECT_TRUE(store && (*store)->recover(alone_));
    return std::move(*store);
  }
  Result<std::unique_ptr<Store>> open(std::uint32_t rank = 0, std::uint32_t world = 1) {
    return Store::open(*io_, test_config(0, 1).directory, Rank{rank}, world);
  }
  static fs::path folder(std::uint32_t rank, std::uint32_t world) {
    return test_config(0, 1).directory / formats::native::rank_directory(Rank{rank}, world);
  }
  ByteVector bytes_of(const fs::path& path) {
    const auto file = io_->backend().open(path, {});
    ByteVector bytes(io_->backend().info(*file)->size);
    EXPECT_TRUE(io_->read(*file, 0, bytes));
    EXPECT_TRUE(io_->backend().close(*file));
    return bytes;
  }
  void overwrite(const fs::path& path, std::uint64_t offset, ByteView bytes) {
    const auto file = io_->backend().open(path, {.access = Access::read_write});
    ASSERT_TRUE(file && io_->write(*file, offset, bytes));
    ASSERT_TRUE(io_->backend().close(*file));
  }
  // Ranks that commit `generations` each.
  void train(std::uint32_t world, std::uint64_t generations) {
    run_ranks(world, [&](std::uint32_t rank, Agreement& ranks) {
      const auto store = Store::create(*io_, test_config(rank, world));
      ASSERT_TRUE(store && (*store)->recover(ranks));
      for (std::uint64_t step = 1; step <= generations; ++step)
        ASSERT_TRUE(*write_and_commit(*io_, **store, ranks, step));
    });
  }
  // What recover() answers on each rank.
  std::vector<Error> recover_all(std::uint32_t world) {
    std::vector<Error> errors(world);
    run_ranks(world, [&](std::uint32_t rank, Agreement& ranks) {
      const auto store = open(rank, world);
      ASSERT_TRUE(store) << store.error().message;
      const auto recovered = (*store)->recover(ranks);
      ASSERT_FALSE(recovered);
      errors[rank] = recovered.error();
    });
    return errors;
  }
};

TEST_F(Refusing, AfterAFailedSyncNothingIsCommittedAnyMoreAndItSaysSoEveryTime) {
  const auto store = create();
  ASSERT_TRUE(*write_and_commit(*io_, *store, alone_, 1));
  ASSERT_TRUE(write_tiles(*io_, *store, 2));
  store->cut(2);
  plan_->add({.on = FaultOn::sync, .kind = FaultKind::fail});  // one; the kernel has dropped pages
  const Result<> prepared = store->prepare(test_manifest());
  ASSERT_FALSE(prepared);
  for (int call = 0; call < 3; ++call) {
    const auto settled = store->agree(alone_, prepared);
    ASSERT_FALSE(settled);
    EXPECT_EQ(settled.error().code, Code::state);
    const auto cut = store->can_cut();
    ASSERT_FALSE(cut);
    EXPECT_EQ(cut.error().code, Code::state) << cut.error().message;
    EXPECT_FALSE(store->prepare(test_manifest()));
  }
  const auto image = disk_->after({PowerLoss::Unsynced::lost, 0});
  const auto io = start_queue(image);
  const auto reopened = Store::open(*io, test_config(0, 1).directory, Rank{0}, 1);
  const auto recovered = (*reopened)->recover(alone_);
  ASSERT_TRUE(recovered && *recovered);
  EXPECT_EQ((**recovered).step, 1u);
}

TEST_F(Refusing, WhatARecoveryBelievesSurvivesThePowerLossAfterIt) {
  {
    const auto store = create();
    ASSERT_TRUE(*write_and_commit(*io_, *store, alone_, 1));
    ASSERT_TRUE(write_tiles(*io_, *store, 2));
    store->cut(2);
    // Killed when manifest 2 was written and not synced: it is in the cache only.
    plan_->add({.on = FaultOn::sync, .kind = FaultKind::die, .path_part = "meta.ebb"});
    EXPECT_FALSE(store->prepare(test_manifest()));
  }
  const auto step_of = [&](const std::shared_ptr<MemoryDisk>& disk) {
    const auto io = start_queue(disk);
    const auto store = Store::open(*io, test_config(0, 1).directory, Rank{0}, 1);
    const auto recovered = (*store)->recover(alone_);
    return (**recovered).step;
  };
  const auto running = disk_->after({PowerLoss::Unsynced::kept, 0});
  io_.reset();
  EXPECT_EQ(step_of(disk_), 2u);
  EXPECT_EQ(step_of(disk_->after({PowerLoss::Unsynced::lost, 0})), 2u);
}

TEST_F(Refusing, ATileThatWasNeverWrittenIsNotPrepared) {
  const auto store = create();
  ASSERT_TRUE(write_tile(*io_, *store, 0, 1) && write_tile(*io_, *store, 2, 1));
  store->cut(1);
  const auto prepared = store->prepare(test_manifest());
  ASSERT_FALSE(prepared);
  EXPECT_EQ(prepared.error().code, Code::state);
  EXPECT_NE(prepared.error().message.find("tile 1 was not written completely"), std::string::npos)
      << prepared.error().message;
}

TEST_F(Refusing, NoRankRecoversWhenAnotherCannotReadTheGeneration) {
  train(2, 2);
  const fs::path meta = folder(1, 2) / formats::native::kMetaFile;
  const ByteVector at_two = bytes_of(meta);
  run_ranks(2, [&](std::uint32_t rank, Agreement& ranks) {
    const auto store = open(rank, 2);
    ASSERT_TRUE(store && (*store)->recover(ranks));
    for (std::uint64_t step = 3; step < 6; ++step)
      ASSERT_TRUE(*write_and_commit(*io_, **store, ranks, step));
  });
  // Rank 1's manifests from a backup: only they have generation 2 and nothing newer is common;
  // rank 0 has reused generation 2's region.
  overwrite(meta, 0, at_two);
  const auto errors = recover_all(2);
  for (const Error& error : errors) EXPECT_EQ(error.code, Code::incomplete);
}

TEST_F(Refusing, ARankThatIsWellHearsThatAnotherIsNot) {
  train(2, 3);
  // Generation 4 on rank 1 alone makes rank 1 verify the blocks of 3, one of which is damaged.
  run_ranks(2, [&](std::uint32_t rank, Agreement& ranks) {
    const auto store = open(rank, 2);
    ASSERT_TRUE(store && (*store)->recover(ranks));
    if (rank == 0) return;
    const Store::Place place = (*store)->read_place(0);
    const fs::path data = io_->backend().path_of(place.file);
    ASSERT_TRUE(write_tiles(*io_, **store, 4));
    (*store)->cut(4);
    ASSERT_TRUE((*store)->prepare(test_manifest()));
    overwrite(data, place.offset, ByteVector(kTestBlock, std::byte{0x5a}));
  });
  const auto errors = recover_all(2);
  EXPECT_EQ(errors[1].code, Code::corrupt) << errors[1].message;
  EXPECT_EQ(errors[0].code, Code::peer);
  EXPECT_NE(errors[0].message.find("another rank could not read generation 3"), std::string::npos)
      << errors[0].message;
}

TEST_F(Refusing, GenerationsThatWereLostAreNotTakenForANewStore) {
  train(2, 3);
  const fs::path meta = folder(1, 2) / formats::native::kMetaFile;
  const std::uint64_t size = bytes_of(meta).size();
  overwrite(meta, formats::native::kRegionsOffset,
            ByteVector(size - formats::native::kRegionsOffset));
  for (const Error& error : recover_all(2)) {
    EXPECT_EQ(error.code, Code::incomplete);
    EXPECT_NE(error.message.find("newest rank 0 has 3, rank 1 has none"), std::string::npos)
        << error.message;
  }
}

TEST_F(Refusing, ADataFileOfAnotherRankIsRefused) {
  train(2, 2);
  const auto data = [&](std::uint32_t rank) {
    return folder(rank, 2) / formats::native::data_file(test_config(0, 2).uuid, Rank{rank});
  };
  overwrite(data(1), 0, ByteView(bytes_of(data(0))).first(4096));
  const auto opened = open(1, 2);
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code, Code::corrupt);
  EXPECT_NE(opened.error().message.find("not the data of rank 1"), std::string::npos)
      << opened.error().message;
}

TEST_F(Refusing, WhatAResumePassesOverIsSaid) {
  train(2, 3);
  const fs::path meta = folder(1, 2) / formats::native::kMetaFile;
  const ByteVector all = bytes_of(meta);
  const auto step_and_words = [&] {
    std::pair<std::uint64_t, std::string> both;
    run_ranks(2, [&](std::uint32_t rank, Agreement& ranks) {
      const auto store = open(rank, 2);
      ASSERT_TRUE(store);
      const auto recovered = (*store)->recover(ranks);
      ASSERT_TRUE(recovered && *recovered);
      if (rank == 0) both = {(**recovered).step, (*store)->passed_over().value_or("")};
    });
    return both;
  };
  EXPECT_EQ(step_and_words(), std::pair(std::uint64_t{3}, std::string()));
  for (std::size_t at = formats::native::kRegionsOffset; at < all.size(); at += 4096) {
    if (formats::load_le<std::uint64_t>(ByteView(all).subspan(at + 40)) != 3) continue;
    overwrite(meta, at + 200, ByteVector(1, all[at + 200] ^ std::byte{1}));
  }
  EXPECT_EQ(step_and_words(),
            std::pair(std::uint64_t{2},
                      "generation 3 (step 3) was passed over: rank 1 does not have it whole in " +
                          meta.string() + " (a snapshot was interrupted, or the file is damaged)"));
}

class FilesInUse : public StoreOnDisk {};

struct Loss {
  std::string_view what;  // the file of rank 1 that is lost, as its message calls it
  void (*lose)(const fs::path& swap, const fs::path& rank);
  std::string_view said, still;  // in the message, in the hint
};
fs::path data_in(const fs::path& rank) {
  for (const auto& entry : fs::directory_iterator(rank))
    if (entry.path().extension() == ".data") return entry.path();
  ADD_FAILURE() << "no data file in " << rank;
  return {};
}
const Loss kLosses[] = {
    {"meta.ebb", [](const fs::path&, const fs::path& rank) { fs::remove(rank / "meta.ebb"); },
     "was removed while", "save_to()"},
    {".data", [](const fs::path&, const fs::path& rank) { fs::remove(data_in(rank)); },
     "was removed while", "save_to()"},
    {".data", [](const fs::path&, const fs::path& rank) { fs::remove_all(rank); },
     "was removed while", "save_to()"},
    {"meta.ebb",
     [](const fs::path&, const fs::path& rank) { fs::resize_file(rank / "meta.ebb", 4096); },
     "was cut here", "save_to()"},
    {".data", [](const fs::path&, const fs::path& rank) { fs::resize_file(data_in(rank), 4096); },
     "was cut here", "save_to()"},
    {".data",
     [](const fs::path&, const fs::path& rank) { fs::rename(rank, rank.string() + ".old"); },
     "was moved away", "move it back"},
};

// On every rank, by the words of the one whose files they were, and every time.
TEST_F(FilesInUse, AreMissedAtTheNextCommitWhenTheyAreRemovedCutOrMoved) {
  for (const Loss& loss : kLosses) {
    SCOPED_TRACE(std::string(loss.said) + " " + std::string(loss.what));
    const fs::path rank = directory_->current()->path / "rank-00001-of-00002";
    loss.lose(folder_ / "swap", rank);
    run_ranks(2, [&](std::uint32_t number, Agreement& ranks) {
      Store& store = *stores_[number];
      const auto committed = write_rank(*io_, store, ranks, 2);
      ASSERT_FALSE(committed);
      const auto cut = store.can_cut();
      ASSERT_FALSE(cut);
      for (const Error& error : {committed.error(), cut.error()}) {
        EXPECT_EQ(error.code, Code::state);
        const auto& text = error.message;
        const std::size_t who = text.find("rank 1: " + rank.string() + "/");
        const std::size_t file = text.find(loss.what, who), what = text.find(loss.said, file);
        EXPECT_TRUE(who != text.npos && file != text.npos && what != text.npos) << text;
        EXPECT_NE(error.hint.find(loss.still), std::string::npos) << error.hint;
        EXPECT_EQ(error.hint.find("will be recovered"), std::string::npos) << error.hint;
      }
    });
    for (auto& store : stores_) store.reset();
    directory_.reset();
    fs::remove_all(folder_ / "swap");
    SetUp();
  }
}

TEST_F(FilesInUse, AreMissedOnEveryRankWhenTheWholeDirectoryGoes) {
  for (const bool moved : {false, true}) {
    moved ? fs::rename(folder_ / "swap", folder_ / "elsewhere")
          : static_cast<void>(fs::remove_all(folder_ / "swap"));
    run_ranks(2, [&](std::uint32_t number, Agreement& ranks) {
      const auto committed = write_rank(*io_, *stores_[number], ranks, 2);
      ASSERT_FALSE(committed);
      EXPECT_NE(
          committed.error().message.find(moved ? ".data was moved away" : ".data was removed"),
          std::string::npos)
          << committed.error().message;
    });
    for (auto& store : stores_) store.reset();
    directory_.reset();
    SetUp();
  }
}

// A relative path leads elsewhere when the process does.
TEST_F(FilesInUse, AreThereWhereverTheProcessGoes) {
  const fs::path before = fs::current_path();
  for (auto& store : stores_) store.reset();
  directory_.reset();
  fs::remove_all(folder_ / "swap");
  fs::current_path(folder_ / ".");
  fs::create_directory("relative");
  run_ranks(2, [&](std::uint32_t rank, Agreement& ranks) {
    Store::Config config = test_config(rank, 2, 3);
    config.directory = fs::path("relative") / "store";
    auto store = Store::create(*io_, config);
    ASSERT_TRUE(store && (*store)->recover(ranks));
    stores_[rank] = std::move(*store);
  });
  fs::current_path(before);
  train(1);
}

// The sentence of the rank whose disk failed, on both.
TEST(PromiseNotKept, IsSaidByTheRankWhoseDiskItWas) {
  const auto disk = disk_with_swap_folder();
  const auto plan = std::make_shared<FaultPlan>();
  const auto io = start_queue(make_fault_backend(make_memory_backend(disk), plan));
  run_ranks(2, [&](std::uint32_t rank, Agreement& ranks) {
    const auto store = Store::create(*io, test_config(rank, 2));
    ASSERT_TRUE(store && (*store)->recover(ranks));
    ASSERT_TRUE(*write_and_commit(*io, **store, ranks, 1));
    if (rank == 1) plan->add({.on = FaultOn::sync, .path_part = "rank-00001-of-00002/meta.ebb"});
    const auto committed = write_and_commit(*io, **store, ranks, 2);
    ASSERT_FALSE(committed);
    const std::string& text = committed.error().message;
    const std::size_t who = text.find("rank 1: "), file = text.find("meta.ebb", who);
    EXPECT_NE(text.find("failed to make data durable", file), std::string::npos) << text;
    EXPECT_NE(committed.error().hint.find("recovers the last committed generation"),
              std::string::npos)
        << committed.error().hint;
  });
}

}  // namespace
}  // namespace ebb::libswap
