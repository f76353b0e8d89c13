// One hash of weights and state, however a training is run, for each way to keep momentum: every
// pair of values of the factors in runs.cpp, and every triple of them without MPI where
// EBB_COVERING=full says so (./dev test
// --full). A third of the runs is killed and begun anew as another of them, begun anew without
// that, or begun anew with less memory, stopped by a disk and continued. No test starts a thread in
// this process: it forks.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <map>

#include "tests/durability/draws.h"
#include "tests/libmuon/covering/rank_run.h"
#include "tests/libmuon/covering/runs.h"
#include "tests/libmuon/support/socket_ranks.h"
#include "tests/libmuon/support/training.h"
#include "tests/support/mpirun.h"
#include "tests/support/program.h"

namespace ebb::test {
namespace {

namespace fs = std::filesystem;
using libmuon::Communicator;

constexpr std::chrono::milliseconds kLimit(30000);
constexpr std::uint64_t kSeed = 14;
constexpr std::uint64_t kSteps = 4, kCut = 2;  // where a leg ends that has another behind it

bool over_mpi_works() { return !std::string_view(EBB_MPIEXEC).empty(); }
bool all_triples() {
  const char* const asked = std::getenv("EBB_COVERING");
  return asked != nullptr && std::string_view(asked) == "full";
}

std::string text_in(const fs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// What became of its ranks: what each exited with, or minus the signal that ended it.
std::vector<int> run_leg(const Leg& leg) {
  const Run run = run_of(leg.row);
  switch (run.ranks_are) {
    case RanksAre::threads:
      return run_processes(1, kLimit, [&](std::unique_ptr<Communicator>) {
        return static_cast<int>(run_threads(leg));
      });
    case RanksAre::sockets:
      return run_processes(run.ranks, kLimit, [&](std::unique_ptr<Communicator> ranks) {
        return static_cast<int>(run_process(leg, *ranks));
      });
    case RanksAre::mpi:
      break;
  }
  const auto job = test_support::run_program(
      test_support::mpirun(),
      test_support::on_processes(run.ranks, "libmuon_covering_mpi_rank", leg.words()));
  if (job.exit != 0 && leg.trouble != Trouble::kill) ADD_FAILURE() << job.err;
  return {job.exit};
}

struct Counts {
  std::size_t runs = 0, killed = 0, resumed = 0, stopped = 0, to_be_stopped = 0;
};

class Covering : public testing::TestWithParam<std::uint32_t> {
 protected:
  static constexpr std::uint32_t kParts = 2;  // of an array, side by side

  void run_part(const std::vector<Row>& rows, const char* what) {
    Draws draws(kSeed);
    std::map<Row, std::string> wanted;  // by what is plain but for how momentum is kept
    for (std::size_t i = 0; i < rows.size() && !HasFatalFailure(); ++i) {
      const std::uint64_t draw = draws.next();
      const Row& next = draws.of(rows);
      if (i % kParts != GetParam()) continue;
      const Row plain = of_the_same_state(Row(factors_of_runs().size()), rows[i]);
      if (!wanted.contains(plain)) wanted[plain] = hash_after({{.row = plain, .until = kSteps}});
      ASSERT_NE(wanted[plain], "");
      const auto legs =
          legs_of(rows[i], of_the_same_state(next, rows[i]), i % 3 == 0, i / 3 % 3, draw);
      std::string text = text_of(rows[i]);
      if (legs.size() > 1)
        text += (legs[0].trouble == Trouble::kill ? "; killed, then " : "; then ") +
                text_of(legs[1].row);
      if (legs.back().trouble == Trouble::stop) text += "; stopped and continued";
      ++counts_.runs;
      EXPECT_EQ(hash_after(legs), wanted[plain]) << "run " << i << ": " << text;
    }
    std::printf(
        "%s of part %u of %u, seed %llu: %zu of %zu runs; killed %zu, resumed %zu, to be stopped "
        "%zu, stopped and continued %zu\n",
        what, GetParam() + 1, kParts, static_cast<unsigned long long>(kSeed), counts_.runs,
        rows.size(), counts_.killed, counts_.resumed, counts_.to_be_stopped, counts_.stopped);
    EXPECT_GT(counts_.killed, 0u);
    EXPECT_GT(counts_.resumed, 0u);
    EXPECT_GT(counts_.stopped, counts_.to_be_stopped / 2);
  }

 private:
  std::vector<Leg> legs_of(const Row& row, const Row& next, bool troubled, std::size_t which,
                           std::uint64_t draw) {
    if (!troubled) return {{.row = row, .until = kSteps}};
    if (which == 2) {
      ++counts_.to_be_stopped;
      return {{.row = row, .until = kCut},
              {.row = paged(row), .until = kSteps, .trouble = Trouble::stop, .draw = draw}};
    }
    ++(which == 1 ? counts_.resumed : counts_.killed);
    const Trouble trouble = which == 1 ? Trouble::none : Trouble::kill;
    return {{.row = row, .until = kCut, .trouble = trouble, .draw = draw},
            {.row = next, .until = kSteps}};
  }

  // Of the state at their end; empty, and a failure, where a leg did not end as it should.
  std::string hash_after(std::vector<Leg> legs) {
    const TempDir directory;
    for (Leg& leg : legs) {
      leg.directory = directory.path();
      fs::remove(leg.directory / "hash");
      if (!ended_well(leg, run_leg(leg))) return {};
    }
    counts_.stopped += fs::exists(directory.path() / "stopped") ? 1 : 0;
    return text_in(directory.path() / "hash");
  }

  static bool ended_well(const Leg& leg, const std::vector<int>& answers) {
    const auto count = [&](int answer) { return std::ranges::count(answers, answer); };
    const auto well = static_cast<int>(Exit::well), peer = static_cast<int>(Exit::peer);
    const bool mpi = run_of(leg.row).ranks_are == RanksAre::mpi;
    const bool good = leg.trouble != Trouble::kill ? count(well) == std::ssize(answers)
                      : mpi                        ? answers.front() != well
                            : count(-SIGKILL) == 1 && count(peer) == std::ssize(answers) - 1;
    EXPECT_TRUE(good) << testing::PrintToString(answers) << ": " << text_of(leg.row);
    return good;
  }

  Counts counts_;
};

// Two arrays: twice as many combinations, about a hundred runs.
TEST_P(Covering, EveryPairEndsWithOneHash) {
  const Factors all = factors(over_mpi_works() ? Mpi::with : Mpi::without);
  auto rows = covering_array(all, 2, kSeed);
  const auto others = covering_array(all, 2, kSeed + 1);
  rows.insert(rows.end(), others.begin(), others.end());
  run_part(rows, "every pair, twice");
}

TEST_P(Covering, EveryTripleEndsWithOneHash) {
  if (!all_triples()) GTEST_SKIP() << "EBB_COVERING=full runs them: ./dev test --full";
  run_part(covering_array(factors(Mpi::without), 3, kSeed), "every triple");
}

INSTANTIATE_TEST_SUITE_P(Part, Covering, testing::Values(0u, 1u));

}  // namespace
}  // namespace ebb::test
