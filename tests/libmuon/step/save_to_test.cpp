// Away from a disk that fails: the state goes to another one, and training with it.
#include <gtest/gtest.h>

#include <string>

#include "tests/libmuon/support/failing_world.h"
#include "tests/libmuon/support/late_accelerator.h"

namespace ebb::test {
namespace {

using libmuon::Communicator;
using libswap::FaultOn;
using libswap::FaultPlan;

// Two disks, of which the first will fail.
struct TwoDisks {
  FailingWorld failing;
  std::unique_ptr<libswap::SwapDirectory> other = open("/other");

  std::unique_ptr<libswap::SwapDirectory> open(const std::string& path) {
    auto opened = libswap::SwapDirectory::open(failing.world.io(), path);
    EBB_CHECK(opened.has_value());
    return std::move(*opened);
  }
  Result<> break_the_first(Communicator& ranks, libswap::Fault fault) {
    fault.path_part = "/swap/" + fault.path_part;
    fault.count = FaultPlan::kForEver;
    return failing.meanwhile(ranks, [&] { failing.faults->add(fault); });
  }
  // What another process finds there: the step it resumes at, and the weights it comes to.
  void expect_resumed(libswap::SwapDirectory& directory, std::uint64_t step, std::uint64_t last,
                      std::uint64_t budget,
                      libmuon::Placement placement = libmuon::Placement::owner) {
    const auto wanted = weights_after(last);
    failing.faults->clear();
    failing.world.reconnect();
    expect_well(failing.world.run([&](Communicator& ranks) -> Result<> {
      EBB_TRY_ASSIGN(auto rank, RankEngine::open(failing.world.io(), directory, ranks,
                                                 config_with(budget, 3, {}, placement)));
      EXPECT_EQ(rank.engine().origin(), compose("resumed the store at step {}", step));
      EBB_TRY(step_to(rank, last));
      if (ranks.rank() == Rank{1}) {
        EXPECT_EQ(rank.flat_weights(), wanted);
      }
      return {};
    }));
  }
};

void expect_weights(Communicator& ranks, RankEngine& rank, std::uint64_t step) {
  if (ranks.rank() == Rank{1}) {
    EXPECT_EQ(rank.flat_weights(), weights_after(step));
  }
}

// A snapshot stops all on files of the store that fail for good: training goes on elsewhere.
void expect_goes_on_after(const std::vector<libswap::Fault>& faults, std::uint64_t budget) {
  TwoDisks disks;
  expect_well(disks.failing.world.run([&](Communicator& ranks) -> Result<> {
    EBB_TRY_ASSIGN(auto rank, RankEngine::open(disks.failing.world, ranks, config_with(budget)));
    libmuon::Engine& engine = rank.engine();
    EBB_TRY(step_to(rank, 2));
    EBB_TRY(rank.commit());
    EBB_TRY(step_to(rank, 3));
    const std::string store = engine.store_directory().filename().string();
    for (libswap::Fault fault : faults) {
      fault.path_part = store + fault.path_part;
      EBB_TRY(disks.break_the_first(ranks, fault));
    }
    EBB_TRY(engine.snapshot());
    const auto lost = engine.wait_snapshot();
    expect_error(lost, Code::state, "wait_snapshot");
    if (!lost) {
      EXPECT_NE(lost.error().hint.find("save_to()"), std::string::npos) << lost.error().hint;
    }
    EBB_TRY(rank.hand_in(4));
    for (int time = 0; time < 2; ++time) {
      expect_error(rank.step(), Code::state, "step");
      expect_error(engine.snapshot(), Code::state, "snapshot");
    }
    EBB_TRY(engine.save_to(*disks.other));
    EXPECT_EQ(engine.committed_step(), 3u);
    EXPECT_EQ(engine.store_directory().parent_path(), "/other");
    EXPECT_TRUE(disks.other->current());
    EBB_TRY(rank.step());  // with the gradients that were refused
    EBB_TRY(step_to(rank, 5));
    EBB_TRY(rank.commit());
    expect_weights(ranks, rank, 5);
    return {};
  }));
  disks.other = nullptr;
  disks.other = disks.open("/other");
  disks.expect_resumed(*disks.other, 5, 6, budget);
  disks.failing.world.reopen(2);
  disks.expect_resumed(disks.failing.world.swap(), 2, 4, budget);
}

TEST(SaveTo, GoesOnAfterADiskThatDidNotKeepItsPromise) {
  for (const std::uint64_t budget : {kLittle, kHalf, kMuch})
    expect_goes_on_after({{.on = FaultOn::sync}}, budget);
}

// No rank's manifest can be written, nor called void: it may lie there or not.
TEST(SaveTo, GoesOnWhereAGenerationIsNeitherCommittedNorAbandoned) {
  for (const std::uint64_t budget : {kLittle, kMuch})
    expect_goes_on_after({{.on = FaultOn::write, .path_part = "/rank-00000-of-00002/meta.ebb"},
                          {.on = FaultOn::write, .path_part = "/rank-00001-of-00002/meta.ebb"}},
                         budget);
}

// Wherever the disk began to fail, for good.
void expect_stopped_steps_go_on(FaultOn on, std::uint64_t budget, std::uint64_t least,
                                libmuon::Placement placement = libmuon::Placement::owner) {
  std::uint64_t stopped = 0;
  for (std::uint64_t at = 0; at < 100; ++at) {
    bool saved = false;
    TwoDisks disks;
    expect_well(disks.failing.world.run([&](Communicator& ranks) -> Result<> {
      EBB_TRY_ASSIGN(auto rank, RankEngine::open(disks.failing.world, ranks,
                                                 config_with(budget, 3, {}, placement)));
      EBB_TRY(step_to(rank, 1));
      EBB_TRY(disks.break_the_first(ranks, {.on = on, .at = at, .path_part = ""}));
      EBB_TRY(rank.hand_in(2));
      if (rank.step()) return {};
      if (on == FaultOn::read)  // what cannot be read cannot be saved: the disk must answer again
        EBB_TRY(disks.failing.meanwhile(ranks, [&] { disks.failing.faults->clear(); }));
      EBB_TRY(rank.engine().save_to(*disks.other));
      EBB_TRY(rank.engine().continue_step());
      EXPECT_EQ(rank.engine().step_count(), 2u);
      EXPECT_EQ(rank.engine().committed_step(), 0u) << "nothing there is committed yet";
      EBB_TRY(rank.commit());
      EBB_TRY(step_to(rank, 3));
      expect_weights(ranks, rank, 3);
      EBB_TRY(rank.engine().abandon_step());  // to the generation there
      expect_weights(ranks, rank, 2);
      EBB_TRY(step_to(rank, 3));
      expect_weights(ranks, rank, 3);
      if (ranks.rank() == Rank{1}) saved = true;
      return {};
    }));
    if (!saved || testing::Test::HasFailure()) break;
    ++stopped;
    disks.other = nullptr;
    disks.other = disks.open("/other");
    disks.expect_resumed(*disks.other, 2, 3, budget, placement);
  }
  EXPECT_GE(stopped, least);
}

TEST(SaveTo, TakesAStoppedStepAlongWhicheverWriteFailed) {
  expect_stopped_steps_go_on(FaultOn::write, kLittle, 10);
  expect_stopped_steps_go_on(FaultOn::write, kHalf, 5);
  expect_stopped_steps_go_on(FaultOn::write, kLittle, 10, libmuon::Placement::shard);
}
TEST(SaveTo, TakesAStoppedStepAlongWhicheverReadFailed) {
  expect_stopped_steps_go_on(FaultOn::read, kLittle, 10);
  expect_stopped_steps_go_on(FaultOn::read, kLittle, 10, libmuon::Placement::shard);
}

// Its first generation there is committed, and an error keeps the directory from taking it for its
// own: it is no less the one to go back to.
TEST(SaveTo, GoesBackToAGenerationThatCouldNotBeAdopted) {
  std::uint64_t failed = 0;
  for (std::uint64_t at = 0; at < 12; ++at) {
    bool refused = false;
    TwoDisks disks;
    expect_well(disks.failing.world.run([&](Communicator& ranks) -> Result<> {
      EBB_TRY_ASSIGN(auto rank, RankEngine::open(disks.failing.world, ranks, config_with(kLittle)));
      libmuon::Engine& engine = rank.engine();
      EBB_TRY(step_to(rank, 1));
      EBB_TRY(disks.break_the_first(ranks, {.on = FaultOn::write, .path_part = ""}));
      EBB_TRY(rank.hand_in(2));
      EXPECT_FALSE(rank.step());
      EBB_TRY(engine.save_to(*disks.other));
      EBB_TRY(engine.continue_step());
      EBB_TRY(engine.snapshot());
      EBB_TRY(disks.failing.meanwhile(ranks, [&] {
        disks.failing.faults->add({.on = FaultOn::read, .at = at, .path_part = "/other/"});
      }));
      const auto committed = engine.wait_snapshot();
      if (committed) return {};
      if (ranks.rank() == Rank{0}) refused = true;
      EBB_TRY(engine.abandon_step());
      EXPECT_EQ(engine.step_count(), 2u);
      expect_weights(ranks, rank, 2);
      EBB_TRY(step_to(rank, 3));
      expect_weights(ranks, rank, 3);
      return {};
    }));
    if (testing::Test::HasFailure()) break;
    if (!refused) continue;  // there is no such read, or it was a tile's, which is repeated
    ++failed;
    disks.other = nullptr;
    disks.other = disks.open("/other");
    disks.expect_resumed(*disks.other, 2, 3, kLittle);
  }
  EXPECT_GE(failed, 1u);
}

// One that was begun there, and whose failure nobody has heard of yet.
TEST(SaveTo, LeavesAGenerationBehindThatTheDiskDidNotKeep) {
  TwoDisks disks;
  expect_well(disks.failing.world.run([&](Communicator& ranks) -> Result<> {
    EBB_TRY_ASSIGN(auto rank, RankEngine::open(disks.failing.world, ranks, config_with(kHalf)));
    EBB_TRY(step_to(rank, 2));
    EBB_TRY(rank.commit());
    EBB_TRY(step_to(rank, 3));
    EBB_TRY(disks.break_the_first(ranks, {.on = FaultOn::sync}));
    EBB_TRY(rank.engine().snapshot());
    EBB_TRY(rank.engine().save_to(*disks.other));
    EXPECT_EQ(rank.engine().committed_step(), 3u);
    EBB_TRY(step_to(rank, 4));
    expect_weights(ranks, rank, 4);
    return {};
  }));
}

TEST(SaveTo, ChecksEveryTileAndChangesNothingWhenOneIsDamaged) {
  TwoDisks disks;
  expect_well(disks.failing.world.run([&](Communicator& ranks) -> Result<> {
    EBB_TRY_ASSIGN(auto rank, RankEngine::open(disks.failing.world, ranks, config_with(kLittle)));
    EBB_TRY(step_to(rank, 2));
    EBB_TRY(disks.failing.meanwhile(ranks, [&] {
      disks.failing.faults->add({.on = FaultOn::read,
                                 .at = 4,
                                 .kind = libswap::FaultKind::misdirected,
                                 .path_part = "rank-00000-of"});
    }));
    const auto saved = rank.engine().save_to(*disks.other);
    EXPECT_FALSE(saved);
    if (!saved && ranks.rank() == Rank{0}) {
      EXPECT_EQ(saved.error().code, Code::corrupt) << saved.error().message;
      EXPECT_NE(saved.error().message.find("tile"), std::string::npos) << saved.error().message;
    }
    EXPECT_FALSE(disks.other->current());
    EBB_TRY(step_to(rank, 3));
    EBB_TRY(rank.engine().save_to(*disks.other));
    EBB_TRY(step_to(rank, 4));
    expect_weights(ranks, rank, 4);
    return {};
  }));
}

TEST(SaveTo, IsRefusedWhereAStoreLiesAlready) {
  TwoDisks disks;
  expect_well(disks.failing.world.run([&](Communicator& ranks) -> Result<> {
    EBB_TRY_ASSIGN(auto rank, RankEngine::open(disks.failing.world, ranks, config_with(kLittle)));
    EBB_TRY(step_to(rank, 1));
    expect_error(rank.engine().save_to(disks.failing.world.swap()), Code::usage, "its own");
    EBB_TRY(rank.engine().save_to(*disks.other));
    EBB_TRY(step_to(rank, 2));
    expect_error(rank.engine().save_to(*disks.other), Code::usage, "its own now");
    expect_error(rank.engine().save_to(disks.failing.world.swap()), Code::usage,
                 "it has an old one");
    EBB_TRY(step_to(rank, 3));
    expect_weights(ranks, rank, 3);
    return {};
  }));
}

// State at home on a device goes along, out of that device's memory.
TEST(SaveTo, TakesWhatIsAtHomeOnADevice) {
  LateAccelerator accelerator(5, 50);
  TwoDisks disks;
  auto config = config_with(kMuch);
  config.accelerator = &accelerator;
  config.tiers = {{"momentum_buffer", libswap::Tier::device}, {"exp_avg", libswap::Tier::nvme}};
  expect_well(disks.failing.world.run([&](Communicator& ranks) -> Result<> {
    EBB_TRY_ASSIGN(auto rank, RankEngine::open(disks.failing.world, ranks, config));
    EBB_TRY(step_to(rank, 2));
    EBB_TRY(disks.break_the_first(ranks, {.on = FaultOn::write}));
    EBB_TRY(rank.engine().save_to(*disks.other));
    EBB_TRY(step_to(rank, 3));
    EBB_TRY(rank.commit());
    return {};
  }));
  disks.other = nullptr;
  disks.other = disks.open("/other");
  disks.expect_resumed(*disks.other, 3, 4, kMuch);
}

}  // namespace
}  // namespace ebb::test
