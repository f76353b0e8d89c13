// A trainer's data loaders are forks of it: they must not come to own copies of the state.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "ebb/libswap/queue/io_queue.h"
#include "tests/libmuon/support/failing_world.h"

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

}  // namespace
}  // namespace ebb::test
