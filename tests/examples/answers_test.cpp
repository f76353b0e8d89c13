// What gpt-train says before it trains, and instead of it: a run that cannot end well is refused
// at once, with the command to type.
#include <csignal>
#include <filesystem>
#include <fstream>

#include "ebb/libswap/sys/process.h"
#include "tests/examples/gpt_train.h"

namespace ebb::gpt {
namespace {

namespace fs = std::filesystem;

class GptTrainAnswers : public GptTrain {
 protected:
  // With the plan before and the results after.
  static test_support::Outcome speak(std::vector<std::string> flags) {
    return test_support::run_program("gpt-train", small(std::move(flags)));
  }
  static void says(const std::string& all, const std::string& part) {
    EXPECT_NE(all.find(part), std::string::npos) << part << " is not in: " << all;
  }
  static void says_nothing_of(const std::string& all, const std::string& part) {
    EXPECT_EQ(all.find(part), std::string::npos) << part << " is in: " << all;
  }
};

TEST_F(GptTrainAnswers, AnExportThatCannotBeWrittenIsRefusedBeforeTheFirstStep) {
  const std::string full = folder_ / "full", file = folder_ / "file";
  fs::create_directory(full);
  std::ofstream(full + "/notes") << "mine";
  std::ofstream(file) << "mine";
  for (const std::string& place : {full, file, folder_ / "no/such/parent", file + "/below"}) {
    const auto refused = train({"--swap", swap("refused"), "--steps", "20", "--export",
                                "dcp:" + place, "--export-at", "4"});
    EXPECT_EQ(refused.exit, 2) << refused.err;
    says(refused.err, "--export dcp:" + place);
    says(refused.err, "hint: name another folder: --export dcp:DIR");
    says_nothing_of(refused.err, "-f replaces");
    says_nothing_of(refused.err, "step  10/");
  }
  std::ifstream in(full + "/notes");
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(in), {}), "mine");
  fs::create_directory(folder_ / "empty");
  EXPECT_EQ(train({"--swap", swap("refused"), "--steps", "1", "--export",
                   "dcp:" + (folder_ / "empty"), "--export-at", "1"})
                .exit,
            0);
}

TEST_F(GptTrainAnswers, TheSameCommandGoesOnThoughItsExportIsThere) {
  const std::string out = folder_ / "out";
  const auto run = [&](const std::string& steps, const std::string& at) {
    return train(
        {"--swap", swap("again"), "--steps", steps, "--export", "dcp:" + out, "--export-at", at});
  };
  EXPECT_EQ(run("2", "2").exit, 0);
  const std::string exported = content(out);
  const auto again = run("3", "2");
  EXPECT_EQ(again.exit, 0) << again.err;
  says(again.err, "note: nothing is exported: " + out + " holds step 2 already");
  EXPECT_EQ(content(out), exported);
  const auto another = run("4", "3");
  EXPECT_EQ(another.exit, 2) << another.err;
  says(another.err, "exists already");
}

TEST_F(GptTrainAnswers, ACheckpointThatIsNotUsedIsSaid) {
  ASSERT_EQ(train({"--swap", swap("other"), "--steps", "1"}).exit, 0);
  ASSERT_EQ(train({"--swap", swap("mine"), "--steps", "2"}).exit, 0);
  for (const std::string& checkpoint : {swap("other"), folder_ / "gone"}) {
    const auto run = train({"--swap", swap("mine"), "--steps", "2", "--resume-from", checkpoint});
    EXPECT_EQ(run.exit, 0) << run.err;
    says(run.err, "note: --resume-from " + checkpoint + " is not used: " + swap("mine") +
                      " holds a store, which is resumed");
    says(run.err, "resumed the store at step 2");
  }
  const auto used = train({"--swap", swap("new"), "--steps", "1", "--resume-from", swap("other")});
  EXPECT_EQ(used.exit, 0) << used.err;
  says_nothing_of(used.err, "is not used");
}

TEST_F(GptTrainAnswers, ThePlanIsInTheLogBeforeAKill) {
  const std::string stats = folder_ / "stats";
  test_support::RunningProgram run(
      "gpt-train", small({"--swap", swap("killed"), "--steps", "100000", "--stats", stats}));
  for (int looks = 0; looks < 6000; ++looks) {
    std::error_code missing;
    if (const auto size = fs::file_size(stats, missing); !missing && size > 0) break;
    libswap::sleep_for_seconds(0.02);
  }
  run.signal(SIGKILL);
  const auto ended = run.wait();
  EXPECT_EQ(ended.exit, 128 + SIGKILL);
  says(ended.out, "predicted memory, at most:");
  says(ended.out, "together\n");
}

TEST_F(GptTrainAnswers, WhenNothingIsLeftToDoItSaysHowToGoOn) {
  ASSERT_EQ(train({"--swap", swap("done"), "--steps", "3"}).exit, 0);
  for (const std::string steps : {"3", "2"}) {
    const auto run = speak({"--swap", swap("done"), "--steps", steps});
    EXPECT_EQ(run.exit, 0) << run.err;
    says(run.out, "step 3 of " + steps + " is reached, nothing was trained; --steps 6 goes on\n");
    for (const char* zeros : {"tokens/s", " 0.0 ms", "measured a step", "snapshots"})
      says_nothing_of(run.out, zeros);
  }
}

TEST_F(GptTrainAnswers, MomentumOfTheOtherKindIsConvertedByTheLineThatIsPrinted) {
  ASSERT_EQ(train({"--swap", swap("two words"), "--steps", "2"}).exit, 0);
  const auto refused =
      train({"--swap", swap("two words"), "--steps", "3", "--preset", "moonlight"});
  EXPECT_EQ(refused.exit, 2) << refused.err;
  says(refused.err, "by a factor of 20\n");
  const std::string hint = refused.err.substr(refused.err.find("hint: ") + 6);
  const std::string line = hint.substr(0, hint.find(", then "));
  const auto converted =
      test_support::run_program("/bin/sh", {"-c", compose("exec {}/{}", EBB_BIN, line)});
  EXPECT_EQ(converted.exit, 0) << line << ": " << converted.err;
  const std::string rest =
      hint.substr(hint.find(", then ") + 7, hint.find('\n') - hint.find(", then ") - 7);
  EXPECT_EQ(rest, compose("--swap '{}-new'", swap("two words")));
  const auto trained =
      train({"--swap", swap("two words") + "-new", "--steps", "3", "--preset", "moonlight"});
  EXPECT_EQ(trained.exit, 0) << trained.err;
  says(trained.err, "at step 2");
}

// A machine with mpirun and without headers: nobody sees why there is no gpt-train-mpi.
TEST(BuildFiles, SayWhyTheTrainerOverProcessesIsLeftOut) {
  const test_support::ScratchDirectory folder;
  const std::string script = folder / "without_languages.cmake";
  std::ofstream(script) << "set(EBB_TESTS ON)\nset(EBB_MUON ON)\ninclude(\"" EBB_FIXTURES
                           "/../../cmake/EbbMpi.cmake\")\n";
  const auto said = test_support::run_program("/bin/sh", {"-c", "cmake -P " + script + " 2>&1"});
  EXPECT_EQ(said.exit, 0) << said.out;
  EXPECT_NE(said.out.find("gpt-train-mpi and the tests of mpi_ranks.h are left out: "),
            std::string::npos)
      << said.out;
  EXPECT_NE(said.out.find("On Debian: apt-get install libopenmpi-dev openmpi-bin"),
            std::string::npos)
      << said.out;
}

TEST_F(GptTrainAnswers, HelpListsTheExitCodesThatItHas) {
  const auto help = test_support::run_program("gpt-train", {"--help"});
  EXPECT_EQ(help.exit, 0);
  says(help.out, "EXIT CODES\n  0  success\n  2  ");
  says(help.out, "130  stopped by Ctrl-C, with a snapshot\n");
  for (const char* other : {"--verify", "--diff", "143"}) says_nothing_of(help.out, other);
}

}  // namespace
}  // namespace ebb::gpt
