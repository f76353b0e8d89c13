#include "tests/libmuon/covering/rank_run.h"

#include <cstdio>
#include <optional>

#include "ebb/libswap/queue/io_queue.h"
#include "tests/libmuon/covering/covering_rank.h"
#include "tests/libmuon/support/world.h"

namespace ebb::test {
namespace {

using libmuon::Communicator;

Exit tell(const Result<>& done, Rank rank) {
  if (done) return Exit::well;
  const bool peer = done.error().code == Code::peer;
  if (!peer) std::fprintf(stderr, "rank %u: %s\n", index_of(rank), done.error().message.c_str());
  return peer ? Exit::peer : Exit::error;
}

std::unique_ptr<libswap::IoBackend> failing(const std::shared_ptr<libswap::FaultPlan>& faults) {
  return libswap::make_fault_backend(disk(), faults);
}

}  // namespace

std::vector<std::string> Leg::words() const {
  std::vector<std::string> all = {directory.string(), std::to_string(until),
                                  std::to_string(static_cast<int>(trouble)), std::to_string(draw)};
  for (const std::uint32_t value : row) all.push_back(std::to_string(value));
  return all;
}

Leg Leg::from(const std::vector<std::string>& words) {
  Leg leg{.until = std::stoull(words.at(1)),
          .trouble = static_cast<Trouble>(std::stoi(words.at(2))),
          .draw = std::stoull(words.at(3)),
          .directory = words.at(0)};
  for (std::size_t i = 4; i < words.size(); ++i)
    leg.row.push_back(static_cast<std::uint32_t>(std::stoul(words[i])));
  return leg;
}

Exit run_process(const Leg& leg, Communicator& ranks) {
  const auto all = [&]() -> Result<> {
    const auto faults = std::make_shared<libswap::FaultPlan>();
    EBB_TRY_ASSIGN(const auto io, libswap::IoQueue::start(failing(faults), {}));
    EBB_TRY_ASSIGN(const auto swap,
                   libswap::SwapDirectory::open(*io, leg.directory / "swap", ranks));
    Run run = run_of(leg.row);
    make_ready(run);
    return CoveringRank(leg, run, ranks, *faults).run(*io, *swap);
  };
  return tell(all(), ranks.rank());
}

Exit run_threads(const Leg& leg, const MakeAccelerator& make) {
  Run run = run_of(leg.row);
  make_ready(run, make);
  const auto faults = std::make_shared<libswap::FaultPlan>();
  World world(failing(faults), leg.directory / "swap", run.ranks);
  const auto answers = world.run([&](Communicator& ranks) {
    HostRanks over_host(ranks);
    Communicator& taken = run.takes == libmuon::Side::host ? over_host : ranks;
    return CoveringRank(leg, run, taken, *faults).run(world.io(), world.swap());
  });
  Exit worst = Exit::well;
  for (std::uint32_t rank = 0; rank < run.ranks; ++rank) {
    const Exit exit = tell(answers[rank], Rank{rank});
    if (worst != Exit::error && exit != Exit::well) worst = exit;
  }
  return worst;
}

}  // namespace ebb::test
