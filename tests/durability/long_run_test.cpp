// What a training takes after many steps and snapshots is what it took after few.
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

#include "tests/durability/machines.h"

namespace ebb::test {
namespace {

namespace fs = std::filesystem;
using libmuon::Communicator;

constexpr std::uint64_t kSnapshotEvery = 10;

struct Taken {
  std::uint64_t descriptors = 0, memory_bytes = 0, disk_bytes = 0, files = 0;
};

Taken taken_now(const fs::path& directory) {
  Taken taken;
  for ([[maybe_unused]] const auto& entry : fs::directory_iterator("/proc/self/fd"))
    ++taken.descriptors;
  std::uint64_t pages = 0;
  std::ifstream statm("/proc/self/statm");
  statm >> pages >> pages;
  taken.memory_bytes = pages * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  for (const auto& entry : fs::recursive_directory_iterator(directory)) {
    if (!entry.is_regular_file()) continue;
    ++taken.files;
    taken.disk_bytes += entry.file_size();
  }
  return taken;
}

// Sanitizers keep what was freed.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::uint64_t kMostGrowth = 1u << 30;
#else
constexpr std::uint64_t kMostGrowth = 1u << 20;
#endif

TEST(LongRun, TakesNoMoreAfterManyStepsAndSnapshots) {
  const std::uint64_t steps = brief_or(1500, 100000), warm = steps / 5;
  const TempDir directory;
  auto chosen = libswap::open_backend(libswap::BackendChoice::automatic);
  ASSERT_TRUE(chosen);
  World world(std::move(chosen->backend), directory.path() / "swap", 2);
  Taken before, after;
  for (const auto& answer : world.run([&](Communicator& ranks) -> Result<> {
         EBB_TRY_ASSIGN(auto rank, RankEngine::open(world, ranks, machines_config(2)));
         libmuon::Engine& engine = rank.engine();
         const auto look = [&](Taken& taken) -> Result<> {
           EBB_TRY(engine.wait_snapshot());
           if (ranks.rank() == Rank{0}) taken = taken_now(directory.path());
           EBB_TRY(ranks.agree(0));
           return {};
         };
         for (std::uint64_t step = 1; step <= steps; ++step) {
           EBB_TRY(rank.hand_in(step % 16));  // any gradient will do
           EBB_TRY(rank.step());
           if (step % kSnapshotEvery == 0) EBB_TRY(engine.snapshot());
           if (step == warm) EBB_TRY(look(before));
         }
         EBB_TRY(look(after));
         EXPECT_EQ(engine.committed_step(), steps);
         // On a busy machine most are given up for a later one.
         EXPECT_GE(engine.committed_generation(), steps / kSnapshotEvery / 10);
         return {};
       }))
    EXPECT_TRUE(answer) << answer.error().message;
  std::printf(
      "long run: %llu steps, a snapshot every %llu: %llu descriptors, %llu bytes on disk in "
      "%llu files, %lld bytes of memory more than after %llu\n",
      static_cast<unsigned long long>(steps), static_cast<unsigned long long>(kSnapshotEvery),
      static_cast<unsigned long long>(after.descriptors),
      static_cast<unsigned long long>(after.disk_bytes),
      static_cast<unsigned long long>(after.files),
      static_cast<long long>(after.memory_bytes - before.memory_bytes),
      static_cast<unsigned long long>(warm));
  EXPECT_EQ(after.descriptors, before.descriptors);
  EXPECT_EQ(after.disk_bytes, before.disk_bytes);
  EXPECT_EQ(after.files, before.files);
  EXPECT_LT(after.memory_bytes, before.memory_bytes + kMostGrowth);
}

}  // namespace
}  // namespace ebb::test
