// Ranks as processes, each with a queue and a swap directory of its own: over one directory and
// over one each. No test starts a thread in this process: it forks.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <fstream>
#include <thread>

#include "ebb/libswap/queue/io_queue.h"
#include "ebb/libswap/testing/fault_backend.h"
#include "ebb/libswap/testing/memory_backend.h"
#include "tests/libmuon/support/processes.h"
#include "tests/libmuon/support/training.h"
#include "tests/libmuon/support/world.h"
#include "tests/support/alarm.h"
#include "tests/support/program.h"

namespace ebb::test {
namespace {

namespace fs = std::filesystem;
using libmuon::Communicator;

constexpr std::chrono::milliseconds kLimit(20000);
constexpr std::uint64_t kLittle = 4 * 4096;

enum class Place : std::uint8_t { one_directory, one_each };

struct Case {
  std::uint32_t ranks = 2;
  Place place = Place::one_directory;
};

std::string name_of(const testing::TestParamInfo<Case>& info) {
  return std::to_string(info.param.ranks) +
         (info.param.place == Place::one_each ? "OnOneEach" : "OnOne");
}

fs::path directory_of(const fs::path& base, Place place, Rank rank) {
  return place == Place::one_each ? base / ("node-" + std::to_string(index_of(rank)))
                                  : base / "swap";
}

void write_file(const fs::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

std::string bytes_of(const std::vector<float>& numbers) {
  return {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(float)};
}

Training setup_of(std::uint32_t ranks) {
  return {.ranks = ranks, .gradients = Policy::zero3, .budget_bytes = kLittle};
}

// What a run of processes left behind.
struct Told {
  std::vector<std::string> errors;  // by rank
  std::string weights, origin;      // of rank 0
};

// Where a rank pages, and which directories of an earlier run it reaches.
using Places = std::function<std::pair<fs::path, std::vector<fs::path>>(Rank)>;

Told train_processes(const fs::path& base, std::uint32_t world, const Places& places,
                     std::uint64_t last_step) {
  const auto told_by = [&](Rank rank, const char* what) {
    return base / (std::string(what) + "-" + std::to_string(index_of(rank)));
  };
  const auto answers = run_processes(world, kLimit, [&](std::unique_ptr<Communicator> ranks) {
    const auto [directory, sources] = places(ranks->rank());
    const auto outcome = train_in_process(setup_of(world), *ranks, directory, last_step, sources);
    write_file(told_by(ranks->rank(), "error"), outcome.error);
    write_file(told_by(ranks->rank(), "weights"), bytes_of(outcome.weights));
    write_file(told_by(ranks->rank(), "origin"), outcome.origin);
    return 0;
  });
  EXPECT_EQ(answers, std::vector<int>(world, 0));
  Told told;
  for (std::uint32_t rank = 0; rank < world; ++rank)
    told.errors.push_back(test_support::text_of_file(told_by(Rank{rank}, "error")));
  told.weights = test_support::text_of_file(told_by(Rank{0}, "weights"));
  told.origin = test_support::text_of_file(told_by(Rank{0}, "origin"));
  return told;
}

Told train_processes(const fs::path& base, const Case& on, std::uint64_t last_step) {
  const auto places = [&](Rank rank) {
    return std::pair(directory_of(base, on.place, rank), std::vector<fs::path>());
  };
  return train_processes(base, on.ranks, places, last_step);
}

// Of rank threads that were never interrupted.
std::string weights_of_threads(std::uint64_t steps) {
  const TempDir directory;
  const fs::path file = directory.path() / "weights";
  const auto answers = run_processes(1, kLimit, [&](std::unique_ptr<Communicator>) {
    const Outcome outcome = train(Training{.ranks = 2}, directory.path() / "swap", steps);
    write_file(file, bytes_of(outcome.weights));
    return outcome.error.empty() ? 0 : 1;
  });
  EXPECT_EQ(answers, std::vector<int>{0});
  return test_support::text_of_file(file);
}

std::vector<std::string> names_in(const fs::path& directory) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(directory))
    names.push_back(entry.path().filename().string());
  std::ranges::sort(names);
  return names;
}

class ProcessesTrain : public testing::TestWithParam<Case> {
 protected:
  const TempDir base_;
  const Case on_ = GetParam();
  fs::path directory(std::uint32_t rank) const {
    return directory_of(base_.path(), on_.place, Rank{rank});
  }
};

TEST_P(ProcessesTrain, AndResumeWithTheBitsOfARunOfThreads) {
  const Told first = train_processes(base_.path(), on_, 3);
  EXPECT_EQ(first.errors, std::vector<std::string>(on_.ranks));
  EXPECT_EQ(first.origin, "created at step 0");
  const Told second = train_processes(base_.path(), on_, 6);
  EXPECT_EQ(second.errors, std::vector<std::string>(on_.ranks));
  EXPECT_EQ(second.origin, "resumed the store at step 3");
  ASSERT_FALSE(second.weights.empty());
  EXPECT_TRUE(second.weights == weights_of_threads(6));
  for (std::uint32_t rank = 0; rank < on_.ranks; ++rank)
    EXPECT_EQ(names_in(directory(rank)).size(), 2u) << "a lock and a store";
}

TEST_P(ProcessesTrain, AFolderThatIsInNobodysDirectoryIsNamedAndNothingIsTouched) {
  train_processes(base_.path(), on_, 2);
  fs::path lost;
  for (const auto& entry : fs::recursive_directory_iterator(directory(1)))
    if (entry.path().filename().string().starts_with("rank-00001-of-")) lost = entry.path();
  ASSERT_FALSE(lost.empty());
  fs::rename(lost, base_.path() / "elsewhere");
  const auto before = names_in(directory(0));
  const Told told = train_processes(base_.path(), on_, 3);
  for (const std::string& error : told.errors)
    EXPECT_NE(error.find(lost.filename().string() + "/meta.ebb: this rank's file is missing"),
              std::string::npos)
        << error;
  EXPECT_EQ(names_in(directory(0)), before);
  fs::rename(base_.path() / "elsewhere", lost);
  EXPECT_EQ(train_processes(base_.path(), on_, 3).origin, "resumed the store at step 2");
}

// The world has to stay usable after a failed open: every rank made the same calls.
class NeverAborted : public RanksBelow {
 public:
  using RanksBelow::RanksBelow;
  void abort() override {}
};

TEST_P(ProcessesTrain, AStoreThatCouldNotBeMadeCanBeTriedAgainInTheSameProcesses) {
  const auto body = [&](Communicator& below) -> Result<> {
    NeverAborted ranks(below);
    const bool fails = ranks.rank() == Rank{1};
    const auto faults = std::make_shared<libswap::FaultPlan>();
    EBB_TRY_ASSIGN(auto chosen, libswap::open_backend(libswap::BackendChoice::automatic));
    EBB_TRY_ASSIGN(const auto io,
                   libswap::IoQueue::start(
                       libswap::make_fault_backend(std::move(chosen.backend), faults), {}));
    const auto config = config_of(setup_of(on_.ranks), nuisance_model());
    const fs::path path = directory(index_of(ranks.rank()));
    EBB_TRY_ASSIGN(const auto swap, libswap::SwapDirectory::open(*io, path, ranks));
    if (fails)
      faults->add(
          {.on = libswap::FaultOn::durable, .at = 2, .error = ENOSPC, .path_part = "rank-00001"});
    const auto refused = RankEngine::open(*io, *swap, ranks, config);
    EXPECT_FALSE(refused);
    EXPECT_EQ(refused.error().code, fails ? Code::no_space : Code::peer);
    EBB_TRY(ranks.agree(0));
    EXPECT_EQ(names_in(path), std::vector<std::string>{"lock"});
    EBB_TRY(ranks.agree(0));
    EBB_TRY_ASSIGN(auto rank, RankEngine::open(*io, *swap, ranks, config));
    EXPECT_EQ(rank.engine().origin(), "created at step 0");
    EBB_TRY(rank.hand_in(1));
    EBB_TRY(rank.step());
    return {};
  };
  const auto answers = run_processes(on_.ranks, kLimit, [&](std::unique_ptr<Communicator> ranks) {
    const auto done = body(*ranks);
    EXPECT_TRUE(done) << done.error().message;
    return testing::Test::HasFailure() ? 1 : 0;
  });
  EXPECT_EQ(answers, std::vector<int>(on_.ranks, 0));
}

INSTANTIATE_TEST_SUITE_P(Ranks, ProcessesTrain,
                         testing::Values(Case{2, Place::one_directory}, Case{2, Place::one_each},
                                         Case{3, Place::one_directory}, Case{3, Place::one_each}),
                         name_of);

TEST(Processes, ResumeASharedDirectoryOnAnotherNumberOfRanks) {
  const TempDir base;
  EXPECT_EQ(train_processes(base.path(), {2, Place::one_directory}, 2).errors[0], "");
  const Told more = train_processes(base.path(), {3, Place::one_directory}, 4);
  EXPECT_EQ(more.errors, std::vector<std::string>(3));
  EXPECT_EQ(more.origin, "transferred the store of 2 ranks at step 2");
  EXPECT_TRUE(more.weights == weights_of_threads(4));
  EXPECT_EQ(names_in(base.path() / "swap").size(), 2u);
}

// Four ranks with a directory each trained to step 2; later runs are on directories of their own.
class OnOtherRanks : public testing::Test {
 protected:
  const TempDir base_;

  void SetUp() override {
    EXPECT_EQ(train_processes(base_.path(), {4, Place::one_each}, 2).errors,
              std::vector<std::string>(4));
  }
  fs::path old(std::uint32_t rank) const {
    return directory_of(base_.path(), Place::one_each, Rank{rank});
  }
  fs::path fresh(Rank rank) const {
    return base_.path() / ("new-" + std::to_string(index_of(rank)));
  }
  // `reach`: the old directories that each rank reaches.
  Told train(const std::vector<std::vector<std::uint32_t>>& reach, std::uint64_t last_step) const {
    const auto places = [&](Rank rank) {
      std::vector<fs::path> sources = {base_.path() / "not-mounted-here"};
      for (const std::uint32_t one : reach[index_of(rank)]) sources.push_back(old(one));
      return std::pair(fresh(rank), sources);
    };
    return train_processes(base_.path(), static_cast<std::uint32_t>(reach.size()), places,
                           last_step);
  }
};

TEST_F(OnOtherRanks, EachOldDirectoryIsReadByWhoeverReachesIt) {
  const std::string wanted = weights_of_threads(4);
  const auto before = names_in(old(3));
  const Told first = train({{0, 3}, {1, 2}}, 4);
  EXPECT_EQ(first.errors, std::vector<std::string>(2));
  EXPECT_EQ(first.origin, "transferred the store of 4 ranks at step 2");
  ASSERT_FALSE(first.weights.empty());
  EXPECT_TRUE(first.weights == wanted);
  EXPECT_EQ(names_in(old(3)), before) << "sources are read only";
  const Told again = train({{0, 3}, {1, 2}}, 4);
  EXPECT_EQ(again.errors, std::vector<std::string>(2));
  EXPECT_EQ(again.origin, "resumed the store at step 4");
}

TEST_F(OnOtherRanks, OneRankMayReachThemAllAndSeveralTheSame) {
  const std::string wanted = weights_of_threads(3);
  for (const auto& reach : {std::vector<std::vector<std::uint32_t>>{{}, {0, 1, 2, 3}, {}},
                            std::vector<std::vector<std::uint32_t>>{{0, 1}, {1, 2, 3}, {3, 0}}}) {
    const Told told = train(reach, 3);
    EXPECT_EQ(told.errors, std::vector<std::string>(3));
    EXPECT_EQ(told.origin, "transferred the store of 4 ranks at step 2");
    EXPECT_TRUE(told.weights == wanted);
    for (const std::uint32_t rank : {0u, 1u, 2u}) fs::remove_all(fresh(Rank{rank}));
  }
}

// Matrices lie whole at their owners, of what AdamW steps each rank holds a part.
TEST_F(OnOtherRanks, ADirectoryThatNobodyReachesIsNamedWithWhatIsLostAndNothingIsMade) {
  const auto model = nuisance_model();
  const auto partition = config_of(setup_of(4), model).partition;
  const auto plan = libmuon::StatePlan::make(model, partition, 4096, Rank{2}, 1u << 28);
  ASSERT_TRUE(plan);
  std::string all, parts;
  for (std::uint32_t param = 0; param < model.params.size(); ++param) {
    std::uint64_t lost = 0;
    for (const FlatRange own : plan->own_ranges(param)) lost += own.count;
    std::string& where = lost == formats::volume(model.params[param].shape) ? all : parts;
    if (lost > 0) where += (where.empty() ? " " : ", ") + model.params[param].name;
  }
  ASSERT_FALSE(all.empty() || parts.empty());
  const Told told = train({{0, 3}, {1}}, 4);
  for (const std::string& error : told.errors) {
    EXPECT_NE(error.find("rank-00002-of-00004/meta.ebb: this rank's file is missing, and no other "
                         "rank reaches it; lost with it: all of" +
                         all + "; parts of" + parts),
              std::string::npos)
        << error;
    EXPECT_EQ(error, told.errors[0]);
  }
  for (const std::uint32_t rank : {0u, 1u})
    EXPECT_EQ(names_in(fresh(Rank{rank})), std::vector<std::string>{"lock"});
}

// A run that stays in its directory until it is told to go.
TEST(Processes, ASecondRunIsRefusedWithThePidOfTheFirst) {
  const TempDir base;
  const fs::path swap = base.path() / "swap";
  const auto open_in = [&](Communicator& ranks, const std::function<void()>& inside) -> Result<> {
    EBB_TRY_ASSIGN(auto chosen, libswap::open_backend(libswap::BackendChoice::automatic));
    EBB_TRY_ASSIGN(const auto io, libswap::IoQueue::start(std::move(chosen.backend), {}));
    EBB_TRY_ASSIGN(const auto directory, libswap::SwapDirectory::open(*io, swap, ranks));
    inside();
    EBB_TRY(ranks.agree(0));
    return {};
  };
  const auto wait_for = [](const fs::path& file) {
    while (!fs::exists(file)) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  };
  const fs::path holder = base.path() / "holder", done = base.path() / "done";
  const auto second_run = [&](std::unique_ptr<Communicator> ranks) {
    const auto refused = open_in(*ranks, [] {});
    EXPECT_FALSE(refused);
    if (refused) return 1;
    const bool first = ranks->rank() == Rank{0};
    EXPECT_EQ(refused.error().code, first ? Code::busy : Code::peer);
    const std::string pid = "process " + test_support::text_of_file(holder);
    EXPECT_EQ(refused.error().message.find(pid) != std::string::npos, first)
        << refused.error().message;
    return testing::Test::HasFailure() ? 1 : 0;
  };
  const auto both = run_processes(2, kLimit, [&](std::unique_ptr<Communicator> either) {
    const bool is_first_run = either->rank() == Rank{0};
    std::vector<int> answers;
    if (is_first_run) {
      answers = run_processes(2, kLimit, [&](std::unique_ptr<Communicator> ranks) {
        const auto held = open_in(*ranks, [&] {
          if (ranks->rank() != Rank{0}) return;
          write_file(base.path() / "begun", std::to_string(::getpid()));
          fs::rename(base.path() / "begun", holder);
          wait_for(done);
        });
        return held ? 0 : 1;
      });
    } else {
      wait_for(holder);
      answers = run_processes(2, kLimit, second_run);
      write_file(done, "");
    }
    return answers == std::vector<int>{0, 0} ? 0 : 1;
  });
  EXPECT_EQ(both, (std::vector<int>{0, 0}));
  EXPECT_EQ(names_in(swap), std::vector<std::string>{"lock"});
}

// Each on a disk of its own in memory.
TEST(Processes, ADiskIsAskedForTheRanksThatShareItAlone) {
  const auto config = config_of(setup_of(2), nuisance_model());
  std::array<std::uint64_t, 2> needed{};
  for (const std::uint32_t rank : {0u, 1u})
    needed[rank] = (*libmuon::Engine::plan(config, Rank{rank})).disk_bytes;
  const auto open_on = [&](Communicator& ranks, std::uint64_t bytes) -> Result<> {
    const auto disk = libswap::MemoryDisk::create(bytes);
    EBB_TRY_ASSIGN(const auto io, libswap::IoQueue::start(libswap::make_memory_backend(disk), {}));
    EBB_TRY_ASSIGN(const auto swap, libswap::SwapDirectory::open(*io, "/swap", ranks));
    EBB_TRY(RankEngine::open(*io, *swap, ranks, config));
    return {};
  };
  const auto answers = run_processes(2, kLimit, [&](std::unique_ptr<Communicator> below) {
    NeverAborted ranks(*below);
    const std::uint64_t mine = needed[index_of(ranks.rank())];
    const auto large = open_on(ranks, mine * 13 / 10);
    EXPECT_TRUE(large) << large.error().message;
    const bool small = ranks.rank() == Rank{1};
    const auto refused = open_on(ranks, small ? mine * 9 / 10 : 2 * mine);
    EXPECT_FALSE(refused);
    if (refused) return 1;
    EXPECT_EQ(refused.error().code, small ? Code::no_space : Code::peer);
    const bool says = refused.error().message.find(std::to_string(mine)) != std::string::npos;
    EXPECT_EQ(says, small) << refused.error().message;
    return testing::Test::HasFailure() ? 1 : 0;
  });
  EXPECT_EQ(answers, (std::vector<int>{0, 0}));
}

TEST(Processes, ARankThatStopsSteppingEndsTheRunOnAllSoonerThanInTwiceTheLimit) {
  constexpr std::chrono::milliseconds kSecond(1000);
  const TempDir base;
  const auto body = [&](Communicator& ranks) -> Result<> {
    EBB_TRY_ASSIGN(auto chosen, libswap::open_backend(libswap::BackendChoice::automatic));
    EBB_TRY_ASSIGN(const auto io, libswap::IoQueue::start(std::move(chosen.backend), {}));
    EBB_TRY_ASSIGN(const auto swap, libswap::SwapDirectory::open(*io, base.path() / "swap", ranks));
    EBB_TRY_ASSIGN(auto rank,
                   RankEngine::open(*io, *swap, ranks, config_of(setup_of(2), nuisance_model())));
    EBB_TRY(rank.hand_in(1));
    EBB_TRY(rank.step());
    EBB_TRY(rank.hand_in(2));
    if (ranks.rank() == Rank{1}) std::this_thread::sleep_for(kSecond * 3);
    const test_support::Alarm alarm(kSecond * 2);
    const auto stepped = rank.step();
    EXPECT_FALSE(alarm.rang());
    if (stepped) return Error{Code::state, "the step was made"};
    EXPECT_EQ(stepped.error().code, Code::peer);
    EXPECT_NE(stepped.error().message.find("rank 1 kept the others waiting in"), std::string::npos)
        << stepped.error().message;
    EXPECT_EQ(rank.engine().step_count(), 1u);
    return {};
  };
  const auto answers = run_processes(2, kSecond, [&](std::unique_ptr<Communicator> ranks) {
    const auto done = body(*ranks);
    EXPECT_TRUE(done) << done.error().message;
    return testing::Test::HasFailure() ? 1 : 0;
  });
  EXPECT_EQ(answers, (std::vector<int>{0, 0}));
}

TEST(Processes, ARankWhoseStoreTakesManyTimesTheLimitIsNotDead) {
  constexpr std::chrono::milliseconds kShort(500);
  const TempDir base;
  const auto body = [&](Communicator& ranks) -> Result<> {
    EBB_TRY_ASSIGN(auto chosen, libswap::open_backend(libswap::BackendChoice::automatic));
    EBB_TRY_ASSIGN(const auto io, libswap::IoQueue::start(std::move(chosen.backend), {}));
    EBB_TRY_ASSIGN(const auto swap, libswap::SwapDirectory::open(*io, base.path() / "swap", ranks));
    bool slept = false;
    const auto slow = [&](std::uint32_t param, FlatRange range, std::span<float> into) {
      if (ranks.rank() == Rank{1} && !slept) std::this_thread::sleep_for(kShort * 4);
      slept = true;
      noisy_weights(param, range, into);
    };
    EBB_TRY(libmuon::Engine::open(config_of(setup_of(2), nuisance_model()), ranks, *io, *swap,
                                  {.initial = slow}));
    return {};
  };
  const auto answers = run_processes(2, kShort, [&](std::unique_ptr<Communicator> ranks) {
    const auto opened = body(*ranks);
    EXPECT_TRUE(opened) << opened.error().message;
    return opened ? 0 : 1;
  });
  EXPECT_EQ(answers, (std::vector<int>{0, 0}));
}

// One disk takes several times the limit for a tile, in a step and where weights are read.
TEST(Processes, ADiskThatTakesManyTimesTheLimitIsNoDeadRank) {
  constexpr std::chrono::milliseconds kShort(400);
  const TempDir base;
  const auto body = [&](Communicator& ranks) -> Result<> {
    const auto faults = std::make_shared<libswap::FaultPlan>();
    EBB_TRY_ASSIGN(auto chosen, libswap::open_backend(libswap::BackendChoice::automatic));
    EBB_TRY_ASSIGN(const auto io,
                   libswap::IoQueue::start(
                       libswap::make_fault_backend(std::move(chosen.backend), faults), {}));
    EBB_TRY_ASSIGN(const auto swap, libswap::SwapDirectory::open(*io, base.path() / "swap", ranks));
    auto config = config_of(setup_of(2), nuisance_model());
    config.chunk_bytes = 20000;
    EBB_TRY_ASSIGN(auto rank, RankEngine::open(*io, *swap, ranks, config));
    const auto slow = [&](libswap::FaultOn on) {
      faults->clear();
      faults->add({.on = on,
                   .at = 3,
                   .kind = libswap::FaultKind::late,
                   .path_part = "rank-00001",
                   .delay = 3 * kShort});
    };
    for (const auto on : {libswap::FaultOn::read, libswap::FaultOn::write}) {
      slow(on);
      EBB_TRY(rank.hand_in(rank.engine().step_count() + 1));
      EBB_TRY(rank.step());
    }
    slow(libswap::FaultOn::read);
    return rank.engine().install_weights();
  };
  const auto begin = std::chrono::steady_clock::now();
  const auto answers = run_processes(2, kShort, [&](std::unique_ptr<Communicator> ranks) {
    const auto done = body(*ranks);
    EXPECT_TRUE(done) << done.error().message;
    return done ? 0 : 1;
  });
  EXPECT_EQ(answers, (std::vector<int>{0, 0}));
  EXPECT_GE(std::chrono::steady_clock::now() - begin, 9 * kShort) << "no disk was slow";
}

}  // namespace
}  // namespace ebb::test
