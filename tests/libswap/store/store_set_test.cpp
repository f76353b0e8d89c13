#include "ebb/libswap/store/store_set.h"

#include <gtest/gtest.h>

#include <fstream>

#include "ebb/libswap/sys/posix_backend.h"
#include "ebb/libswap/testing/fault_backend.h"
#include "tests/libswap/store/store_world.h"
#include "tests/libswap/sys/test_files.h"

namespace ebb::libswap {
namespace {

using formats::native::Uuid;

// A directory in memory that is opened, used and opened again, as by one process after another.
class SwapDirectoryTest : public testing::Test {
 protected:
  std::shared_ptr<MemoryDisk> disk_ = disk_with_swap_folder();
  std::unique_ptr<IoQueue> io_;
  std::unique_ptr<SwapDirectory> directory_;
  Alone alone_;  // as the thread that owns the directory sees its ranks

  void reopen() {
    directory_.reset();
    io_ = start_queue(disk_);
    auto opened = SwapDirectory::open(*io_, "/swap");
    ASSERT_TRUE(opened) << opened.error().message;
    directory_ = std::move(*opened);
  }
  // Creates the fresh store with `generations` commits on each of `world` ranks.
  void make_fresh(std::uint32_t world, std::uint64_t generations, const Uuid& parent = {}) {
    const auto fresh = directory_->fresh(alone_);
    ASSERT_TRUE(fresh);
    run_ranks(world, [&](std::uint32_t rank, Agreement& ranks) {
      Store::Config config = test_config(rank, world);
      config.directory = fresh->path;
      config.uuid = fresh->uuid;
      config.parent = parent;
      auto store = Store::create(*io_, config);
      ASSERT_TRUE(store) << store.error().message;
      ASSERT_TRUE((*store)->recover(ranks));
      for (std::uint64_t step = 1; step <= generations; ++step)
        ASSERT_TRUE(*write_and_commit(*io_, **store, ranks, step));
    });
  }
  std::vector<std::string> names() { return *io_->backend().list("/swap"); }
};

TEST_F(SwapDirectoryTest, IsEmptyAtFirstAndTakesTheStoreThatWasCommitted) {
  reopen();
  EXPECT_FALSE(directory_->current());
  const auto fresh = directory_->fresh(alone_);
  EXPECT_EQ(directory_->fresh(alone_)->uuid, fresh->uuid);
  const auto too_early = directory_->adopt(alone_);
  EXPECT_FALSE(too_early);
  make_fresh(2, 1);
  ASSERT_TRUE(directory_->adopt(alone_));
  ASSERT_TRUE(directory_->adopt(alone_));
  ASSERT_TRUE(directory_->current());
  EXPECT_EQ(directory_->current()->uuid, fresh->uuid);
  EXPECT_EQ(directory_->current()->world, 2u);
  EXPECT_NE(directory_->fresh(alone_)->uuid, fresh->uuid);
  reopen();
  EXPECT_EQ(directory_->current()->uuid, fresh->uuid);
  EXPECT_EQ(directory_->current()->tile_bytes, kTestTile);
  EXPECT_EQ(directory_->current()->layout_digest, 99u);
}

TEST_F(SwapDirectoryTest, ReplacesAStoreOnlyOnceItsSuccessorIsCommitted) {
  reopen();
  make_fresh(2, 2);
  ASSERT_TRUE(directory_->adopt(alone_));
  const Uuid first = directory_->current()->uuid;
  make_fresh(3, 0, first);
  reopen();  // a crash before the successor's first commit
  EXPECT_EQ(directory_->current()->uuid, first);
  EXPECT_EQ(names().size(), 2u);  // lock and the first store: the leftover is gone
  make_fresh(3, 1, first);
  const Uuid second = directory_->fresh(alone_)->uuid;
  reopen();  // a crash after it, before the first was removed
  EXPECT_EQ(directory_->current()->uuid, second);
  EXPECT_EQ(directory_->current()->world, 3u);
  EXPECT_EQ(names().size(), 2u);
}

TEST_F(SwapDirectoryTest, NeverRemovesAStoreThatMayHaveBeenCommitted) {
  reopen();
  make_fresh(2, 2);
  ASSERT_TRUE(directory_->adopt(alone_));
  const fs::path rank = directory_->current()->path / "rank-00001-of-00002";
  ASSERT_TRUE(io_->backend().remove(rank / "meta.ebb"));
  directory_.reset();
  io_ = start_queue(disk_);
  const auto opened = SwapDirectory::open(*io_, "/swap");
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code, Code::incomplete);
  EXPECT_NE(opened.error().message.find("rank-00001-of-00002/meta.ebb"), std::string::npos)
      << opened.error().message;
  EXPECT_EQ(names().size(), 2u);
}

TEST_F(SwapDirectoryTest, RefusesToChooseBetweenTwoStores) {
  reopen();
  make_fresh(1, 1);
  ASSERT_TRUE(directory_->adopt(alone_));
  make_fresh(1, 1);  // no parent: somebody copied it here
  directory_.reset();
  io_ = start_queue(disk_);
  const auto opened = SwapDirectory::open(*io_, "/swap");
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code, Code::state);
}

TEST_F(SwapDirectoryTest, AStoreThatCommittedNothingReplacesNone) {
  reopen();
  make_fresh(1, 2);
  ASSERT_TRUE(directory_->adopt(alone_));
  const Uuid first = directory_->current()->uuid;
  make_fresh(1, 0, first);
  const auto adopted = directory_->adopt(alone_);
  ASSERT_FALSE(adopted);
  EXPECT_EQ(adopted.error().code, Code::state);
  EXPECT_EQ(directory_->current()->uuid, first);
  EXPECT_TRUE(*io_->backend().exists(directory_->current()->path));
}

// In every way to write it, and under a name of the user's own.
TEST_F(SwapDirectoryTest, AStoreThatIsGivenForItsDirectoryIsRefusedAndTheDirectoryNamed) {
  reopen();
  make_fresh(2, 1);
  ASSERT_TRUE(directory_->adopt(alone_));
  const fs::path store = directory_->current()->path;
  directory_.reset();
  ASSERT_TRUE(io_->backend().make_directory("/swap/deeper"));
  const auto refused = [&](const fs::path& given, std::vector<fs::path> sources = {}) {
    const auto opened = SwapDirectory::open(*io_, given, alone_, std::move(sources));
    ASSERT_FALSE(opened) << given;
    EXPECT_EQ(opened.error().code, Code::usage);
    EXPECT_NE(opened.error().message.find("store, not a directory that holds"), std::string::npos)
        << opened.error().message;
    const std::string& hint = opened.error().hint;
    EXPECT_TRUE(hint.ends_with(": /swap") || hint.ends_with(": /swap/")) << hint;
  };
  refused(store);
  refused(store / "");
  refused("/swap/deeper/.." / store.filename());
  refused(store / "rank-00001-of-00002");
  refused("/other", {store});
  ASSERT_TRUE(io_->backend().rename(store, "/swap/mine"));
  refused("/swap/mine");
  EXPECT_EQ(io_->backend().list("/swap/mine")->size(), 2u);  // nothing was made in it
  const auto other = io_->backend().exists("/other");
  EXPECT_TRUE(other && !*other);
}

TEST_F(SwapDirectoryTest, AStoreThatWasRenamedIsNotPassedOverWithoutAWord) {
  reopen();
  make_fresh(2, 1);
  ASSERT_TRUE(directory_->adopt(alone_));
  const fs::path store = directory_->current()->path;
  directory_.reset();
  ASSERT_TRUE(io_->backend().rename(store, "/swap/best"));
  const auto opened = SwapDirectory::open(*io_, "/swap");
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code, Code::state);
  const std::string words = "/swap/best is the store that was called " + store.filename().string();
  EXPECT_NE(opened.error().message.find(words), std::string::npos) << opened.error().message;
  // Beside one that is resumed it is said.
  ASSERT_TRUE(io_->backend().rename("/swap/best", "/best"));
  reopen();
  EXPECT_EQ(directory_->passed_over(), "");
  make_fresh(2, 1);
  ASSERT_TRUE(directory_->adopt(alone_));
  ASSERT_TRUE(io_->backend().rename("/best", "/swap/best"));
  directory_.reset();
  reopen();
  EXPECT_EQ(directory_->passed_over(), "; passed over: " + words);
}

TEST(SwapDirectoryIsNew, ItsNameSurvivesAPowerLoss) {
  for (const fs::path name : {"/runs/swap", "/runs/swap/"}) {
    const auto disk = MemoryDisk::create(64u << 20);
    const auto io = start_queue(disk);
    ASSERT_TRUE(io->backend().make_directory("/runs") && io->backend().sync_directory("/"));
    ASSERT_TRUE(SwapDirectory::open(*io, name));
    const auto after = start_queue(disk->after({PowerLoss::Unsynced::lost, 0}));
    EXPECT_TRUE(*after->backend().exists("/runs/swap")) << name;
  }
}

// Kills the process before each durable operation of {open, create a successor, commit, adopt} in
// turn.
TEST_F(SwapDirectoryTest, AtEveryCrashExactlyOneStoreIsCurrent) {
  reopen();
  make_fresh(2, 1);
  ASSERT_TRUE(directory_->adopt(alone_));
  const Uuid first = directory_->current()->uuid;
  directory_.reset();
  io_.reset();
  const auto before = disk_;
  std::uint64_t survived_old = 0, survived_new = 0;
  for (std::uint64_t kill_at = 0;; ++kill_at) {
    disk_ = before->after({PowerLoss::Unsynced::kept, 0});
    auto plan = std::make_shared<FaultPlan>();
    plan->add({.on = FaultOn::durable, .at = kill_at, .kind = FaultKind::die});
    {
      const auto io = start_queue(make_fault_backend(make_memory_backend(disk_), plan));
      auto opened = SwapDirectory::open(*io, "/swap");
      if (opened) {
        const auto fresh = (*opened)->fresh(alone_);
        run_ranks(2, [&](std::uint32_t rank, Agreement& ranks) {
          Store::Config config = test_config(rank, 2);
          config.directory = fresh->path;
          config.uuid = fresh->uuid;
          config.parent = first;
          auto store = Store::create(*io, config);
          if (!store || !(*store)->recover(ranks)) return;
          static_cast<void>(write_and_commit(*io, **store, ranks, 1).has_value());
        });
        static_cast<void>((*opened)->adopt(alone_).has_value());
      }
    }
    if (!plan->died()) break;
    for (const auto unsynced : {PowerLoss::Unsynced::lost, PowerLoss::Unsynced::kept}) {
      const auto disk = disk_->after({unsynced, kill_at});
      const auto io = start_queue(disk);
      const auto opened = SwapDirectory::open(*io, "/swap");
      ASSERT_TRUE(opened) << kill_at << ": " << opened.error().message;
      ASSERT_TRUE((*opened)->current()) << kill_at;
      (*opened)->current()->uuid == first ? ++survived_old : ++survived_new;
      EXPECT_EQ(io->backend().list("/swap")->size(), 2u) << kill_at;
    }
  }
  EXPECT_GT(survived_old, 20u);
  EXPECT_GT(survived_new, 5u);
}

TEST(SwapDirectoryOnDisk, ASecondTrainerOfThisProcessIsRefusedAsSuch) {
  const TemporaryDirectory folder;
  auto backend = open_backend(BackendChoice::threads);
  ASSERT_TRUE(backend);
  const auto io = start_queue(std::move(backend->backend));
  const auto first = SwapDirectory::open(*io, folder / "swap");
  ASSERT_TRUE(first) << first.error().message;
  const auto second = SwapDirectory::open(*io, folder / "swap");
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, Code::busy);
  EXPECT_TRUE(second.error().message.ends_with("is locked by this process"))
      << second.error().message;
}

// What lies beside stores and is not Ebb's, in names that look like it.
class OthersData : public testing::Test {
 protected:
  const TemporaryDirectory folder_;
  const std::string hex_ = std::string(32, 'a');
  std::unique_ptr<IoQueue> io_ = start_queue(*make_threads_backend(1));

  void write(const fs::path& path) {
    fs::create_directories(path.parent_path());
    std::ofstream(path) << "a thesis";
  }
  testing::AssertionResult opens() {
    const auto opened = SwapDirectory::open(*io_, folder_ / "swap");
    if (opened) return testing::AssertionSuccess();
    return testing::AssertionFailure() << opened.error().message;
  }
};

TEST_F(OthersData, StaysBesideTheStoresAndBehindLinks) {
  const fs::path swap = folder_ / "swap";
  const fs::path out = folder_ / "out";
  const std::string rank = "rank-00000-of-00001";
  const std::vector<fs::path> kept = {
      out / rank / "lock",                                  // behind the links
      swap / "removed-elsewhere" / rank / "lock",           // no uuid
      swap / ("removed-" + hex_ + "0") / rank / "lock",     // one digit more
      swap / ("removed-" + hex_) / "notes" / "thesis.txt",  // the right name, but not ours
      swap / ("removed-" + hex_) / rank / "thesis.txt",
      swap / ("store-" + std::string(32, 'b')) / "thesis.txt",
      swap / "removed-note.txt",
      swap / ("removed-" + std::string(32, 'c')),
      swap / ("store-" + std::string(32, 'd')),
      swap / ("store-" + std::string(32, 'f')) / "rank-00000-of-00001",
  };
  for (const fs::path& path : kept) write(path);
  write(swap / ("removed-" + hex_) / rank / "meta.ebb");
  write(swap / ("removed-" + hex_) / rank / (hex_ + "-00000.data"));
  fs::create_symlink(out, swap / ("removed-" + std::string(32, '1')));
  fs::create_symlink(out / rank, swap / ("removed-" + hex_) / "rank-00001-of-00002");
  fs::create_symlink(out / rank / "lock", swap / ("removed-" + hex_) / rank / "lock");
  ASSERT_TRUE(opens());
  for (const fs::path& path : kept) EXPECT_TRUE(fs::is_regular_file(path)) << path;
  EXPECT_TRUE(fs::is_symlink(swap / ("removed-" + std::string(32, '1'))));
  EXPECT_TRUE(fs::is_symlink(swap / ("removed-" + hex_) / rank / "lock"));
  EXPECT_FALSE(fs::exists(swap / ("removed-" + hex_) / rank / "meta.ebb"));  // that was ours
  EXPECT_FALSE(fs::exists(swap / ("removed-" + hex_) / rank / (hex_ + "-00000.data")));
}

TEST_F(OthersData, WhatAKilledRankLeftWhileItJoinedIsRemoved) {
  const fs::path swap = folder_ / "swap";
  const std::vector<fs::path> kept = {swap / "joining-notes-00001", swap / ("joining-" + hex_),
                                      swap / ("joining-" + hex_ + "-00004") / "thesis.txt"};
  for (const fs::path& path : kept) write(path);
  write(swap / ("joining-" + hex_ + "-00003"));
  ASSERT_TRUE(opens());
  for (const fs::path& path : kept) EXPECT_TRUE(fs::is_regular_file(path)) << path;
  EXPECT_FALSE(fs::exists(swap / ("joining-" + hex_ + "-00003")));
}

TEST_F(OthersData, AHalfRemovedStoreIsRemovedWhole) {
  const fs::path removed = folder_ / "swap" / ("removed-" + hex_);
  write(removed / "rank-00000-of-00002" / "lock");
  write(removed / "rank-00001-of-00002" / "meta.ebb");
  write(removed / "rank-00001-of-00002" / (hex_ + "-00001.data"));
  ASSERT_TRUE(opens());
  EXPECT_FALSE(fs::exists(removed));
}

}  // namespace
}  // namespace ebb::libswap
