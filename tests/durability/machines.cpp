#include "tests/durability/machines.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <thread>

#include "tests/libmuon/support/failing_world.h"

namespace ebb::test {
namespace {

// Only a rank that never comes is waited for so long.
constexpr std::chrono::seconds kLimit(60);

std::vector<std::vector<float>> train_undisturbed() {
  Machines machines(empty_disk());
  std::vector<std::vector<float>> weights;
  expect_well(machines.run([&](libmuon::Communicator& ranks, libswap::IoQueue& io) -> Result<> {
    EBB_TRY_ASSIGN(auto open, open_rank(ranks, io));
    for (std::uint64_t step = 0;; ++step) {
      EBB_TRY(step_to(open.rank, step));
      if (ranks.rank() == Rank{0}) weights.push_back(open.rank.flat_weights());
      if (step == kMostSteps) return {};
    }
  }));
  return weights;
}

}  // namespace

Form form() {
  const char* const asked = std::getenv("EBB_DURABILITY");
  return asked != nullptr && std::string_view(asked) == "full" ? Form::full : Form::brief;
}

std::uint64_t brief_or(std::uint64_t brief, std::uint64_t full) {
  return form() == Form::full ? full : brief;
}

std::uint64_t seed_for(const std::string& what) {
  const char* const asked = std::getenv("EBB_SEED");
  const std::uint64_t seed = asked != nullptr ? std::strtoull(asked, nullptr, 10) : 20261123;
  std::printf("%s: seed %llu\n", what.c_str(), static_cast<unsigned long long>(seed));
  return seed;
}

void in_parallel(std::uint64_t count, const std::function<void(std::uint64_t)>& work) {
  constexpr std::uint64_t kAtATime = 6;
  std::atomic<std::uint64_t> next = 0;
  std::vector<std::thread> threads;
  for (std::uint64_t i = 0; i < std::min(kAtATime, count); ++i)
    threads.emplace_back([&] {
      for (std::uint64_t mine = next++; mine < count; mine = next++) work(mine);
    });
  for (std::thread& thread : threads) thread.join();
}

Machines::Machines(Disk disk, std::uint32_t world) : disk_(std::move(disk)) {
  for (std::uint32_t rank = 0; rank < world; ++rank)
    faults_.push_back(std::make_shared<libswap::FaultPlan>());
}

Machines::Machines(const std::shared_ptr<libswap::MemoryDisk>& disk, std::uint32_t world)
    : Machines([disk] { return libswap::make_memory_backend(disk); }, world) {}

std::shared_ptr<libswap::MemoryDisk> empty_disk() { return libswap::MemoryDisk::create(kMuch); }

std::vector<Result<>> Machines::run(const Body& body) {
  auto ranks = libmuon::make_thread_ranks(world(), kLimit);
  std::vector<Result<>> answers(world());
  std::vector<std::thread> threads;
  for (std::uint32_t rank = 0; rank < world(); ++rank)
    threads.emplace_back([&, rank] {
      auto io = libswap::IoQueue::start(libswap::make_fault_backend(disk_(), faults_[rank]), {});
      EBB_CHECK(io.has_value());
      answers[rank] = body(*ranks[rank], **io);
      if (!answers[rank]) ranks[rank]->abort();
    });
  for (std::thread& thread : threads) thread.join();
  for (const auto& plan : faults_) EXPECT_EQ(plan->open_files(), 0) << "files were left open";
  return answers;
}

libmuon::EngineConfig machines_config(std::uint32_t world, const Shape& shape) {
  return config_of(Training{.ranks = world,
                            .chunk_bytes = 20000,
                            .budget_bytes = shape.budget_bytes,
                            .slots = shape.slots},
                   nuisance_model());
}

Result<OpenRank> open_rank(libmuon::Communicator& ranks, libswap::IoQueue& io,
                           const std::filesystem::path& directory, const Shape& shape) {
  EBB_TRY_ASSIGN(auto swap, libswap::SwapDirectory::open(io, directory, ranks));
  EBB_TRY_ASSIGN(auto rank,
                 RankEngine::open(io, *swap, ranks, machines_config(ranks.world(), shape)));
  return OpenRank{std::move(swap), std::move(rank)};
}

const std::vector<std::vector<float>>& wanted_weights() {
  static const auto weights = train_undisturbed();
  return weights;
}

}  // namespace ebb::test
