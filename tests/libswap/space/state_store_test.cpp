// The facade: nobody here writes a manifest, a slot or a cut.
#include "ebb/libswap/space/state_store.h"

#include <thread>

#include "ebb/libmuon/comm/communicator.h"
#include "tests/libswap/space/space_rig.h"
#include "tests/libswap/sys/test_files.h"

namespace ebb::libswap::space_tests {
namespace {

using Visit = StateStore::Visit;

std::vector<StoredTensor> some_tensors() {
  std::vector<StoredTensor> tensors;
  for (std::uint64_t i = 0; i < 20; ++i)
    tensors.push_back(
        {"w" + std::to_string(i), {1 + i * i, 7}, {{"master"}, {"count", DType::i64}}});
  return tensors;
}

Result<> begin(const Visit& visit) {
  EBB_TRY_ASSIGN(const auto w, visit.state<float>("master"));
  for (std::size_t k = 0; k < w.size(); ++k) w[k] = static_cast<float>(visit.range().first + k);
  return {};
}
// After `step` of these an element is its number and `step` more.
Result<> add_one(const Visit& visit) {
  EBB_TRY_ASSIGN(const auto w, visit.state<float>("master"));
  EBB_TRY_ASSIGN(const auto count, visit.state<std::int64_t>("count"));
  for (float& one : w) one += 1;
  for (std::int64_t& one : count) ++one;
  return {};
}
Result<> expect_at(std::uint64_t step, const Visit& visit) {
  EBB_TRY_ASSIGN(const auto w, visit.state<float>("master"));
  EBB_TRY_ASSIGN(const auto count, visit.state<std::int64_t>("count"));
  for (std::size_t k = 0; k < w.size(); ++k)
    EXPECT_EQ(w[k], static_cast<float>(visit.range().first + k + step));
  for (const std::int64_t one : count) EXPECT_EQ(one, static_cast<std::int64_t>(step));
  return {};
}

TEST(StateStore, GoesOnAtItsLastSnapshot) {
  const TemporaryDirectory folder;
  for (std::uint64_t run = 0; run < 3; ++run) {
    const auto store = StateStore::open(config_in(folder / "swap"), some_tensors(), begin);
    ASSERT_TRUE(ok(store));
    EXPECT_EQ((*store)->step(), 3 * run);
    ASSERT_TRUE(ok((*store)->read_each([&](const Visit& v) { return expect_at(3 * run, v); })));
    for (std::uint64_t step = 3 * run + 1; step <= 3 * run + 5; ++step) {
      ASSERT_TRUE(ok((*store)->for_each(step, add_one)));
      if (step == 3 * run + 3) {
        ASSERT_TRUE(ok((*store)->snapshot()));
      }
    }
    ASSERT_TRUE(ok((*store)->wait_snapshot()));
  }
}

TEST(StateStore, AStepThatWasCutGoesOnWhereItWas) {
  const TemporaryDirectory folder;
  const auto store = StateStore::open(config_in(folder / "swap"), some_tensors(), begin);
  ASSERT_TRUE(ok(store));
  std::size_t visits = 0;
  const auto fails_at_7 = [&](const Visit& visit) -> Result<> {
    EBB_TRY(add_one(visit));
    ++visits;
    if (visit.tensor() == 7 && visits == 8) return Error{Code::usage, "no gradient yet"};
    return {};
  };
  EXPECT_TRUE(refused((*store)->for_each(1, fails_at_7), Code::usage, "no gradient yet"));
  EXPECT_EQ((*store)->step(), 0u);
  EXPECT_TRUE(refused((*store)->snapshot(), Code::state));
  EXPECT_TRUE(refused((*store)->for_each(2, fails_at_7), Code::usage, "step 1 was cut"));
  ASSERT_TRUE(ok((*store)->for_each(1, fails_at_7)));
  EXPECT_EQ(visits, 21u);
  EXPECT_EQ((*store)->step(), 1u);
  ASSERT_TRUE(ok((*store)->read_each([](const Visit& visit) { return expect_at(1, visit); })));
  EXPECT_TRUE(refused((*store)->for_each(1, add_one), Code::usage));
  EXPECT_TRUE(ok((*store)->snapshot()));
}

// A path that it gave itself, and a copy of its store that has no store's name.
TEST(StateStore, ItsStoreIsNoDirectoryForAnotherAndACopyIsSaid) {
  const TemporaryDirectory folder;
  std::filesystem::path kept;
  {
    const auto store = StateStore::open(config_in(folder / "swap"), some_tensors(), begin);
    ASSERT_TRUE(ok(store));
    kept = (*store)->store_directory();
  }
  EXPECT_TRUE(refused(StateStore::open(config_in(kept), some_tensors(), begin), Code::usage,
                      "name the directory it lies in: " + (folder / "swap").string()));
  std::filesystem::copy(kept, folder / "swap/before", std::filesystem::copy_options::recursive);
  {
    const auto store = StateStore::open(config_in(folder / "swap"), some_tensors(), begin);
    ASSERT_TRUE(ok(store));
    EXPECT_NE((*store)->origin().find("passed over: " + (folder / "swap/before").string()),
              std::string::npos)
        << (*store)->origin();
  }
  std::filesystem::remove_all(kept);
  EXPECT_TRUE(refused(StateStore::open(config_in(folder / "swap"), some_tensors(), begin),
                      Code::state, "swap/before is the store that was called store-"));
}

// Twenty tensors share a tile, and a quarter of the tiles fit.
TEST(StateStore, ATileComesOnceAStepHoweverManyTensorsShareIt) {
  const TemporaryDirectory folder;
  std::vector<StoredTensor> tensors;
  for (std::uint64_t i = 0; i < 4000; ++i)
    tensors.push_back({"w" + std::to_string(i), {13}, {{"master"}, {"momentum"}}});
  const auto nothing = [](const Visit&) { return Result<>(); };
  StateStoreConfig config = config_in(folder / "swap");
  config.budget_bytes = 50 * kTile;
  const auto store = StateStore::open(config, tensors, nothing);
  ASSERT_TRUE(ok(store));
  ASSERT_TRUE(ok((*store)->for_each(1, nothing)));
  const std::uint64_t before = (*store)->stats().pager.read_bytes;
  for (std::uint64_t step = 2; step < 6; ++step) ASSERT_TRUE(ok((*store)->for_each(step, nothing)));
  const std::uint64_t tiles = formats::div_ceil(4000, 4096 / 128);
  EXPECT_LE((*store)->stats().pager.read_bytes - before, 4 * (tiles - 20) * kTile);
}

TEST(StateStore, AStateThatIsNotThereOrOfAnotherTypeIsAnError) {
  const TemporaryDirectory folder;
  const auto store = StateStore::open(config_in(folder / "swap"), some_tensors(), begin);
  ASSERT_TRUE(ok(store));
  const auto ask = [&](const Visit& visit) -> Result<> {
    EXPECT_TRUE(refused(visit.state<float>("exp_avg"), Code::usage, "has no state exp_avg"));
    EXPECT_TRUE(refused(visit.state<float>("count"), Code::usage, "I64"));
    return {};
  };
  ASSERT_TRUE(ok((*store)->read_each(ask)));
  EXPECT_TRUE(
      refused(StateStore::open(config_in(folder / "swap"), some_tensors(), begin), Code::busy));
}

// Each run goes on where the one before it was, as so many ranks, the first on that disk; the last
// reaches all of them.
TEST(StateStore, RanksKeepTheirSharesAndOthersTakeOver) {
  struct Run {
    std::uint32_t world, first_disk;
  };
  for (const bool shared : {true, false}) {
    const TemporaryDirectory folder;
    const auto disk = [&](std::uint32_t number) {
      return folder / (shared ? "swap" : "disk-" + std::to_string(number % 3));
    };
    std::uint64_t at = 0;
    for (const auto& [world, first_disk] : {Run{2, 0}, Run{2, 1}, Run{3, 0}, Run{1, 1}}) {
      const auto ranks = libmuon::make_thread_ranks(world);
      const auto run = [&](std::uint32_t rank) -> Result<> {
        StateStoreConfig config = config_in(disk(first_disk + rank));
        config.ranks = ranks[rank].get();
        config.partition = {.policy = Policy::zero3, .mesh = {world, 1}};
        config.sources = {disk(0), disk(1), disk(2)};
        if (world > 1) config.sources.resize(shared ? 0 : 1);
        EBB_TRY_ASSIGN(const auto store, StateStore::open(config, some_tensors(), begin));
        EXPECT_EQ(store->step(), at);
        for (std::uint64_t step = at + 1; step <= at + 3; ++step)
          EBB_TRY(store->for_each(step, add_one));
        EBB_TRY(store->read_each([&](const Visit& v) { return expect_at(at + 3, v); }));
        EBB_TRY(store->snapshot());
        EBB_TRY(store->wait_snapshot());
        return {};
      };
      std::vector<std::thread> threads;
      for (std::uint32_t rank = 0; rank < world; ++rank)
        threads.emplace_back([&, rank] { EXPECT_TRUE(ok(run(rank))); });
      for (std::thread& thread : threads) thread.join();
      at += 3;
    }
  }
}

// Those of the snapshot, not of the moment; also where other ranks go on.
TEST(StateStore, BlobsComeBackAsTheyWereAtTheSnapshot) {
  const TemporaryDirectory folder;
  const auto bytes = [](std::size_t count, int value) {
    return ByteVector(count, std::byte(value));
  };
  const auto expect = [&](const StateStore& store, int position) {
    ASSERT_NE(store.blob("position"), nullptr);
    EXPECT_EQ(*store.blob("position"), bytes(8, position));
    ASSERT_NE(store.blob("seed"), nullptr);
    EXPECT_EQ(*store.blob("seed"), bytes(3, 7));
    EXPECT_EQ(store.blob("nothing"), nullptr);
  };
  {
    const auto store = StateStore::open(config_in(folder / "swap"), some_tensors(), begin);
    ASSERT_TRUE(ok(store));
    EXPECT_EQ((*store)->blob("seed"), nullptr);
    ASSERT_TRUE(ok((*store)->set_blob("seed", bytes(3, 7))));
    ASSERT_TRUE(ok((*store)->set_blob("position", bytes(8, 1))));
    ASSERT_TRUE(ok((*store)->for_each(1, add_one)));
    ASSERT_TRUE(ok((*store)->snapshot()));
    ASSERT_TRUE(ok((*store)->set_blob("position", bytes(8, 2))));  // behind the cut
    ASSERT_TRUE(ok((*store)->wait_snapshot()));
    EXPECT_TRUE(refused((*store)->set_blob("much", bytes(256u << 10, 0)), Code::limit, "262144"));
  }
  {
    const auto store = StateStore::open(config_in(folder / "swap"), some_tensors(), begin);
    ASSERT_TRUE(ok(store));
    expect(**store, 1);
  }
  StateStoreConfig other = config_in(folder / "swap");
  other.tile_bytes = 2 * kTile;
  const auto store = StateStore::open(other, some_tensors(), begin);
  ASSERT_TRUE(ok(store));
  EXPECT_EQ((*store)->origin(), "transferred the store of 1 ranks at step 1");
  expect(**store, 1);
}

}  // namespace
}  // namespace ebb::libswap::space_tests
