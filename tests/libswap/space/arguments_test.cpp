// Arguments that no caller should give and that types do not exclude: each is answered with an
// error that names it, and the space goes on.
#include "ebb/libswap/space/state_store.h"
#include "tests/libswap/space/space_rig.h"
#include "tests/libswap/sys/test_files.h"

namespace ebb::libswap::space_tests {
namespace {

template <typename T>
constexpr T no_such = static_cast<T>(99);  // what a caller makes of a number

// What a space of such a configuration, with one buffer, is opened with.
Result<> opened(SwapSpaceConfig config, std::vector<BufferPart> parts = {bytes_named("b", 100)}) {
  const auto disk = MemoryDisk::create(1u << 26);
  EBB_TRY_ASSIGN(const auto io, IoQueue::start(make_memory_backend(disk), {}));
  EBB_TRY_ASSIGN(const auto directory, SwapDirectory::open(*io, "/swap"));
  Alone alone;
  SwapSpace space(*io, *directory, alone, config);
  EBB_TRY(space.register_buffer(std::move(parts)));
  return space.open({});
}

constexpr SwapSpaceConfig kPlain{.budget_bytes = 16 * kTile, .tile_bytes = kTile};

TEST(SpaceArguments, SizesThatNoStoreHasAreNamed) {
  ASSERT_TRUE(ok(opened(kPlain)));
  for (const std::uint64_t bytes :
       {std::uint64_t{0}, std::uint64_t{4095}, std::uint64_t{1} << 40, std::uint64_t{1} << 63,
        ~std::uint64_t{0}, ~std::uint64_t{4095}}) {
    SwapSpaceConfig config = kPlain;
    config.tile_bytes = bytes;
    config.budget_bytes = ~std::uint64_t{0};
    EXPECT_TRUE(refused(opened(config), Code::usage, compose("tile size {} is not", bytes)));
  }
  SwapSpaceConfig config = kPlain;
  for (const std::uint32_t slots : {0u, 1u, 9u, ~0u}) {
    config.slots = slots;
    EXPECT_TRUE(refused(opened(config), Code::usage, compose("{} slots", slots)));
  }
  config = kPlain;
  config.budget_bytes = ~std::uint64_t{0};
  const std::uint64_t huge = std::uint64_t{1} << 50;
  EXPECT_TRUE(refused(opened(config, {bytes_named("b", huge)}), Code::limit, "16777216"));
}

TEST(SpaceArguments, BuffersThatNoStoreHoldsAreNamed) {
  const std::string longest(65536, 'x');
  EXPECT_TRUE(ok(opened(kPlain, {bytes_named(longest, 4)})));
  EXPECT_TRUE(refused(opened(kPlain, {bytes_named(longest + "x", 4)}), Code::limit, "65537 bytes"));
  EXPECT_TRUE(
      refused(opened(kPlain, {bytes_named("b", 4, longest + "x")}), Code::limit, "state x"));
  for (const char* const name : {"\xff", "a\x80", "\xed\xa0\x80"}) {
    EXPECT_TRUE(refused(opened(kPlain, {bytes_named(name, 4)}), Code::usage, "not UTF-8"));
    EXPECT_TRUE(refused(opened(kPlain, {bytes_named("b", 4, name)}), Code::usage, "not UTF-8"));
  }
  BufferPart part = bytes_named("b", 4);
  part.dtype = no_such<DType>;
  EXPECT_TRUE(refused(opened(kPlain, {part}), Code::usage, "b (state) has elements of no dtype"));
  part = bytes_named("b", 1);
  part.shape = Shape(17, 1);
  EXPECT_TRUE(refused(opened(kPlain, {part}), Code::limit, "at most 16 dimensions"));
}

// After an error it is as if open() had not been called.
TEST(SpaceArguments, ASpaceThatCouldNotBeOpenedIsOpenedLaterAsIfItHadBeenTheFirstTime) {
  const auto disk = MemoryDisk::create(1u << 26);
  const auto faults = std::make_shared<FaultPlan>();
  const auto io = IoQueue::start(make_fault_backend(make_memory_backend(disk), faults), {});
  ASSERT_TRUE(ok(io));
  Alone alone;
  std::uint64_t once = 0;
  for (const bool fails : {false, true}) {
    const auto own = SwapDirectory::open(**io, fails ? "/other" : "/one");
    ASSERT_TRUE(ok(own));
    SwapSpace space(**io, **own, alone, kPlain);
    for (const char* const name : {"a", "b", "c"})
      ASSERT_TRUE(ok(space.register_buffer({bytes_named(name, 3000)})));
    if (fails) {
      faults->add({.on = FaultOn::write, .count = FaultPlan::kForEver, .path_part = "/other"});
      EXPECT_FALSE(ok(space.open({})));
      faults->clear();
    }
    ASSERT_TRUE(ok(space.open({})));
    const std::uint64_t written = space.stats().pager.written_bytes;
    if (fails)
      EXPECT_EQ(written, once);
    else
      once = written;
  }
}

TEST(SpaceArguments, OfCallsAreNamedAndTheSpaceGoesOn) {
  SpaceRig rig({100, 5000}, 8);
  SwapSpace& space = *rig.space;
  EXPECT_TRUE(
      refused(space.acquire(BufferId{2}, Tier::host, Access::read), Code::usage, "buffer 2"));
  EXPECT_TRUE(refused(space.acquire(BufferId{0}, no_such<Tier>, Access::read), Code::unsupported));
  EXPECT_TRUE(refused(space.acquire(BufferId{0}, Tier::nvme, Access::read), Code::unsupported));
  EXPECT_TRUE(
      refused(space.acquire(BufferId{0}, Tier::host, no_such<Access>), Code::usage, "99 is no"));
  EXPECT_TRUE(refused(space.prefetch(BufferId{7}), Code::usage, "buffer 7"));
  SwapSpace::Lease none;
  EXPECT_TRUE(refused(space.release(none, Release::clean), Code::usage));
  EXPECT_TRUE(none.bytes().empty());
  EXPECT_TRUE(none.part(0).empty());
  auto lease = rig.acquire(0, Access::modify);
  EXPECT_EQ(lease.part(0).size(), 100u);
  EXPECT_TRUE(lease.part(1).empty()) << "it has one part";
  EXPECT_TRUE(lease.memory_of(99).empty());
  EXPECT_TRUE(refused(space.release(lease, no_such<Release>), Code::usage, "99 is no way"));
  EXPECT_TRUE(lease.held());
  SpaceRig::set(lease, 42);
  ASSERT_TRUE(ok(space.release(lease, Release::dirty)));
  EXPECT_TRUE(refused(space.set_blob(std::string(65537, 'k'), {}), Code::limit, "65537 bytes"));
  EXPECT_TRUE(refused(space.set_blob("\xff", {}), Code::usage, "not UTF-8"));
  rig.commit(1);
  rig.begin();
  EXPECT_EQ(rig.read(0), 42);
}

TEST(SpaceArguments, OfAStateStoreAreNamedAndAStoreWithoutInitialContentIsZeros) {
  const TemporaryDirectory folder;
  const std::vector<StoredTensor> tensors = {{"w", {13, 7}, {{"master"}}}};
  const auto open = [&](const StateStoreConfig& config, std::vector<StoredTensor> what) {
    return StateStore::open(config, std::move(what), {});
  };
  StateStoreConfig bad = config_in(folder / "bad");
  bad.tile_bytes = std::uint64_t{1} << 63;
  EXPECT_TRUE(refused(open(bad, tensors), Code::usage, "tile size"));
  bad = config_in(folder / "bad");
  bad.partition.policy = no_such<Policy>;
  EXPECT_TRUE(refused(open(bad, tensors), Code::layout, "no partition policy 99"));
  bad = config_in(folder / "bad");
  EXPECT_TRUE(refused(open(bad, {{"w", {3}, {}}}), Code::usage, "at least one part"));
  EXPECT_TRUE(refused(open(bad, {{"w", {3}, {{"s", no_such<DType>}}}}), Code::usage, "no dtype"));
  EXPECT_TRUE(refused(open(bad, {{"w", {0}, {{"s"}}}}), Code::layout, "no elements"));
  EXPECT_TRUE(refused(open(bad, {{"w", {3}, {{"s"}, {"s"}}}}), Code::layout, "registered twice"));
  const auto store = open(config_in(folder / "swap"), tensors);
  ASSERT_TRUE(ok(store));
  EXPECT_TRUE(refused((*store)->read_each({}), Code::usage, "no function"));
  EXPECT_TRUE(refused((*store)->for_each(1, {}), Code::usage, "no function"));
  EXPECT_TRUE(ok((*store)->for_each(1, [](const StateStore::Visit& visit) -> Result<> {
    EBB_TRY_ASSIGN(const auto w, visit.state<float>("master"));
    for (const float one : w) EXPECT_EQ(one, 0.0f);
    return {};
  })));
  EXPECT_TRUE(ok((*store)->snapshot()));
}

}  // namespace
}  // namespace ebb::libswap::space_tests
