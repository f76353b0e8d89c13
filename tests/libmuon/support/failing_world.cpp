#include "tests/libmuon/support/failing_world.h"

namespace ebb::test {

using libswap::FaultOn;

libmuon::EngineConfig config_with(std::uint64_t budget, std::uint32_t slots,
                                  const libmuon::StateDTypes& dtypes,
                                  libmuon::Placement placement) {
  return config_of(Training{.ranks = 2,
                            .placement = placement,
                            .chunk_bytes = 20000,
                            .budget_bytes = budget,
                            .slots = slots,
                            .dtypes = dtypes},
                   nuisance_model());
}

FailingWorld::FailingWorld(std::unique_ptr<libswap::IoBackend> backend,
                           const std::filesystem::path& folder)
    : world(libswap::make_fault_backend(
                backend ? std::move(backend)
                        : libswap::make_memory_backend(libswap::MemoryDisk::create(kMuch)),
                faults),
            folder, 2) {}

Result<> FailingWorld::meanwhile(libmuon::Communicator& ranks,
                                 const std::function<void()>& action) {
  EBB_TRY(ranks.agree(0));
  if (ranks.rank() == Rank{0}) action();
  EBB_TRY(ranks.agree(0));
  return {};
}

Result<> FailingWorld::fail_reads(libmuon::Communicator& ranks, std::uint64_t at) {
  return meanwhile(ranks, [&] {
    faults->add({.on = FaultOn::read,
                 .at = at,
                 .count = libswap::FaultPlan::kForEver,
                 .path_part = "rank-00001"});
  });
}

Result<bool> FailingWorld::mend(libmuon::Communicator& ranks, RankEngine& rank,
                                const Result<libmuon::StepResult>& cut) {
  EBB_TRY(meanwhile(ranks, [&] { faults->clear(); }));
  if (cut) return false;
  EBB_TRY(rank.engine().continue_step());
  return true;
}

void expect_well(const std::vector<Result<>>& answers) {
  for (const auto& answer : answers) EXPECT_TRUE(answer) << answer.error().message;
}

Result<> step_to(RankEngine& rank, std::uint64_t last) {
  while (rank.engine().step_count() < last) {
    EBB_TRY(rank.hand_in(rank.engine().step_count() + 1));
    EBB_TRY(rank.step());
  }
  return {};
}

std::vector<float> weights_after(std::uint64_t steps, const libmuon::StateDTypes& dtypes) {
  FailingWorld clean;
  std::vector<float> weights;
  expect_well(clean.world.run([&](libmuon::Communicator& ranks) -> Result<> {
    EBB_TRY_ASSIGN(auto rank, RankEngine::open(clean.world, ranks, config_with(kMuch, 3, dtypes)));
    EBB_TRY(step_to(rank, steps));
    if (ranks.rank() == Rank{1}) weights = rank.flat_weights();
    return {};
  }));
  return weights;
}

}  // namespace ebb::test
