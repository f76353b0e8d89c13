#include "ebb/libswap/testing/memory_backend.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "ebb/libswap/queue/io_queue.h"
#include "tests/libswap/sys/test_files.h"

namespace ebb::libswap {
namespace {

constexpr PowerLoss kAllLost{PowerLoss::Unsynced::lost, 0};
constexpr PowerLoss kAllKept{PowerLoss::Unsynced::kept, 0};

struct Machine {
  explicit Machine(std::shared_ptr<MemoryDisk> used)
      : disk(std::move(used)), queue(value_of(IoQueue::start(make_memory_backend(disk), {}))) {}
  IoBackend& names() { return queue->backend(); }
  FileId open(const char* path) { return value_of(names().open(path, writable())); }
  void write(FileId file, std::uint64_t offset, std::size_t count, char fill) {
    const std::vector<std::byte> bytes(count, static_cast<std::byte>(fill));
    EXPECT_TRUE(succeeded(queue->write(file, offset, bytes)));
  }
  std::string text(const char* path) {
    const FileId file = open(path);
    std::string text(value_of(names().info(file)).size, '?');
    EXPECT_TRUE(succeeded(
        queue->read(file, 0, std::as_writable_bytes(std::span(text.data(), text.size())))));
    return text;
  }
  bool exists(const char* path) { return value_of(names().exists(path)); }

  std::shared_ptr<MemoryDisk> disk;
  std::unique_ptr<IoQueue> queue;
};

std::shared_ptr<MemoryDisk> small_disk() { return MemoryDisk::create(1u << 24); }

PowerLoss drawn(std::uint64_t seed) { return {PowerLoss::Unsynced::drawn, seed}; }

TEST(MemoryDisk, AKilledProcessLosesNothing) {
  const std::shared_ptr<MemoryDisk> disk = small_disk();
  {
    Machine machine(disk);
    machine.write(machine.open("/a"), 0, 10, 'x');
  }
  EXPECT_EQ(Machine(disk).text("/a"), "xxxxxxxxxx");
}

TEST(MemoryDisk, SyncedBytesAndNamesSurviveEveryPowerLoss) {
  Machine machine(small_disk());
  const FileId file = machine.open("/a");
  machine.write(file, 0, 10'000, 'x');
  ASSERT_TRUE(machine.queue->sync_data(file));
  ASSERT_TRUE(machine.names().sync_directory("/"));
  const std::string whole(10'000, 'x');
  EXPECT_EQ(Machine(machine.disk->after(kAllLost)).text("/a"), whole);
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    EXPECT_EQ(Machine(machine.disk->after(drawn(seed))).text("/a"), whole);
  }
}

TEST(MemoryDisk, ASyncedFileWithoutASyncedNameMayBeGone) {
  Machine machine(small_disk());
  const FileId file = machine.open("/a");
  machine.write(file, 0, 10, 'x');
  ASSERT_TRUE(machine.names().sync(file));
  EXPECT_FALSE(Machine(machine.disk->after(kAllLost)).exists("/a"));
  EXPECT_TRUE(Machine(machine.disk->after(kAllKept)).exists("/a"));
}

TEST(MemoryDisk, UnsyncedBlocksSurviveInAnyMixtureAndTorn) {
  Machine machine(small_disk());
  const FileId file = machine.open("/a");
  machine.write(file, 0, 4 * 4096, 'o');
  ASSERT_TRUE(machine.queue->sync_data(file));
  ASSERT_TRUE(machine.names().sync_directory("/"));
  machine.write(file, 0, 4 * 4096, 'n');
  EXPECT_EQ(Machine(machine.disk->after(kAllLost)).text("/a"), std::string(4 * 4096, 'o'));
  EXPECT_EQ(Machine(machine.disk->after(kAllKept)).text("/a"), std::string(4 * 4096, 'n'));
  std::set<std::string> mixtures;
  bool torn = false;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    const std::string text = Machine(machine.disk->after(drawn(seed))).text("/a");
    std::string blocks;
    for (std::size_t block = 0; block < 4; ++block) {
      const std::string_view bytes = std::string_view(text).substr(block * 4096, 4096);
      const bool whole = bytes.find_first_not_of(bytes[0]) == std::string_view::npos;
      torn |= !whole;
      for (std::size_t sector = 0; sector < 4096; sector += 512) {
        EXPECT_EQ(bytes.substr(sector, 512).find_first_not_of(bytes[sector]),
                  std::string_view::npos)
            << "a sector is never torn";
      }
      blocks += whole ? bytes[0] : 't';
    }
    mixtures.insert(blocks);
  }
  EXPECT_TRUE(torn);
  EXPECT_GT(mixtures.size(), 16u);
  EXPECT_TRUE(mixtures.contains("nono") || mixtures.contains("onon"))
      << "later blocks may survive without earlier ones";
}

TEST(MemoryDisk, ARenameIsOldOrNewButNeverHalf) {
  Machine machine(small_disk());
  const FileId old_file = machine.open("/latest");
  machine.write(old_file, 0, 3, 'o');
  ASSERT_TRUE(machine.names().sync(old_file));
  ASSERT_TRUE(machine.names().sync_directory("/"));
  const FileId new_file = machine.open("/tmp");
  machine.write(new_file, 0, 3, 'n');
  ASSERT_TRUE(machine.names().sync(new_file));
  ASSERT_TRUE(machine.names().rename("/tmp", "/latest"));
  std::set<std::string> seen;
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    Machine after(machine.disk->after(drawn(seed)));
    seen.insert(after.text("/latest") + (after.exists("/tmp") ? "+tmp" : ""));
  }
  EXPECT_EQ(seen, (std::set<std::string>{"ooo", "ooo+tmp", "nnn"}));
}

TEST(MemoryDisk, RenamesInOneDirectorySurviveInTheirOrder) {
  Machine machine(small_disk());
  ASSERT_TRUE(machine.names().make_directory("/d"));
  ASSERT_TRUE(machine.names().sync_directory("/"));
  for (const char* name : {"/d/1", "/d/2", "/d/3"}) machine.open(name);
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    Machine after(machine.disk->after(drawn(seed)));
    EXPECT_GE(after.exists("/d/1"), after.exists("/d/2"));
    EXPECT_GE(after.exists("/d/2"), after.exists("/d/3"));
  }
}

TEST(MemoryDisk, AFileMovedToAnotherDirectoryIsNeverInNeither) {
  Machine machine(small_disk());
  for (const char* name : {"/a", "/b"}) ASSERT_TRUE(machine.names().make_directory(name));
  machine.open("/a/f");
  for (const char* name : {"/", "/a"}) ASSERT_TRUE(machine.names().sync_directory(name));
  ASSERT_TRUE(machine.names().rename("/a/f", "/b/f"));
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    Machine after(machine.disk->after(drawn(seed)));
    EXPECT_NE(after.exists("/a/f"), after.exists("/b/f"));
  }
  ASSERT_TRUE(machine.names().sync_directory("/b"));
  EXPECT_TRUE(Machine(machine.disk->after(kAllLost)).exists("/b/f"));
}

TEST(MemoryDisk, AnUnsyncedRemovalMayComeBack) {
  Machine machine(small_disk());
  machine.open("/a");
  ASSERT_TRUE(machine.names().sync_directory("/"));
  ASSERT_TRUE(machine.names().remove("/a"));
  EXPECT_FALSE(machine.exists("/a"));
  EXPECT_TRUE(Machine(machine.disk->after(kAllLost)).exists("/a"));
  ASSERT_TRUE(machine.names().sync_directory("/"));
  EXPECT_FALSE(Machine(machine.disk->after(kAllLost)).exists("/a"));
}

TEST(MemoryDisk, ATruncationIsVolatileAndItsTailReadsAsZeros) {
  Machine machine(small_disk());
  const FileId file = machine.open("/a");
  machine.write(file, 0, 6000, 'x');
  ASSERT_TRUE(machine.names().sync(file));
  ASSERT_TRUE(machine.names().sync_directory("/"));
  ASSERT_TRUE(machine.names().truncate(file, 100));
  EXPECT_EQ(Machine(machine.disk->after(kAllLost)).text("/a"), std::string(6000, 'x'));
  ASSERT_TRUE(machine.names().truncate(file, 5000));
  EXPECT_EQ(machine.text("/a"), std::string(100, 'x') + std::string(4900, '\0'));
  ASSERT_TRUE(machine.names().sync(file));
  EXPECT_EQ(Machine(machine.disk->after(kAllLost)).text("/a"),
            std::string(100, 'x') + std::string(4900, '\0'));
}

TEST(MemoryDisk, AFullDiskSaysSoAndStaysUsable) {
  Machine machine(MemoryDisk::create(64u << 10));
  const FileId file = machine.open("/a");
  ASSERT_TRUE(machine.names().allocate(file, 60u << 10));
  EXPECT_EQ(value_of(machine.names().free_bytes("/")), 4096u);
  const FileId more = machine.open("/b");
  const Result<> refused = machine.names().allocate(more, 8192);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::no_space);
  const std::vector<std::byte> bytes(8192);
  EXPECT_EQ(machine.queue->write(more, 0, bytes).error().code, Code::no_space);
  machine.write(file, 0, 60u << 10, 'x');
  machine.write(more, 0, 4096, 'y');
}

TEST(MemoryBackend, LocksEndWithTheBackendThatTookThem) {
  const std::shared_ptr<MemoryDisk> disk = small_disk();
  Machine second(disk);
  const FileId file = second.open("/lock");
  {
    Machine first(disk);
    ASSERT_TRUE(first.names().lock(first.open("/lock")));
    const Result<> refused = second.names().lock(file);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, Code::busy);
  }
  EXPECT_TRUE(second.names().lock(file));
}

TEST(MemoryBackend, NamesBehaveLikeAFileSystem) {
  Machine machine(small_disk());
  IoBackend& names = machine.names();
  EXPECT_FALSE(names.make_directory("/a/b")) << "no parent";
  ASSERT_TRUE(names.make_directory("/a"));
  ASSERT_TRUE(names.make_directory("/a")) << "existing is fine";
  ASSERT_TRUE(names.make_directory("/a/b"));
  machine.open("/a/f");
  EXPECT_FALSE(names.make_directory("/a/f"));
  EXPECT_FALSE(names.remove("/a")) << "not empty";
  EXPECT_FALSE(names.open("/a", {})) << "a directory";
  EXPECT_FALSE(names.open("/a/f/g", writable())) << "a file is no directory";
  EXPECT_EQ(value_of(names.list("/a")), (std::vector<std::string>{"b", "f"}));
  EXPECT_FALSE(names.rename_new("/a/f", "/a/b"));
  EXPECT_FALSE(names.rename("/a/f", "/a/b")) << "a directory is in the way";
  ASSERT_TRUE(names.rename("/a", "/c"));
  EXPECT_TRUE(machine.exists("/c/f"));
  EXPECT_TRUE(machine.exists("c/../c/f")) << "relative paths start at the root";
  EXPECT_FALSE(machine.exists("/a"));
}

TEST(MemoryBackend, RefusesMisalignedDirectTransfersAsAKernelDoes) {
  Machine machine(small_disk());
  const FileId file = value_of(machine.names().open("/a", writable(Direct::required)));
  const std::vector<std::byte> bytes(100);
  const Result<> refused = machine.queue->write(file, 0, bytes);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("EINVAL"), std::string::npos);
}

}  // namespace
}  // namespace ebb::libswap
