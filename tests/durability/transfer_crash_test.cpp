// A store of two ranks resumed on three, killed before each operation of each rank that changes the
// disk, its last write whole or torn. The next start finds the old store or the new one, whole, and
// leaves nothing else behind.
#include <array>
#include <atomic>
#include <cstdio>
#include <filesystem>

#include "tests/durability/machines.h"

namespace ebb::test {
namespace {

namespace fs = std::filesystem;
using libmuon::Communicator;
using libswap::FaultKind;
using libswap::FaultOn;
using libswap::IoQueue;

constexpr std::uint64_t kStored = 2;  // the step
constexpr std::uint32_t kNewWorld = 3;

std::unique_ptr<libswap::IoBackend> real_disk() {
  auto chosen = libswap::open_backend(libswap::BackendChoice::automatic);
  EBB_CHECK(chosen.has_value());
  return std::move(chosen->backend);
}

Result<> open_and_step_to(Communicator& ranks, IoQueue& io, const fs::path& directory,
                          std::uint64_t last) {
  EBB_TRY_ASSIGN(auto open, open_rank(ranks, io, directory));
  for (std::uint64_t step = open.rank.engine().step_count();; ++step) {
    EXPECT_TRUE(open.rank.flat_weights() == wanted_weights().at(step)) << "other bits at " << step;
    if (step >= last) break;
    EBB_TRY(open.rank.hand_in(step + 1));
    EBB_TRY(open.rank.step());
  }
  EXPECT_EQ(open.rank.engine().step_count(), last);
  EBB_TRY(open.rank.commit());
  return {};
}

enum class LastWrite : std::uint8_t { whole, torn };

struct Kill {
  std::uint32_t rank = 0;
  std::uint64_t at = 0;
  LastWrite last = LastWrite::whole;
};

// Of the transfer alone, which ends where the engine is open; how many operations each rank made.
std::array<std::uint64_t, kNewWorld> transfer(const fs::path& directory, const Kill* kill) {
  Machines machines(real_disk, kNewWorld);
  if (kill != nullptr) {
    auto& faults = machines.faults(kill->rank);
    faults.die_before(kill->at);
    if (kill->last == LastWrite::torn && kill->at > 0)
      faults.add({.on = FaultOn::durable, .at = kill->at - 1, .kind = FaultKind::torn});
  }
  for (const auto& answer : machines.run([&](Communicator& ranks, IoQueue& io) -> Result<> {
         EBB_TRY(open_rank(ranks, io, directory));
         return {};
       }))
    EXPECT_TRUE(answer || kill != nullptr) << answer.error().message;
  std::array<std::uint64_t, kNewWorld> made{};
  for (std::uint32_t rank = 0; rank < kNewWorld; ++rank)
    made[rank] = machines.faults(rank).durable_operations();
  return made;
}

// On the old number of ranks or on the new one.
void expect_resumes(const fs::path& directory, std::uint32_t world) {
  Machines machines(real_disk, world);
  for (const auto& answer : machines.run([&](Communicator& ranks, IoQueue& io) {
         return open_and_step_to(ranks, io, directory, kStored + 1);
       }))
    EXPECT_TRUE(answer) << answer.error().message;
  EXPECT_EQ(std::distance(fs::directory_iterator(directory), {}), 2) << "a lock and a store";
}

TEST(CrashPoints, OfATransferToOtherRanksLeaveTheOldStoreOrTheNew) {
  const TempDir base;
  const fs::path stored = base.path() / "stored";
  {
    Machines machines(real_disk);
    for (const auto& answer : machines.run([&](Communicator& ranks, IoQueue& io) {
           return open_and_step_to(ranks, io, stored, kStored);
         }))
      ASSERT_TRUE(answer) << answer.error().message;
  }
  const auto copy = [&](const std::string& name) {
    fs::copy(stored, base.path() / name, fs::copy_options::recursive);
    return base.path() / name;
  };
  std::vector<Kill> kills;
  const auto operations = transfer(copy("undisturbed"), nullptr);
  for (std::uint32_t rank = 0; rank < kNewWorld; ++rank)
    for (std::uint64_t at = 0; at < operations[rank]; ++at)
      for (const LastWrite last : {LastWrite::whole, LastWrite::torn})
        kills.push_back({rank, at, last});
  EXPECT_GT(kills.size(), 100u);
  const std::uint64_t stride = brief_or(13, 1);
  in_parallel(kills.size() / stride, [&](std::uint64_t i) {
    const Kill& kill = kills[i * stride];
    SCOPED_TRACE(compose("rank {} killed before operation {}, its last write {}", kill.rank,
                         kill.at, kill.last == LastWrite::torn ? "torn" : "whole"));
    const fs::path directory = copy(std::to_string(i));
    transfer(directory, &kill);
    expect_resumes(directory, i % 2 == 0 ? kNewWorld : 2);
    fs::remove_all(directory);
  });
  std::printf("crash points of a transfer: %llu of %llu\n",
              static_cast<unsigned long long>(kills.size() / stride),
              static_cast<unsigned long long>(kills.size()));
}

}  // namespace
}  // namespace ebb::test
