// swap-bench: figures, advice and the time of a step; and that nothing is left in the directory.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <regex>
#include <thread>

#include "tests/support/program.h"
#include "tests/tools/pictures.h"

namespace ebb {
namespace {

namespace fs = std::filesystem;
using test_support::Outcome;
using test_support::run_program;
using test_support::RunningProgram;
using test_support::ScratchDirectory;

Outcome measure(std::vector<std::string> arguments) {
  arguments.insert(arguments.end(), {"--size", "32MiB", "--seconds", "1"});
  return run_program("swap-bench", arguments);
}

double number_of(const std::string& json, const std::string& key) {
  std::smatch match;
  const std::regex pattern("\"" + key + "\": ([0-9.]+)");
  return std::regex_search(json, match, pattern) ? std::stod(match[1]) : -1;
}

TEST(SwapBench, SaysWhatToUseAndLeavesNothingBehind) {
  const ScratchDirectory scratch;
  const Outcome run = measure({scratch.path()});
  EXPECT_EQ(run.exit, 0) << run.err;
  EXPECT_EQ(run.err, "");  // no progress where there is no terminal
  for (const char* words : {" both at once (", "from-to", "the default", "without huge pages"})
    EXPECT_NE(run.out.find(words), std::string::npos) << words << "\n" << run.out;
  EXPECT_TRUE(fs::is_empty(scratch.path()));
}

TEST(SwapBench, EverySettingThatItNamesIsAFlagOfGptTrain) {
  const ScratchDirectory scratch;
  const std::string said = measure({scratch.path()}).out;
  if (said.find("is memory (tmpfs), no disk") != std::string::npos) GTEST_SKIP() << said;
  const std::string help = run_program("gpt-train", {"--help"}).out;
  const std::regex flag("(--[a-z-]+) ([0-9]+[KM]iB)");
  int found = 0;
  for (std::sregex_iterator at(said.begin(), said.end(), flag), end; at != end; ++at, ++found) {
    EXPECT_NE(help.find((*at)[1].str() + " SIZE"), std::string::npos) << (*at)[0] << "\n" << help;
    // It takes the value as it is written: what is missing is where state is to live.
    const Outcome taken = run_program("gpt-train", {(*at)[1], (*at)[2]});
    EXPECT_NE(taken.err.find("--swap DIR is missing"), std::string::npos) << taken.err;
  }
  EXPECT_EQ(found, 3) << said;
}

TEST(SwapBench, TheSecondsAreThoseOfTheWholeRun) {
  const ScratchDirectory scratch;
  for (const int seconds : {1, 3}) {
    const auto begin = std::chrono::steady_clock::now();
    const Outcome run = run_program("swap-bench", {scratch.path(), "--size", "64MiB", "--seconds",
                                                   std::to_string(seconds), "--json"});
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    ASSERT_EQ(run.exit, 0) << run.err;
    // One round is measured in any case, and says how long it took, in tenths.
    constexpr double kTenth = 0.1;
    EXPECT_LE(number_of(run.out, "seconds"), took.count() + kTenth);
    EXPECT_GE(number_of(run.out, "seconds"), 0.8 * took.count() - kTenth);
    if (number_of(run.out, "rounds") > 1) {
      EXPECT_LT(took.count(), 2.0 * seconds) << run.out;
    }
  }
}

TEST(SwapBench, TheTimeOfAStepFollowsFromItsBytesAndTheRateOfTheAdvice) {
  const ScratchDirectory scratch;
  const Outcome run = measure({scratch.path(), "--state", "4GiB", "--resident", "1GiB", "--json"});
  ASSERT_EQ(run.exit, 0) << run.err;
  ASSERT_TRUE(run.out.starts_with("{\"schema\": \"swap.bench/1\", \"directory\": ")) << run.out;
  for (const char* key : {"file_bytes", "free_bytes", "block_bytes", "depth", "chunk_bytes",
                          "write_bytes_in_flight", "store_bytes", "create_seconds"})
    EXPECT_GT(number_of(run.out, key), 0) << key << "\n" << run.out;
  EXPECT_LE(number_of(run.out, "file_bytes"), 32 << 20);
  const std::string use = run.out.substr(run.out.find("\"use\": "));
  const double paged = 3.0 * (1u << 30);
  EXPECT_EQ(number_of(use, "read_bytes"), paged);
  EXPECT_EQ(number_of(use, "written_bytes"), paged);
  const double seconds = 2 * paged / number_of(use, "mixed_bytes_per_s");
  EXPECT_NEAR(number_of(use, "seconds"), seconds, 1e-3 * seconds);
}

TEST(SwapBench, CountsAModelsStateAsMuonsAndAdams) {
  const ScratchDirectory scratch;
  const Outcome run = measure({scratch.path(), "--model", "dcp/hsdp_2x2/data", "--json"});
  ASSERT_EQ(run.exit, 0) << run.err;
  const double muon = number_of(run.out, "muon_elems"), adam = number_of(run.out, "adam_elems");
  EXPECT_GT(muon, 0);
  EXPECT_GT(adam, 0);
  EXPECT_EQ(8 * muon + 12 * adam, number_of(run.out, "state_bytes"));
}

TEST(SwapBench, DrawsTheNumbersThatItSays) {
  const ScratchDirectory scratch, elsewhere;
  const std::string file = elsewhere / "rates.html";
  const Outcome run =
      measure({scratch.path(), "--model", "dcp/hsdp_2x2/data", "--picture", file, "--json"});
  ASSERT_EQ(run.exit, 0) << run.err;
  const std::string data = data_of_picture(file);
  ASSERT_FALSE(data.empty());
  const std::string same = data.substr(0, data.rfind('}'));
  EXPECT_TRUE(run.out.starts_with(same)) << run.out << data;
  EXPECT_TRUE(fs::is_empty(scratch.path()));
  const Outcome refused = measure({scratch.path(), "--picture", elsewhere / "rates.svg"});
  EXPECT_EQ(refused.exit, 2);
  EXPECT_TRUE(test_support::says(refused.err, "is a page of HTML")) << refused.err;
}

TEST(SwapBench, RefusesADirectoryItCannotWriteTo) {
  const ScratchDirectory scratch;
  const Outcome nothing = measure({scratch / "nothing"});
  EXPECT_EQ(nothing.exit, 2);
  EXPECT_NE(nothing.err.find("there is no such directory\nhint: mkdir -p "), std::string::npos)
      << nothing.err;
  std::ofstream(scratch / "file") << "x";
  for (const char* path : {"file", "file/below", "file/below/it"}) {
    const Outcome file = measure({scratch / path});
    EXPECT_EQ(file.exit, 2);
    EXPECT_NE(file.err.find("file is a file, no directory\nhint: name the directory"),
              std::string::npos)
        << file.err;
    EXPECT_EQ(file.err.find("mkdir"), std::string::npos) << file.err;
  }
  // Nobody can make a file there, not even root.
  const Outcome closed = measure({"/proc"});
  EXPECT_NE(closed.exit, 0);
  EXPECT_NE(closed.err.find("/proc"), std::string::npos) << closed.err;
}

TEST(SwapBench, RefusesADiskThatIsTooSmallForItsFile) {
  const ScratchDirectory scratch;
  const Outcome run = run_program("swap-bench", {scratch.path(), "--size", "9000TB"});
  EXPECT_EQ(run.exit, 5);
  EXPECT_NE(run.err.find(" free, the test file takes "), std::string::npos) << run.err;
  EXPECT_NE(run.err.find("hint: --size makes a smaller one"), std::string::npos) << run.err;
  EXPECT_TRUE(fs::is_empty(scratch.path()));
}

TEST(SwapBench, RefusesFlagsThatSayNothing) {
  const ScratchDirectory scratch;
  EXPECT_EQ(measure({scratch.path(), "--state", "1GiB", "--model", "x"}).exit, 2);
  EXPECT_EQ(measure({scratch.path(), "--resident", "1GiB"}).exit, 2);
  EXPECT_EQ(run_program("swap-bench", {scratch.path(), "--size", "1MiB"}).exit, 2);
  EXPECT_EQ(run_program("swap-bench", {scratch.path(), "--seconds", "0"}).exit, 2);
}

TEST(SwapBench, AsksForTheUnitOfAStateOfAFewBytes) {
  const ScratchDirectory scratch;
  for (const auto& [flag, given, hint] : {std::tuple("--state", "64", "--state 64GiB"),
                                          {"--state", "1.5", "--state 1.5GiB"},
                                          {"--state", "64B", "--state 64GiB"},
                                          {"--resident", "2", "--resident 2GiB"}}) {
    std::vector<std::string> arguments = {scratch.path(), flag, given};
    if (std::string(flag) == "--resident") arguments.insert(arguments.end(), {"--state", "64GiB"});
    const Outcome run = measure(arguments);
    EXPECT_EQ(run.exit, 2) << run.out;
    EXPECT_NE(run.err.find(std::string(given) + " is less than 1 MiB"), std::string::npos)
        << run.err;
    EXPECT_NE(run.err.find(std::string("hint: say a unit: ") + hint), std::string::npos) << run.err;
  }
}

TEST(SwapBench, StopsOnRequestAndLeavesNothingBehind) {
  for (const int signal : {SIGINT, SIGTERM, SIGKILL}) {
    const ScratchDirectory scratch;
    RunningProgram running("swap-bench", {scratch.path(), "--size", "64MiB", "--seconds", "600"});
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    running.signal(signal);
    EXPECT_EQ(running.wait().exit, 128 + signal);
    EXPECT_TRUE(fs::is_empty(scratch.path()));
  }
}

}  // namespace
}  // namespace ebb
