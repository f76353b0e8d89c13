// An engine over processes of MPI, started by mpirun as a user starts it.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <sstream>

#include "tests/libmuon/support/training.h"
#include "tests/support/mpirun.h"
#include "tests/support/program.h"

namespace ebb::test {
namespace {

namespace fs = std::filesystem;
using test_support::Words;

class EngineOverMpi : public testing::Test {
 protected:
  const TempDir base_;

  static test_support::Outcome run(std::size_t processes, const Words& words) {
    return test_support::run_program(
        test_support::mpirun(), test_support::on_processes(processes, "libmuon_mpi_rank", words));
  }
  std::string path(const std::string& name) const { return (base_.path() / name).string(); }
  std::string weights() const { return test_support::text_of_file(path("weights")); }
  // Trains to step 3 and, begun anew, to step 6.
  void expect_bits(std::size_t processes, const Words& directories) const {
    for (const std::string last : {"3", "6"}) {
      Words words = {"train", path("weights"), last};
      words.insert(words.end(), directories.begin(), directories.end());
      const auto trained = run(processes, words);
      ASSERT_EQ(trained.exit, 0) << trained.err;
      EXPECT_EQ(trained.out, last == "3" ? "created at step 0\n" : "resumed the store at step 3\n");
    }
    const Outcome threads = train(Training{.ranks = 2}, path("threads"), 6);
    const auto* bytes = reinterpret_cast<const char*>(threads.weights.data());
    ASSERT_FALSE(threads.weights.empty());
    EXPECT_TRUE(weights() == std::string(bytes, threads.weights.size() * sizeof(float)));
    fs::remove_all(path("threads"));
  }
};

TEST_F(EngineOverMpi, HasTheBitsOfThreadsOnOneDirectory) {
  for (const std::size_t processes : {2u, 3u, 4u})
    expect_bits(processes, {path("one-" + std::to_string(processes))});
}

TEST_F(EngineOverMpi, HasTheBitsOfThreadsOnADirectoryEach) {
  for (const std::size_t processes : {2u, 3u, 4u}) {
    Words each;
    for (std::size_t i = 0; i < processes; ++i)
      each.push_back(path(std::to_string(processes) + "-" + std::to_string(i)));
    expect_bits(processes, each);
  }
}

TEST_F(EngineOverMpi, ARankThatStopsSteppingIsNamedByAllInThisAndEveryLaterCall) {
  const auto stalled = run(3, {"stall", path("swap")});
  ASSERT_EQ(stalled.exit, 0) << stalled.err;
  std::istringstream lines(stalled.out);
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    EXPECT_NE(line.find(": peer, in time: rank 1 kept the others waiting in"), std::string::npos)
        << line;
  }
  EXPECT_EQ(count, 3 * 2) << stalled.out;
}

TEST_F(EngineOverMpi, TooFewThreadsAreRefusedOnEveryRankByName) {
  const auto refused = run(2, {"threads", "single"});
  EXPECT_NE(refused.exit, 0);
  const std::string said =
      "unsupported: rank 0: MPI runs with MPI_THREAD_SINGLE: the engine's threads need "
      "MPI_THREAD_MULTIPLE";
  const std::size_t first = refused.err.find(said);
  ASSERT_NE(first, std::string::npos) << refused.err;
  EXPECT_NE(refused.err.find(said, first + 1), std::string::npos) << "one of two ranks said so";
}

TEST_F(EngineOverMpi, WithoutMpiInitialisedItSaysSo) {
  const auto refused = run(1, {"threads", "none"});
  EXPECT_NE(refused.exit, 0);
  EXPECT_NE(refused.err.find("state: MPI is not initialised"), std::string::npos) << refused.err;
}

// mpi_ranks_test.cpp: all ranks are one program.
TEST(MpiRanks, KeepTheContractOfAllRanks) {
  const auto all = test_support::run_program(
      test_support::mpirun(), test_support::on_processes(8, "libmuon_mpi_ranks_test", {}));
  EXPECT_EQ(all.exit, 0) << all.out << all.err;
}

}  // namespace
}  // namespace ebb::test
