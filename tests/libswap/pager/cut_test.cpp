// Cuts beside rounds: what recovers, what waits for what, which errors cost which cut.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "ebb/libswap/sys/process.h"
#include "tests/libswap/pager/pager_rig.h"

namespace ebb::test {
namespace {

TEST(Pager, WritesAResidentTileOfACutBeforeItIsModified) {
  for (const std::uint64_t budget : {1u, 7u, 12u, 30u}) {
    Rig rig(30, budget);
    ASSERT_TRUE(rig.create());
    ASSERT_TRUE(rig.update(1));
    rig.store->cut(1);
    rig.cache->begin_cut();
    // The next step runs while the cut is being written.
    Result<> finished, prepared;
    std::thread committer([&] {
      finished = rig.cache->finish_cut();
      if (finished) prepared = rig.store->prepare(rig.manifest());
    });
    ASSERT_TRUE(rig.update(2));
    committer.join();
    ASSERT_TRUE(finished) << finished.error().message;
    ASSERT_TRUE(prepared) << prepared.error().message;
    Alone alone;
    ASSERT_EQ(*rig.store->agree(alone, prepared), Store::Settled::committed);
    // What recovers is step 1, not step 2.
    rig.close();
    rig.store.reset();
    rig.store = std::move(*Store::open(*rig.io, "/store", Rank{0}, 1));
    const auto manifest = rig.store->recover(alone);
    ASSERT_TRUE(manifest) << manifest.error().message;
    ASSERT_TRUE((*manifest).has_value());
    EXPECT_EQ((**manifest).step, 1u);
    rig.open();
    ASSERT_TRUE(rig.cache->load_residents());
    ASSERT_TRUE(rig.update(2)) << "finds step 1 in every tile";
  }
}

TEST(Pager, ManyCutsUnderWayNeverLoseATile) {
  Rig rig(25, 8);
  ASSERT_TRUE(rig.create());
  for (std::uint64_t step = 1; step <= 30; ++step) {
    ASSERT_TRUE(rig.update(step));
    if (step % 3 == 0) {
      const auto committed = rig.commit(step);
      ASSERT_TRUE(committed) << committed.error().message;
      EXPECT_TRUE(*committed);
    }
  }
  EXPECT_EQ(rig.store->committed_generation(), 10u);
}

TEST(Pager, AResidentTileThatCouldNotBeWrittenIsWrittenByTheNextCut) {
  Rig rig(8, 8);
  ASSERT_TRUE(rig.create());
  ASSERT_TRUE(*rig.commit(0));
  ASSERT_TRUE(rig.update(1));
  rig.faults->add({.on = libswap::FaultOn::write,
                   .at = 3,
                   .count = libswap::FaultPlan::kForEver,
                   .path_part = ".data"});
  rig.store->cut(1);
  rig.cache->begin_cut();
  const auto finished = rig.cache->finish_cut();
  ASSERT_FALSE(finished);
  EXPECT_EQ(finished.error().code, Code::io);
  rig.faults->clear();
  Alone alone;
  ASSERT_EQ(*rig.store->agree(alone, finished), Store::Settled::abandoned);
  ASSERT_TRUE(rig.update(2));
  ASSERT_TRUE(*rig.commit(2));
  rig.close();
  rig.open();
  ASSERT_TRUE(rig.cache->load_residents());
  ASSERT_TRUE(rig.update(3)) << "finds step 2 in every tile";
}

TEST(Pager, AResidentTileWhoseWriteFailsATimeOrTwoIsPartOfItsCut) {
  Rig rig(8, 8);
  ASSERT_TRUE(rig.create());
  ASSERT_TRUE(rig.update(1));
  rig.faults->add({.on = libswap::FaultOn::write, .at = 3, .count = 2, .path_part = ".data"});
  ASSERT_TRUE(*rig.commit(1));
  EXPECT_EQ(rig.cache->stats().retries, 2u);
}

// Tiles as the trace shows them written.
std::vector<std::uint64_t> written(const std::string& json) {
  std::vector<std::uint64_t> tiles;
  const std::string before = "\"name\":\"write-behind\"", number = "\"tile\":";
  for (std::size_t at = json.find(before); at != std::string::npos; at = json.find(before, at + 1))
    tiles.push_back(std::stoull(json.substr(json.find(number, at) + number.size())));
  return tiles;
}

TEST(Pager, ACutIsWrittenInTheOrderInWhichTheNextRoundChangesIt) {
  constexpr std::uint64_t kTiles = 20;
  libswap::Trace trace;
  Rig rig(kTiles, kTiles, {.trace = &trace});
  ASSERT_TRUE(rig.create());
  std::ranges::reverse(rig.order);
  std::swap(rig.order[3], rig.order[11]);
  rig.close();
  rig.open();
  ASSERT_TRUE(rig.round(Use::create, 0, [](auto, auto) {}));
  ASSERT_TRUE(*rig.commit(0));
  EXPECT_EQ(written(trace.to_chrome_json()), rig.order);
}

// Half of the state is resident, the disk does nothing but the round's reads and writes, one of
// each at a time, and the next round begins with the cut.
TEST(Pager, ARoundBesideACutWaitsForNoMoreThanTheDisk) {
  constexpr std::uint64_t kTiles = 24, kBudget = 18;
  Rig rig(
      kTiles, kBudget,
      {.threads = 2,
       .bytes_per_s = 5e5,
       .io = {
           .chunk_bytes = kTile, .read_bytes_in_flight = kTile, .write_bytes_in_flight = kTile}});
  ASSERT_EQ(rig.budget.resident, kTiles / 2);
  ASSERT_TRUE(rig.create());
  ASSERT_TRUE(rig.update(1));
  rig.store->cut(1);
  rig.cache->begin_cut();
  Result<> finished;
  std::thread committer([&] { finished = rig.cache->finish_cut(); });
  const auto begin = std::chrono::steady_clock::now();
  ASSERT_TRUE(rig.update(2));
  const double seconds = libswap::seconds_since(begin);
  committer.join();
  ASSERT_TRUE(finished) << finished.error().message;
  // 0.44; 0.73 where the cut's writes stand back behind the round's.
  EXPECT_LT(rig.cache->stats().stall_cut_s, 0.6 * seconds) << "of " << seconds;
}

}  // namespace
}  // namespace ebb::test
