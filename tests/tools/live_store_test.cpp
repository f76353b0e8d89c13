// The tools read a store beside a trainer that snapshots at every step, and reading it takes
// several steps: every try succeeds. By hand, 1,002 tries a number of slots:
//   EBB_LIVE_TRIES=334 build/release/bin/tools_live_store_test
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <cstring>

#include "ebb/libswap/queue/io_queue.h"
#include "ebb/libswap/store/store_set.h"
#include "ebb/libswap/sys/aligned_buffer.h"
#include "tests/libswap/rank_threads.h"
#include "tests/support/program.h"

namespace ebb {
namespace {

using libswap::Store;

constexpr std::uint32_t kWorld = 2;
constexpr std::uint64_t kTile = 64 << 10;
constexpr std::uint64_t kTiles = 192;       // of a rank
constexpr std::uint64_t kTilesOfAStep = 2;  // that change: steps are short beside the store
constexpr std::uint64_t kStepsOfARead = 5;

// What the trainer tells, in memory it shares with the test.
struct Told {
  std::atomic<std::uint64_t> steps;
  std::atomic<std::uint64_t> committed;
};

libswap::Manifest manifest_of(std::uint32_t rank) {
  libswap::Manifest manifest;
  manifest.fingerprint = "test";
  manifest.states = {"master"};
  manifest.groups = {{"adamw", {{"lr", "0.1"}}}};
  manifest.params = {{"w", {kWorld * kTiles, kTile / 4}, 0}};
  for (std::uint64_t tile = 0; tile < kTiles; ++tile) {
    formats::native::Tile entry;
    entry.used_bytes = kTile;
    const std::uint64_t first = (rank * kTiles + tile) * kTile / 4;
    entry.segments = {{0, 0, DType::f32, first, kTile / 4, 0}};
    manifest.tiles.push_back(std::move(entry));
  }
  return manifest;
}

Result<> write_tile(libswap::IoQueue& io, Store& store, std::uint64_t tile, std::uint64_t step) {
  EBB_TRY_ASSIGN(auto buffer, libswap::AlignedBuffer::allocate(kTile));
  const float value = static_cast<float>(step);
  for (std::size_t at = 0; at < kTile; at += sizeof(value))
    std::memcpy(buffer.bytes().data() + at, &value, sizeof(value));
  EBB_TRY_ASSIGN(Store::Write write, store.begin_write(tile, step));
  store.seal(write, buffer.bytes());
  EBB_TRY(io.write(write.place.file, write.place.offset, buffer.bytes()));
  store.wrote(std::move(write));
  return {};
}

Result<> one_step(libswap::IoQueue& io, Store& store, libswap::Agreement& ranks, std::uint64_t step,
                  Told& told) {
  const std::uint64_t count = step == 1 ? kTiles : kTilesOfAStep;
  for (std::uint64_t i = 0; i < count; ++i)
    EBB_TRY(write_tile(io, store, (step * kTilesOfAStep + i) % kTiles, step));
  EBB_TRY_ASSIGN(const std::int64_t all_can, ranks.agree(store.can_cut() ? 1 : 0));
  if (all_can == 1) {
    store.cut(step);
    const Result<> prepared = store.prepare(manifest_of(index_of(store.superblock().rank)));
    EBB_TRY_ASSIGN(const auto settled, store.agree(ranks, prepared));
    if (settled == Store::Settled::committed) told.committed = step;
  }
  told.steps = step;
  EBB_TRY(ranks.agree(0));
  return {};
}

// Trains for ever; ends only when something fails.
void train(const std::filesystem::path& swap, std::uint32_t slots, Told& told) {
  auto backend = libswap::open_backend(libswap::BackendChoice::automatic);
  const auto io = libswap::IoQueue::start(std::move(backend->backend), {});
  const auto directory = libswap::SwapDirectory::open(**io, swap);
  libswap::Alone alone;
  const auto fresh = (*directory)->fresh(alone);
  libswap::run_ranks(kWorld, [&](std::uint32_t rank, libswap::Agreement& ranks) {
    Store::Config config;
    config.directory = fresh->path;
    config.uuid = fresh->uuid;
    config.rank = Rank{rank};
    config.world = kWorld;
    config.tile_bytes = kTile;
    config.block_bytes = kTile / 4;
    config.slots = slots;
    config.tiles = kTiles;
    config.manifest_bytes = 64 << 10;
    const auto store = Store::create(**io, config);
    if (!store || !(*store)->recover(ranks)) return;
    for (std::uint64_t step = 1;; ++step) {
      const auto done = one_step(**io, **store, ranks, step, told);
      if (done) continue;
      std::fprintf(stderr, "trainer, rank %u: %s\n", rank, done.error().message.c_str());
      return;
    }
  });
}

class LiveStore : public testing::TestWithParam<std::uint32_t> {
 protected:
  void SetUp() override {
    void* const shared =
        ::mmap(nullptr, sizeof(Told), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(shared, MAP_FAILED);
    told_ = new (shared) Told{};
    trainer_ = ::fork();
    if (trainer_ == 0) {
      train(folder_ / "swap", GetParam(), *told_);
      ::_exit(1);
    }
    while (told_->committed == 0 && ::waitpid(trainer_, nullptr, WNOHANG) == 0) ::usleep(1000);
    ASSERT_GT(told_->committed, 0u);
  }
  void TearDown() override {
    ::kill(trainer_, SIGKILL);
    ::waitpid(trainer_, nullptr, 0);
    ::munmap(told_, sizeof(Told));
  }

  const test_support::ScratchDirectory folder_;
  Told* told_ = nullptr;
  pid_t trainer_ = 0;
};
INSTANTIATE_TEST_SUITE_P(Slots, LiveStore, testing::Values(2u, 3u));

std::uint64_t tries() {
  const char* const asked = std::getenv("EBB_LIVE_TRIES");
  return asked == nullptr ? 7 : std::strtoull(asked, nullptr, 10);
}

TEST_P(LiveStore, IsVerifiedDigestedAndConvertedAtAnyMoment) {
  const std::string swap = folder_ / "swap";
  const std::string out = folder_ / "out";
  const std::vector<std::pair<std::string, std::vector<std::string>>> tools = {
      {"ckpt-inspect", {swap, "--verify"}},
      {"ckpt-inspect", {swap, "--tensors", "--digest"}},
      {"ckpt-convert", {swap, out, "--to", "safetensors"}}};
  std::uint64_t steps = 0, reads = 0;  // on a busy machine one read may see no step
  for (std::uint64_t i = 0; i < tries(); ++i)
    for (const auto& [program, arguments] : tools) {
      const std::uint64_t before = told_->steps;
      const auto outcome = test_support::run_program(program, arguments);
      steps += told_->steps - before;
      ++reads;
      ASSERT_EQ(outcome.exit, 0) << program << " " << arguments[1] << ", try " << i << "\n"
                                 << outcome.out << outcome.err;
      std::filesystem::remove_all(out);
    }
  ASSERT_EQ(::waitpid(trainer_, nullptr, WNOHANG), 0) << "the trainer ended";
  EXPECT_GE(steps, reads * kStepsOfARead);
  EXPECT_GT(told_->committed, 2u);
}

}  // namespace
}  // namespace ebb
