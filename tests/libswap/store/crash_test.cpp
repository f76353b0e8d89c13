// The real store, killed at every durable operation of every rank, and made to fail at every
// operation: what recovery finds is exactly one generation, never a mix, and never older than what
// was promised.
#include <gtest/gtest.h>

#include <atomic>

#include "ebb/formats/native/store_files.h"
#include "ebb/libswap/testing/fault_backend.h"
#include "tests/libswap/store/store_world.h"

namespace ebb::libswap {
namespace {

using Plans = std::vector<std::shared_ptr<FaultPlan>>;

// How the last rank fails in kAbandonedStep.
enum class Failure : std::uint8_t {
  before_prepare,  // a write failed: it has no manifest
  after_prepare,   // its manifest is as durable as those of the others, but it says no
};
struct Scenario {
  std::uint32_t world = 1;
  std::uint32_t slots = 2;
  Failure failure = Failure::before_prepare;
};
constexpr std::uint64_t kAbandonedStep = 2;
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

// What the ranks were told until something went wrong.
struct Told {
  std::atomic<std::uint64_t> committed = 0;  // the newest step
  std::atomic<bool> abandoned = false;       // kAbandonedStep is over
};

Result<bool> train_one_step(const Scenario& scenario, IoQueue& io, Store& store, Agreement& ranks,
                            std::uint64_t step) {
  const Error failure{Code::io, "this rank says no"};
  const bool fails =
      step == kAbandonedStep && index_of(store.superblock().rank) == scenario.world - 1;
  Result<> written = write_tiles(io, store, step);
  if (!store.can_cut()) return failure;
  store.cut(step);
  if (fails && scenario.failure == Failure::before_prepare) written = failure;
  Result<> prepared = written ? store.prepare(test_manifest()) : std::move(written);
  if (fails && prepared) prepared = failure;
  return settle(store, ranks, prepared);
}

void train(const Scenario& scenario, const std::shared_ptr<MemoryDisk>& disk, const Plans& plans,
           Told& told) {
  run_ranks(scenario.world, [&](std::uint32_t rank, Agreement& ranks) {
    const auto io = faulty_queue(disk, plans[rank]);
    const auto store = Store::create(*io, test_config(rank, scenario.world, scenario.slots));
    if (!store) return;
    if (!(*store)->recover(ranks)) return;
    for (std::uint64_t step = 1; step <= kSteps; ++step) {
      const auto committed = train_one_step(scenario, *io, **store, ranks, step);
      if (!committed) return;
      if (*committed)
        raise_to(told.committed, step);
      else
        told.abandoned = true;
    }
  });
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
                 const Told& told, std::uint64_t most_kills) {
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
    ASSERT_GE(last.step, told.committed) << "kill " << kill_at;
    ASSERT_LE(last.step, kSteps + 1);
    if (told.abandoned) {
      ASSERT_NE(last.step, kAbandonedStep) << "kill " << kill_at;
    }
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
      Told told;
      train(scenario, disk, plans, told);
      if (!plans[victim]->died()) {
        EXPECT_EQ(told.committed, kSteps);
        break;
      }
      ++kills;
      with_state += told.committed > 0 ? 1 : 0;
      SCOPED_TRACE("rank " + std::to_string(victim) + " killed at " + std::to_string(kill_at));
      for (const auto unsynced :
           {PowerLoss::Unsynced::kept, PowerLoss::Unsynced::lost, PowerLoss::Unsynced::drawn}) {
        const std::uint64_t most = unsynced == PowerLoss::Unsynced::drawn ? 8 * scenario.world : 0;
        check_image(scenario, disk->after({unsynced, kill_at}), told, most);
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
      Told told;
      train(scenario, disk, plans, told);
      for (const auto unsynced : {PowerLoss::Unsynced::kept, PowerLoss::Unsynced::lost}) {
        Found found;
        recover_all(scenario, disk->after({unsynced, 0}), fresh_plans(scenario.world), found);
        ASSERT_FALSE(found.mixed) << "fault " << at;
        ASSERT_FALSE(found.corrupt) << "fault " << at;
        ASSERT_GE(found.step, told.committed) << "fault " << at;
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
      Told told;
      train(scenario, disk, plans, told);
      Found found;
      recover_all(scenario, disk, fresh_plans(scenario.world), found);
      ASSERT_FALSE(found.mixed) << "fault " << at;
      noticed += found.corrupt ? 1 : 0;
    }
  EXPECT_GT(noticed, 0u);
}

INSTANTIATE_TEST_SUITE_P(
    Worlds, CrashSweep,
    testing::Values(Scenario{1, 2, Failure::before_prepare}, Scenario{1, 3, Failure::after_prepare},
                    Scenario{2, 2, Failure::before_prepare}, Scenario{2, 2, Failure::after_prepare},
                    Scenario{3, 3, Failure::after_prepare}),
    [](const testing::TestParamInfo<Scenario>& scenario) {
      return "Ranks" + std::to_string(scenario.param.world) + "Slots" +
             std::to_string(scenario.param.slots) +
             (scenario.param.failure == Failure::before_prepare ? "Early" : "Late");
    });

// --- a rank's folder restored from a backup
// --------------------------------------------------------

void copy_rank_folder(const std::shared_ptr<MemoryDisk>& from,
                      const std::shared_ptr<MemoryDisk>& to, std::uint32_t rank,
                      std::uint32_t world) {
  const auto source = start_queue(from);
  const auto target = start_queue(to);
  const fs::path folder =
      test_config(0, 1).directory / formats::native::rank_directory(Rank{rank}, world);
  const auto names = source->backend().list(folder);
  ASSERT_TRUE(names);
  for (const std::string& name : *names) {
    const auto in = source->backend().open(folder / name, {});
    const auto out = target->backend().open(folder / name, {.access = Access::read_write});
    ASSERT_TRUE(in && out);
    ByteVector bytes(source->backend().info(*in)->size);
    if (bytes.empty()) continue;
    ASSERT_TRUE(source->read(*in, 0, bytes));
    ASSERT_TRUE(target->write(*out, 0, bytes));
    ASSERT_TRUE(target->backend().sync(*out));
  }
}

// Commits steps 1 to 3 on two ranks, with a copy of the disk after step 2, and then writes step 4.
struct RolledBack {
  std::shared_ptr<MemoryDisk> disk = disk_with_swap_folder();
  std::shared_ptr<MemoryDisk> at_two;

  void train(const Scenario& scenario, std::uint64_t last_step) {
    const auto io = start_queue(disk);
    std::vector<std::unique_ptr<Store>> stores(2);
    for (std::uint64_t step = 1; step <= last_step; ++step) {
      run_ranks(2, [&](std::uint32_t rank, Agreement& ranks) {
        if (step == 1) {
          stores[rank] = *Store::create(*io, test_config(rank, 2, scenario.slots));
          ASSERT_TRUE(stores[rank]->recover(ranks));
        }
        if (step == 4)
          ASSERT_TRUE(write_tiles(*io, *stores[rank], step));
        else
          ASSERT_TRUE(*write_and_commit(*io, *stores[rank], ranks, step));
      });
      if (step == 2) at_two = disk->after({PowerLoss::Unsynced::kept, 0});
    }
  }
};

TEST(RestoredBackup, IsTakenWhenTheOthersStillHaveThatGenerationWhole) {
  RolledBack ranks;
  ranks.train({2, 3}, 3);
  copy_rank_folder(ranks.at_two, ranks.disk, 1, 2);
  Found found;
  recover_all({2, 3}, ranks.disk, fresh_plans(2), found);
  EXPECT_EQ(found.step, 2u);
  EXPECT_EQ(found.recovered, 2u);
  EXPECT_FALSE(found.mixed);
  EXPECT_FALSE(found.corrupt);
}

TEST(RestoredBackup, IsRefusedWhenTheOthersHaveReusedItsSlots) {
  RolledBack ranks;
  ranks.train({2, 2}, 4);
  copy_rank_folder(ranks.at_two, ranks.disk, 1, 2);
  Found found;
  recover_all({2, 2}, ranks.disk, fresh_plans(2), found);
  EXPECT_EQ(found.step, 0u);
  EXPECT_TRUE(found.corrupt);
  EXPECT_EQ(found.recovered, 0u);
}

}  // namespace
}  // namespace ebb::libswap
