// Five properties of every run, over every pair of values of the factors in runs.h: it has the bits
// of a plain run with the same mathematics, whatever its layout (1) and on a device whose events
// come late (4); it moves exactly the bytes that its plan says (2); a step that is stopped anywhere
// goes on with the same bits (3); it is resumed, and transferred, with the same bits (5). Over
// every triple, without MPI, where EBB_COVERING=full says so (./dev test --full). No test starts a
// thread in this process: it forks.
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <map>
#include <set>

#include "tests/durability/draws.h"
#include "tests/libmuon/covering/rank_run.h"
#include "tests/libmuon/support/processes.h"
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
constexpr std::uint32_t kParts = 3;            // of an array, side by side

bool all_triples() {
  const char* const asked = std::getenv("EBB_COVERING");
  return asked != nullptr && std::string_view(asked) == "full";
}
Mpi mpi() { return std::string_view(EBB_MPIEXEC).empty() ? Mpi::without : Mpi::with; }
std::vector<Row> every_pair() { return covering_array(factors(mpi()), 2, kSeed); }

// What became of its ranks: what each exited with, or minus the signal that ended it.
std::vector<int> run_leg(const Leg& leg) {
  const Run run = run_of(leg.row);
  switch (run.ranks_are) {
    case RanksAre::threads:
      return run_processes(1, kLimit, [&](std::unique_ptr<Communicator>) {
        return static_cast<int>(run_threads(leg));
      });
    case RanksAre::sockets:
    case RanksAre::network:
      return run_processes(
          run.ranks, kLimit,
          [&](std::unique_ptr<Communicator> ranks) {
            return static_cast<int>(run_process(leg, *ranks));
          },
          run.ranks_are == RanksAre::network ? across_a_network() : libmuon::Reach{});
    case RanksAre::mpi:
      break;
  }
  const auto job = test_support::run_program(
      test_support::mpirun(),
      test_support::on_processes(run.ranks, "libmuon_covering_mpi_rank", leg.words()));
  if (job.exit != 0 && leg.trouble != Trouble::kill) ADD_FAILURE() << job.err;
  return {job.exit};
}

bool ended_well(const Leg& leg, const std::vector<int>& answers) {
  const auto count = [&](int answer) { return std::ranges::count(answers, answer); };
  const auto well = static_cast<int>(Exit::well), peer = static_cast<int>(Exit::peer);
  if (leg.trouble != Trouble::kill) return count(well) == std::ssize(answers);
  if (run_of(leg.row).ranks_are == RanksAre::mpi) return answers.front() != well;
  return count(-SIGKILL) == 1 && count(peer) == std::ssize(answers) - 1;
}

// What a run left: the hash of its weights and state, and how many steps were stopped.
struct Left {
  std::string hash;
  std::int64_t stopped = 0;
};

Left run_legs(std::vector<Leg> legs) {
  const TempDir directory;
  for (Leg& leg : legs) {
    leg.directory = directory.path();
    fs::remove(leg.directory / "hash");
    const auto answers = run_leg(leg);
    EXPECT_TRUE(ended_well(leg, answers)) << testing::PrintToString(answers);
    if (!ended_well(leg, answers)) return {};
  }
  const std::string stopped = test_support::text_of_file(directory.path() / "stopped");
  return {test_support::text_of_file(directory.path() / "hash"), std::ranges::count(stopped, '\n')};
}

// Every row of an array but those of other parts, against its plain run, until one fails. A part
// has some of the mathematics, with all their rows: each plain run is made once.
class Rows : public testing::TestWithParam<std::uint32_t> {
 protected:
  // legs(number of the row, a draw): how it is run.
  template <typename Legs>
  void expect_the_plain_bits(const std::vector<Row>& rows, const Legs& legs) {
    Draws draws(kSeed);
    std::map<Row, std::uint32_t> mathematics;
    for (std::size_t i = 0; i < rows.size() && !HasFailure(); ++i) {
      const std::uint64_t draw = draws.next();
      const Row plain = plain_of(rows[i]);
      const auto number = static_cast<std::uint32_t>(mathematics.size());
      if (mathematics.try_emplace(plain, number).first->second % kParts != GetParam()) continue;
      const std::vector<Leg> run = legs(i, draw);
      std::string text = compose("run {}: {}", i, text_of(run[0].row));
      if (run.size() > 1) text += "; then: " + text_of(run[1].row);
      const testing::ScopedTrace trace(__FILE__, __LINE__, text);
      auto& wanted = wanted_[plain];
      if (wanted.empty()) wanted = run_legs({{.row = plain, .until = kSteps}}).hash;
      ASSERT_NE(wanted, "");
      const Left left = run_legs(run);
      EXPECT_EQ(left.hash, wanted);
      stopped_ += left.stopped;
      ++runs_;
    }
    std::printf("%zu of %zu runs, %zu mathematics, seed %llu; %lld steps stopped\n", runs_,
                rows.size(), wanted_.size(), static_cast<unsigned long long>(kSeed),
                static_cast<long long>(stopped_));
  }

  std::size_t runs_ = 0;
  std::int64_t stopped_ = 0;

 private:
  std::map<Row, std::string> wanted_;  // hashes, by the plain run
};

class EveryPair : public Rows {};
class EveryTriple : public Rows {};
INSTANTIATE_TEST_SUITE_P(Part, EveryPair, testing::Range(0u, kParts));
INSTANTIATE_TEST_SUITE_P(Part, EveryTriple, testing::Range(0u, kParts));

TEST_P(EveryPair, HasThePlainBitsAndMovesTheBytesOfItsPlan) {
  const auto rows = every_pair();
  expect_the_plain_bits(rows, [&](std::size_t i, std::uint64_t) {
    return std::vector<Leg>{{.row = rows[i], .until = kSteps}};
  });
}

// Twice, at other places.
TEST_P(EveryPair, GoesOnWhereverAStepIsStopped) {
  const auto rows = every_pair();
  for (const std::uint64_t time : {0u, 1u})
    expect_the_plain_bits(rows, [&](std::size_t i, std::uint64_t draw) {
      return std::vector<Leg>{{.row = with(paged(rows[i]), choice_named("over threads")),
                               .until = kSteps,
                               .trouble = Trouble::stop,
                               .draw = draw + time}};
    });
  EXPECT_GT(stopped_, static_cast<std::int64_t>(runs_));
}

// MPI's processes where they are killed, and threads in their place elsewhere: they start sooner.
Row quick(const Row& row) {
  return run_of(row).ranks_are == RanksAre::mpi ? with(row, choice_named("over threads")) : row;
}

// Every second one is killed, whose last snapshot is what the other run begins with; every third
// one is the other run itself, and resumes its store.
TEST_P(EveryPair, GoesOnAsAnotherRun) {
  const auto rows = every_pair();
  expect_the_plain_bits(rows, [&](std::size_t i, std::uint64_t draw) {
    const Trouble trouble = i % 2 == 0 ? Trouble::kill : Trouble::none;
    const Row& other = i % 3 == 0 ? rows[i] : rows[draw % rows.size()];
    const Row next = of_the_same_state(quick(other), rows[i]);
    return std::vector<Leg>{{.row = trouble == Trouble::kill ? rows[i] : quick(rows[i]),
                             .until = kCut,
                             .trouble = trouble,
                             .draw = draw},
                            {.row = next, .until = kSteps}};
  });
}

TEST_P(EveryTriple, HasThePlainBitsAndMovesTheBytesOfItsPlan) {
  if (!all_triples()) GTEST_SKIP() << "EBB_COVERING=full runs them: ./dev test --full";
  const auto rows = covering_array(factors(Mpi::without), 3, kSeed);
  expect_the_plain_bits(rows, [&](std::size_t i, std::uint64_t) {
    return std::vector<Leg>{{.row = rows[i], .until = kSteps}};
  });
}

TEST(Pairs, AreAllInTheArrayButThoseThatAreRefusedOrNotHere) {
  Factors all = factors(mpi());
  const std::size_t open = sets_of(all, 2).size(), never = all.never.size();
  std::set<std::vector<Choice>> found;
  const auto rows = every_pair();
  for (const Row& row : rows)
    for (std::uint32_t a = 0; a < row.size(); ++a)
      for (std::uint32_t b = a + 1; b < row.size(); ++b) found.insert({{a, row[a]}, {b, row[b]}});
  for (const Never& one : all.never) {
    EXPECT_FALSE(found.contains({std::min(one.one, one.other), std::max(one.one, one.other)}));
    EXPECT_GT(one.one.value, 0u) << "the plain run's goes together with all";
    EXPECT_GT(one.other.value, 0u);
  }
  all.never.clear();
  EXPECT_EQ(found.size(), open);
  EXPECT_EQ(sets_of(all, 2).size(), open + never);
  std::printf("%zu rows: %zu of %zu pairs; %zu are refused or not here\n", rows.size(),
              found.size(), open + never, never);
  for (const NotHere& each : not_here())
    for (const std::string_view one : each.pairs.ones)
      std::printf("not here: %s\n",
                  compose("{} with {}: {}", one, each.pairs.others.front(), each.why).c_str());
}

// On some rank, in most of the runs that ask for it.
TEST(Pairs, StreamMatricesInStrips) {
  const Choice asked = choice_named("streamed in wide strips");
  std::size_t asking = 0, streaming = 0;
  for (const Row& row : every_pair()) {
    if (row[asked.factor] != asked.value) continue;
    const auto run = run_of(row);
    const libmuon::EngineConfig& config = run.config;
    bool strips = false;
    for (std::uint32_t rank = 0; rank < run.ranks; ++rank) {
      const auto plan =
          libmuon::StatePlan::make(config.model, config.partition, config.tile_bytes, Rank{rank},
                                   config.chunk_bytes, config.dtypes, config.stream_above_bytes);
      ASSERT_TRUE(plan) << plan.error().message;
      for (const libmuon::Item& item : (*plan).items())
        strips = strips || item.streaming.strips() > 1;
    }
    ++asking;
    streaming += strips ? 1 : 0;
  }
  EXPECT_GT(2 * streaming, asking);
  EXPECT_GT(streaming, 3u);
}

// Three ranks that share each parameter: what is refused at all is refused there.
TEST(Pairs, ThatAreRefusedAreRefusedByThePlan) {
  Row base(factors_of_runs().size());
  for (const char* const name : {"3 ranks", "zero3"}) base = with(base, choice_named(name));
  for (const Refused& each : refused())
    for (const std::string_view one : each.pairs.ones)
      for (const std::string_view other : each.pairs.others) {
        Row row = base;
        for (const std::string_view name : {one, other}) {
          const Choice choice = choice_named(name);
          row[choice.factor] = choice.value;
        }
        auto run = run_of(row);
        make_ready(run);
        const auto plan = libmuon::Engine::plan(run.config, Rank{0}, run.wire());
        ASSERT_FALSE(plan) << one << ", " << other;
        EXPECT_NE(plan.error().message.find(each.message), std::string::npos)
            << one << ", " << other << ": " << plan.error().message;
      }
}

}  // namespace
}  // namespace ebb::test
