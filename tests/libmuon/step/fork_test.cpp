// A trainer's data loaders are forks of it: they must not come to own copies of the state, and an
// engine that they got with everything else is of no use to them.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "ebb/libswap/queue/io_queue.h"
#include "tests/libmuon/support/failing_world.h"
#include "tests/support/in_child.h"

namespace ebb::test {
namespace {

using libmuon::Communicator;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

constexpr std::uint64_t kMiB = 1u << 20;

// What only this process has in memory.
std::uint64_t private_bytes(pid_t process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/smaps_rollup");
  std::uint64_t kib = 0;
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("Private_Clean:") || line.starts_with("Private_Dirty:"))
      kib += std::stoull(line.substr(line.find(':') + 1));
  return kib << 10;
}

class Child {
 public:
  Child() : process_(::fork()) {
    if (process_ != 0) return;
    ::pause();
    ::_exit(0);
  }
  ~Child() {
    ::kill(process_, SIGKILL);
    ::waitpid(process_, nullptr, 0);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  pid_t process() const { return process_; }

 private:
  pid_t process_;
};

libmuon::EngineConfig large_state() {
  auto config = config_of(Training{.ranks = 2,
                                   .gradients = Policy::zero3,
                                   .weights = Policy::zero3,
                                   .tile_bytes = kMiB,
                                   .chunk_bytes = 16 * kMiB,
                                   .slots = 2},
                          {});
  auto spec = libmuon::MuonSpec::keller();
  spec.iterations.resize(1);
  config.model.groups = {spec};
  for (int i = 0; i < 16; ++i) config.model.params.push_back({std::to_string(i), {512, 2048}, 0});
  return config;
}

// What the trainer itself hands in and gets back, 8 bytes a parameter, is its own to account for.
TEST(Fork, AChildHasNoCopyOfTheStateAfterThreeStepsOfItsParent) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's own memory is copied to the child";
  const TempDir directory;
  auto chosen = libswap::open_backend(libswap::BackendChoice::automatic);
  ASSERT_TRUE(chosen);
  World world(std::move(chosen->backend), directory.path(), 2);
  const auto config = large_state();
  const std::uint64_t of_trainer = 16u * 512 * 2048 * 8;
  ASSERT_GE((*libmuon::Engine::plan(config, Rank{0})).memory_bytes, 64 * kMiB);
  std::unique_ptr<Child> child;
  expect_well(world.run([&](Communicator& ranks) -> Result<> {
    EBB_TRY_ASSIGN(auto rank, RankEngine::open(world, ranks, config));
    EBB_TRY(step_to(rank, 1));
    EBB_TRY(ranks.agree(0));
    if (ranks.rank() == Rank{0}) child = std::make_unique<Child>();
    EBB_TRY(ranks.agree(0));
    return step_to(rank, 4);
  }));
  ASSERT_NE(child, nullptr);
  EXPECT_LE(private_bytes(child->process()), of_trainer + 16 * kMiB);
}

// In a child; the engine's locks may be held by threads that are not there.
std::string use_and_destroy(std::unique_ptr<RankEngine> rank, libswap::SwapDirectory& swap,
                            std::unique_ptr<libmuon::PinnedCheckpoint> pinned) {
  libmuon::Engine& engine = rank->engine();
  std::vector<float> floats(1);
  test_support::Refused calls;
  calls.expect("bind_weights", engine.bind_weights(0, std::span(floats)));
  calls.expect("install_weights", engine.install_weights());
  calls.expect("gradient_ready", engine.gradient_ready(0, std::span<const float>(floats)));
  calls.expect("add_gradient", engine.add_gradient(0, std::span<const float>(floats)));
  calls.expect("no_gradient", engine.no_gradient(0, libmuon::WithoutGradient::zero));
  calls.expect("group", engine.group(0));
  calls.expect("set", engine.set(0, "lr", 0.5));
  calls.expect("set_learning_rate", engine.set_learning_rate(0, 0.5));
  calls.expect("step", engine.step({}));
  calls.expect("begin_step", engine.begin_step({}));
  calls.expect("wait_step", engine.wait_step());
  calls.expect("weights_ready", engine.weights_ready(0));
  calls.expect("continue_step", engine.continue_step());
  calls.expect("abandon_step", engine.abandon_step());
  calls.expect("save_to", engine.save_to(swap));
  calls.expect("set_blob", engine.set_blob("key", {}));
  calls.expect("snapshot", engine.snapshot());
  calls.expect("wait_snapshot", engine.wait_snapshot());
  calls.expect("open_export", engine.open_export());
  static_cast<void>(engine.step_count());
  static_cast<void>(engine.origin());
  static_cast<void>(engine.blob("key"));
  static_cast<void>(engine.snapshot_error());
  static_cast<void>(engine.committed_step());
  std::string others = calls.others();
  if (engine.stats().steps != 0 || engine.committed_generation() != 0) others += "counters ";
  pinned.reset();
  rank.reset();
  return others;
}

// Forks while a step is in flight and a snapshot is written, as often as it takes to meet a lock.
TEST(Fork, EveryCallIsRefusedInAChildAndNothingOfTheParentChanges) {
  FailingWorld world;
  std::vector<float> after;
  expect_well(world.world.run([&](Communicator& ranks) -> Result<> {
    EBB_TRY_ASSIGN(auto opened, RankEngine::open(world.world, ranks, config_with(kHalf)));
    auto rank = std::make_unique<RankEngine>(std::move(opened));
    libmuon::Engine& engine = rank->engine();
    EBB_TRY(rank->commit());
    for (std::uint64_t step = 1; step <= 12; ++step) {
      EBB_TRY(rank->hand_in(step));
      EBB_TRY(engine.begin_step({}));
      EBB_TRY_ASSIGN(auto exported, engine.open_export());
      auto pinned = std::make_unique<libmuon::PinnedCheckpoint>(std::move(exported));
      EXPECT_EQ(test_support::in_child([&] {
                  return use_and_destroy(std::move(rank), world.world.swap(), std::move(pinned));
                }),
                "");
      EBB_TRY(engine.wait_step());
      EBB_TRY(engine.snapshot());
    }
    EBB_TRY(engine.wait_snapshot());
    EXPECT_EQ(engine.stats().steps, 12u);
    if (ranks.rank() == Rank{1}) after = rank->flat_weights();
    return {};
  }));
  EXPECT_EQ(after, weights_after(12));
}

}  // namespace
}  // namespace ebb::test
