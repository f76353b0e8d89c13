// One rank dies before each of its operations that change the disk; the others live on and clear
// up. On one directory and on one each, what is left is resumed, whatever the living have done.
#include <atomic>
#include <cstdio>

#include "tests/durability/machines.h"

namespace ebb::test {
namespace {

using libmuon::Communicator;
using libswap::IoQueue;

enum class Places : std::uint8_t { shared, separate };

std::filesystem::path directory_of(Places places, Rank rank) {
  return places == Places::shared ? "/swap" : compose("/node-{}", index_of(rank));
}

// Opens what is there and commits two more steps.
Result<> train(Communicator& ranks, IoQueue& io, Places places, std::atomic<std::uint64_t>& told) {
  EBB_TRY_ASSIGN(auto open, open_rank(ranks, io, directory_of(places, ranks.rank())));
  libmuon::Engine& engine = open.rank.engine();
  EXPECT_GE(engine.step_count(), told) << "a committed step is gone";
  for (int more = 0; more < 2; ++more) {
    EXPECT_TRUE(open.rank.flat_weights() == wanted_weights().at(engine.step_count()));
    EBB_TRY(open.rank.hand_in(engine.step_count() + 1));
    EBB_TRY(open.rank.step());
    EBB_TRY(open.rank.commit());
    told = engine.committed_step();
  }
  return {};
}

// False where the rank made fewer operations than that.
bool die_and_resume(Places places, std::uint32_t rank, std::uint64_t at) {
  SCOPED_TRACE(compose("rank {} before operation {}, {}", rank, at,
                       places == Places::shared ? "one directory" : "one each"));
  const auto disk = empty_disk();
  std::atomic<std::uint64_t> told = 0;
  const auto body = [&](Communicator& ranks, IoQueue& io) {
    return train(ranks, io, places, told);
  };
  Machines first(disk);
  first.faults(rank).die_before(at);
  first.run(body);
  Machines second(disk);
  for (const auto& answer : second.run(body)) EXPECT_TRUE(answer) << answer.error().message;
  return first.faults(rank).died();
}

TEST(RankDeath, LeavesWhatTheNextStartResumesWhereverItsPeersCleared) {
  std::atomic<std::uint64_t> deaths = 0;
  in_parallel(4, [&](std::uint64_t i) {
    const Places places = i < 2 ? Places::shared : Places::separate;
    const auto rank = static_cast<std::uint32_t>(i % 2);
    for (std::uint64_t at = 0; die_and_resume(places, rank, at); ++at) ++deaths;
  });
  std::printf("rank deaths: %llu\n", static_cast<unsigned long long>(deaths));
  EXPECT_GT(deaths, 250u);
}

}  // namespace
}  // namespace ebb::test
