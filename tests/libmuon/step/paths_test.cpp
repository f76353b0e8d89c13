// Ranks on several disks, and several ranks on one, at stated speeds: times are ratios of one run.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>

#include "ebb/libswap/store/rank_shares.h"
#include "ebb/libswap/sys/process.h"
#include "ebb/libswap/testing/memory_backend.h"
#include "ebb/libswap/testing/paced_backend.h"
#include "tests/libmuon/support/training.h"
#include "tests/libmuon/support/world.h"

namespace ebb::test::paths_tests {
namespace {

using libmuon::Communicator;
using libswap::PacedDisk;
using Clock = std::chrono::steady_clock;

constexpr std::uint32_t kRanks = 4;
constexpr double kSpeed = 4e6;  // bytes a second, of the slow disk

// All ranks have the same to page.
libmuon::EngineConfig paged_config() {
  libmuon::ModelSpec model;
  model.groups = {libmuon::MuonSpec::keller()};
  for (std::uint32_t i = 0; i < 2 * kRanks; ++i)
    model.params.push_back({"matrix." + std::to_string(i), {64, 64}, 0});
  return config_of({.ranks = kRanks, .gradients = Policy::zero3, .budget_bytes = 4 * 4096}, model);
}

// Each rank in the directory of its disk.
struct Trained {
  double seconds = 0;          // of the steps
  std::vector<float> weights;  // rank 0's
};

Trained train_on(const std::vector<PacedDisk>& disks, const std::vector<std::uint32_t>& disk_of) {
  auto io = libswap::IoQueue::start(
      libswap::make_paced_backend(
          libswap::make_memory_backend(libswap::MemoryDisk::create(1u << 28)), disks),
      {.chunk_bytes = 4096, .read_bytes_in_flight = 8192, .write_bytes_in_flight = 8192});
  EBB_CHECK(io.has_value());
  for (const PacedDisk& disk : disks)
    EBB_CHECK((*io)->backend().make_directory("/" + disk.path_part).has_value());
  auto ranks = libmuon::make_thread_ranks(kRanks);
  Trained trained;
  std::vector<std::thread> threads;
  const auto one = [&](Communicator& world) -> Result<> {
    const std::uint32_t me = index_of(world.rank());
    EBB_TRY_ASSIGN(const auto swap,
                   libswap::SwapDirectory::open(**io, "/" + disks[disk_of[me]].path_part, world));
    EBB_TRY_ASSIGN(auto rank, RankEngine::open(**io, *swap, world, paged_config()));
    Clock::time_point begin;
    for (std::uint64_t step = 0; step < 4; ++step) {
      EBB_TRY(rank.hand_in(step));
      EBB_TRY(rank.step());
      if (step == 0) begin = Clock::now();  // the first one warms up
    }
    if (me != 0) return {};
    trained.seconds = libswap::seconds_since(begin);
    trained.weights = rank.flat_weights();
    return {};
  };
  for (auto& world : ranks)
    threads.emplace_back([&] {
      const Result<> done = one(*world);
      EXPECT_TRUE(done) << done.error().message;
      if (!done) world->abort();
    });
  for (std::thread& thread : threads) thread.join();
  return trained;
}

// Three of four ranks where the disk is three times as fast, instead of half of them.
TEST(SeveralPaths, WeightsLetAllDisksBeDoneTogether) {
  const std::vector<PacedDisk> disks = {{"fast", 3 * kSpeed}, {"slow", kSpeed}};
  const auto evenly = libswap::share_out(kRanks, std::vector<double>{1, 1});
  const auto weighted = libswap::share_out(kRanks, std::vector<double>{3, 1});
  ASSERT_TRUE(evenly && weighted);
  Trained even = train_on(disks, *evenly), well = train_on(disks, *weighted);
  EXPECT_EQ(even.weights, well.weights);
  // Others may use the processor: the best of some.
  for (int again = 0; again < 8 && well.seconds >= 0.8 * even.seconds; ++again) {
    even.seconds = std::min(even.seconds, train_on(disks, *evenly).seconds);
    well.seconds = std::min(well.seconds, train_on(disks, *weighted).seconds);
  }
  EXPECT_LT(well.seconds, 0.8 * even.seconds) << well.seconds << " and " << even.seconds;
}

// What one rank asks for does not hold back another that shares its disk.
TEST(SeveralPaths, RanksOnOneDiskShareItFairly) {
  auto started = libswap::IoQueue::start(
      libswap::make_paced_backend(
          libswap::make_memory_backend(libswap::MemoryDisk::create(1u << 28)), {{"disk", 64e6}}),
      {.chunk_bytes = 64u << 10, .read_bytes_in_flight = 256u << 10});
  ASSERT_TRUE(started);
  libswap::IoQueue& io = **started;
  std::vector<std::byte> memory(4u << 20);
  std::vector<libswap::FileId> files;
  for (const char* name : {"/disk-0", "/disk-1"}) {
    auto file = io.backend().open(
        name, {.access = libswap::Access::read_write, .creation = libswap::Creation::create_new});
    ASSERT_TRUE(file);
    ASSERT_TRUE(io.backend().truncate(*file, memory.size()));
    files.push_back(*file);
  }
  std::atomic<double> much = 0, little = 0;
  const Clock::time_point begin = Clock::now();
  const auto ask = [&](std::size_t file, std::uint64_t bytes, std::atomic<double>& done) {
    io.submit({.kind = libswap::RawOp::Kind::read,
               .file = files[file],
               .offset = 0,
               .data = std::span(memory).first(bytes),
               .done = [&done, begin](const Result<>& read) {
                 EXPECT_TRUE(read);
                 done = libswap::seconds_since(begin);
               }});
  };
  ask(0, memory.size(), much);
  ask(1, memory.size() / 8, little);
  while (much == 0 || little == 0) libswap::sleep_for_seconds(1e-3);
  EXPECT_LT(little, 0.5 * much) << "it was to have a half of the disk until it was done";
}

}  // namespace
}  // namespace ebb::test::paths_tests
