// The real store, killed at every durable operation of every rank, and made to fail at every
// operation: what recovery finds is exactly one generation, never a mix, and never older than what
// was promised.
#include <gtest/gtest.h>

#include <atomic>

#include "libswap/sys/fault_backend.h"
#include "tests/libswap/store/store_world.h"

namespace libswap {
namespace {

using formats::Code;
using Plans = std::vector<std::shared_ptr<FaultPlan>>;

struct Scenario {
  std::uint32_t world = 1;
  std::uint32_t slots = 2;
};
constexpr std::uint64_t kAbandonedStep = 2;  // the last rank reports a failed write there
constexpr std::uint64_t kSteps = 4;
constexpr std::uint64_t kNever = std::uint64_t{1} << 40;  // no scenario has so many operations

void raise_to(std::atomic<std::uint64_t>& value, std::uint64_t floor) {
  std::uint64_t seen = value;
  while (seen < floor && !value.compare_exchange_weak(seen, floor)) {
  }
}

Plans fresh_plans(std::uint32_t world) {
  Plans plans;
  for (std::uint32_t rank = 0; rank < world; ++rank) plans.push_back(std::make_shared<FaultPlan>());
  return plans;
}

std::unique_ptr<IoQueue> faulty_queue(const std::shared_ptr<MemoryDisk>& disk,
                                      const std::shared_ptr<FaultPlan>& plan) {
  return start_queue(make_fault_backend(make_memory_backend(disk), plan));
}

// Creates and trains until something goes wrong. Returns the newest step any rank was told is
// committed.
std::uint64_t train(const Scenario& scenario, const std::shared_ptr<MemoryDisk>& disk,
                    const Plans& plans) {
  std::atomic<std::uint64_t> promised = 0;
  run_ranks(scenario.world, [&](std::uint32_t rank, Agreement& ranks) {
    const auto io = faulty_queue(disk, plans[rank]);
    const auto store = Store::create(*io, test_config(rank, scenario.world, scenario.slots));
    if (!store) return;
    if (!(*store)->recover(ranks)) return;
    for (std::uint64_t step = 1; step <= kSteps; ++step) {
      Result<> written = write_tiles(*io, **store, step);
      if (step == kAbandonedStep && rank == scenario.world - 1)
        written = formats::Error{Code::io, "this write failed", {}};
      if (!(*store)->can_cut()) return;
      (*store)->cut(step);
      // As with two slots, the next sweep waits; without the wait the order of operations varies.
      const Result<> prepared = written ? (*store)->prepare(test_manifest()) : std::move(written);
      const auto committed = (*store)->agree(ranks, prepared);
      if (!committed) return;
      if (*committed) raise_to(promised, step);
    }
  });
  return promised;
}

struct Found {
  std::atomic<std::uint64_t> step = 0;  // of all ranks; 0: no rank recovered anything
  std::atomic<bool> mixed = false;      // ranks at different steps, or bytes of another step
  std::atomic<bool> corrupt = false;    // noticed by a checksum
  std::atomic<std::uint32_t> recovered = 0;
};

void recover_all(const Scenario& scenario, const std::shared_ptr<MemoryDisk>& disk,
                 const Plans& plans, Found& found) {
  run_ranks(scenario.world, [&](std::uint32_t rank, Agreement& ranks) {
    const auto io = faulty_queue(disk, plans[rank]);
    const auto store = Store::open(*io, test_config(0, 1).directory, Rank{rank}, scenario.world);
    if (!store) return;
    const auto recovered = (*store)->recover(ranks);
    if (!recovered && recovered.error().code == Code::corrupt) found.corrupt = true;
    if (!recovered || !*recovered) return;
    const std::uint64_t step = (**recovered).step;
    std::uint64_t other = 0;
    if (!found.step.compare_exchange_strong(other, step) && other != step) found.mixed = true;
    const auto intact = check_tiles(*io, **store, step);
    if (!intact) (intact.error().code == Code::corrupt ? found.corrupt : found.mixed) = true;
    // The store works on: one more step commits, and its number is new.
    const auto committed = write_and_commit(*io, **store, ranks, kSteps + 1);
    if (committed && *committed) ++found.recovered;
  });
}

// Recovery; before it, one that is killed, at each of its operations in turn if `most_kills`
// allows.
void check_image(const Scenario& scenario, const std::shared_ptr<MemoryDisk>& image,
                 std::uint64_t promised, std::uint64_t most_kills) {
  for (std::uint64_t kill_at = most_kills == 0 ? kNever : 0;; ++kill_at) {
    const auto disk = image->after({PowerLoss::Unsynced::kept, 0});
    const Plans plans = fresh_plans(scenario.world);
    const auto victim = static_cast<std::uint32_t>(kill_at % scenario.world);
    plans[victim]->add(
        {.on = FaultOn::durable, .at = kill_at / scenario.world, .kind = FaultKind::die});
    Found first;
    recover_all(scenario, disk, plans, first);
    const bool died = plans[victim]->died();
    Found again;
    if (died)
      recover_all(scenario, disk->after({PowerLoss::Unsynced::lost, 0}),
                  fresh_plans(scenario.world), again);
    const Found& last = died ? again : first;
    ASSERT_FALSE(last.mixed) << "kill " << kill_at;
    ASSERT_FALSE(last.corrupt) << "kill " << kill_at;
    ASSERT_GE(last.step, promised) << "kill " << kill_at;
    ASSERT_LE(last.step, kSteps + 1);
    ASSERT_NE(last.step, kAbandonedStep);
    if (last.step != 0) {
      ASSERT_EQ(last.recovered, scenario.world);
    }
    if (!died || kill_at >= most_kills) return;
  }
}

class CrashSweep : public testing::TestWithParam<Scenario> {};

TEST_P(CrashSweep, EveryRankAtEveryDurableOperationLeavesOneWholeGeneration) {
  const Scenario scenario = GetParam();
  std::uint64_t kills = 0, with_state = 0;
  for (std::uint32_t victim = 0; victim < scenario.world; ++victim)
    for (std::uint64_t kill_at = 0;; ++kill_at) {
      const auto disk = disk_with_swap_folder();
      const Plans plans = fresh_plans(scenario.world);
      plans[victim]->add({.on = FaultOn::durable, .at = kill_at, .kind = FaultKind::die});
      const std::uint64_t promised = train(scenario, disk, plans);
      if (!plans[victim]->died()) {
        EXPECT_EQ(promised, kSteps);
        break;
      }
      ++kills;
      with_state += promised > 0 ? 1 : 0;
      SCOPED_TRACE("rank " + std::to_string(victim) + " killed at " + std::to_string(kill_at));
      for (const auto unsynced :
           {PowerLoss::Unsynced::kept, PowerLoss::Unsynced::lost, PowerLoss::Unsynced::drawn}) {
        const std::uint64_t most = unsynced == PowerLoss::Unsynced::drawn ? 8 * scenario.world : 0;
        check_image(scenario, disk->after({unsynced, kill_at}), promised, most);
        if (HasFatalFailure()) return;
      }
    }
  // create alone has a dozen operations, each commit at least six
  EXPECT_GE(kills, scenario.world * 30);
  EXPECT_GE(with_state, scenario.world * 15);
}

// One operation goes wrong, the process lives on: a typed error or success; the promise holds.
TEST_P(CrashSweep, EveryOperationThatFailsGivesSuccessOrAnErrorAndTheOldStateStays) {
  const Scenario scenario = GetParam();
  const std::vector<Fault> faults = {
      {.on = FaultOn::durable, .kind = FaultKind::fail, .error = EIO},
      {.on = FaultOn::durable, .kind = FaultKind::fail, .error = ENOSPC},
      {.on = FaultOn::write, .kind = FaultKind::short_transfer},
      {.on = FaultOn::sync, .count = FaultPlan::kForEver, .kind = FaultKind::fail, .error = EIO},
  };
  const auto victim = scenario.world - 1;
  for (const Fault& kind : faults)
    for (std::uint64_t at = 0; at < 60; ++at) {
      const auto disk = disk_with_swap_folder();
      const Plans plans = fresh_plans(scenario.world);
      Fault fault = kind;
      fault.at = at;
      plans[victim]->add(fault);
      const std::uint64_t promised = train(scenario, disk, plans);
      for (const auto unsynced : {PowerLoss::Unsynced::kept, PowerLoss::Unsynced::lost}) {
        Found found;
        recover_all(scenario, disk->after({unsynced, 0}), fresh_plans(scenario.world), found);
        ASSERT_FALSE(found.mixed) << "fault " << at;
        ASSERT_FALSE(found.corrupt) << "fault " << at;
        ASSERT_GE(found.step, promised) << "fault " << at;
      }
    }
}

// Disks that lie: what they report as written is torn or lies elsewhere. A checksum must notice.
TEST_P(CrashSweep, TornAndMisdirectedWritesAreNoticedOrHarmless) {
  const Scenario scenario = GetParam();
  std::uint64_t noticed = 0;
  for (const FaultKind kind : {FaultKind::torn, FaultKind::misdirected})
    for (std::uint64_t at = 0; at < 40; ++at) {
      const auto disk = disk_with_swap_folder();
      const Plans plans = fresh_plans(scenario.world);
      plans[0]->add({.on = FaultOn::write, .at = at, .kind = kind});
      train(scenario, disk, plans);
      Found found;
      recover_all(scenario, disk, fresh_plans(scenario.world), found);
      ASSERT_FALSE(found.mixed) << "fault " << at;
      noticed += found.corrupt ? 1 : 0;
    }
  EXPECT_GT(noticed, 0u);
}

INSTANTIATE_TEST_SUITE_P(Worlds, CrashSweep,
                         testing::Values(Scenario{1, 2}, Scenario{1, 3}, Scenario{2, 2},
                                         Scenario{3, 3}),
                         [](const testing::TestParamInfo<Scenario>& scenario) {
                           return "Ranks" + std::to_string(scenario.param.world) + "Slots" +
                                  std::to_string(scenario.param.slots);
                         });

}  // namespace
}  // namespace libswap
