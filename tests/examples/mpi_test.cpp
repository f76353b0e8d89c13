// gpt-train-mpi as a user runs it under mpirun: the bits of rank threads, and what is left when a
// process dies, stops or disagrees.
#include <signal.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "ebb/libswap/sys/process.h"
#include "tests/examples/gpt_train.h"
#include "tests/support/mpirun.h"

namespace ebb::gpt {
namespace {

using libswap::ChildProcess;
using test_support::mpirun;
using test_support::on_processes;
using test_support::Words;

class GptTrainMpi : public GptTrain {
 protected:
  static test_support::Outcome train_on(std::size_t processes, Words flags) {
    flags.push_back("--quiet");
    return test_support::run_program(
        mpirun(), on_processes(processes, "gpt-train-mpi", small(std::move(flags))));
  }
  // Of threads that were never interrupted.
  std::string content_of_threads(const std::string& steps) const {
    const auto plain = train({"--swap", swap("threads"), "--steps", steps, "--budget", "all"});
    EXPECT_EQ(plain.exit, 0) << plain.err;
    return content(swap("threads"));
  }
};

TEST_F(GptTrainMpi, GivesTheBitsOfRankThreadsOnOneDirectoryAndOnOneEach) {
  const std::string wanted = content_of_threads("4");
  for (const std::size_t processes : {2u, 3u, 4u}) {
    const std::string one = swap("one-" + std::to_string(processes));
    for (const std::string steps : {"2", "4"}) {
      const auto trained = train_on(processes, {"--swap", one, "--steps", steps});
      ASSERT_EQ(trained.exit, 0) << trained.err;
    }
    EXPECT_EQ(content(one), wanted) << processes;

    Words each = {"--swap"};
    for (std::size_t i = 0; i < processes; ++i) each.push_back(one + "-" + std::to_string(i));
    Words flags = each;
    flags.insert(flags.end(), {"--steps", "4"});
    const auto trained = train_on(processes, flags);
    ASSERT_EQ(trained.exit, 0) << trained.err;
    for (std::size_t i = 1; i <= processes; ++i)
      EXPECT_TRUE(std::filesystem::exists(each[i] + "/lock")) << each[i];
    // What lies in all of them goes into one.
    Words all = {"--ranks", "1", "--steps", "4", "--swap", one + "-all"};
    all.insert(all.end(), each.begin() + 1, each.end());
    const auto brought = train(all);
    ASSERT_EQ(brought.exit, 0) << brought.err;
    EXPECT_EQ(content(one + "-all"), wanted) << processes;
  }
}

// A job under way, with the processes that it says it has.
class Job {
 public:
  Job(std::size_t processes, Words flags)
      : child_([&] {
          flags.insert(flags.end(), {"--snapshot-every", "1", "--quiet", "--print-pid"});
          Words words = on_processes(processes, "gpt-train-mpi", flags);
          words.insert(words.begin(), mpirun());
          auto child = ChildProcess::start(words, ChildProcess::Stream::messages);
          EBB_CHECK(child.has_value());
          return std::move(*child);
        }()) {}

  // Its first step that is a tenth is over.
  void wait_for_steps() {
    for (bool trains = false; !trains;) {
      const auto line = child_.read_line();
      ASSERT_TRUE(line && *line) << "it ended before step 10";
      if ((*line)->starts_with("pid ")) pids_.push_back(std::stoi((*line)->substr(4)));
      trains = (*line)->starts_with("step  10/");
    }
  }
  const std::vector<pid_t>& pids() const { return pids_; }
  // What it said until it ended, not well; nothing of it is left.
  std::string end() {
    const auto said = child_.read_all(1 << 20);
    EXPECT_TRUE(said);
    const auto exit = child_.wait();
    EXPECT_TRUE(exit && (exit->code != 0 || exit->signal != 0));
    for (const pid_t pid : pids_) EXPECT_TRUE(goes(pid)) << pid << " is still there";
    return said ? *said : "";
  }

 private:
  // mpirun may end a moment before those it killed; one that nobody waited for is gone, too.
  static bool goes(pid_t pid) {
    for (int looks = 0; looks < 500; ++looks) {
      std::string stat;
      std::getline(std::ifstream("/proc/" + std::to_string(pid) + "/stat"), stat);
      if (stat.empty() || stat.find(") Z ") != stat.npos) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  }

  ChildProcess child_;
  std::vector<pid_t> pids_;
};

TEST_F(GptTrainMpi, AProcessThatIsKilledEndsTheJobAndFewerGoOn) {
  Job job(3, small({"--swap", swap("killed"), "--steps", "100000"}));
  ASSERT_NO_FATAL_FAILURE(job.wait_for_steps());
  ASSERT_EQ(job.pids().size(), 3u);
  ASSERT_EQ(::kill(job.pids()[1], SIGKILL), 0);
  job.end();
  const auto found = train_on(2, {"--swap", swap("killed"), "--steps", "1"});
  ASSERT_EQ(found.exit, 0) << found.err;
  const std::string last =
      std::to_string(number_behind("transferred the store of 3 ranks at step ", found.err) + 5);
  const auto resumed = train_on(2, {"--swap", swap("killed"), "--steps", last});
  ASSERT_EQ(resumed.exit, 0) << resumed.err;
  EXPECT_EQ(content(swap("killed")), content_of_threads(last));
}

TEST_F(GptTrainMpi, AProcessThatStopsIsNamedAndTheJobEnds) {
  Job job(3, small({"--swap", swap("stopped"), "--steps", "100000", "--peer-limit", "2"}));
  ASSERT_NO_FATAL_FAILURE(job.wait_for_steps());
  ASSERT_EQ(job.pids().size(), 3u);
  ASSERT_EQ(::kill(job.pids()[1], SIGSTOP), 0);
  const std::string said = job.end();
  EXPECT_NE(said.find(" kept the others waiting in "), std::string::npos) << said;
  EXPECT_NE(said.find(" for 2000 ms, which is the limit"), std::string::npos) << said;
}

TEST_F(GptTrainMpi, ARankThatFailsSaysWhyAndTheOthersHearOfIt) {
  const auto refused =
      train_on(3, {"--swap", swap("fine"), "/proc/no-such-place", swap("fine-too")});
  EXPECT_NE(refused.exit, 0);
  EXPECT_NE(refused.err.find("rank 1: "), std::string::npos) << refused.err;
  EXPECT_NE(refused.err.find("/proc/no-such-place"), std::string::npos) << refused.err;
  for (const std::string rank : {"0", "2"})
    EXPECT_NE(refused.err.find("rank " + rank + ": rank 1 failed"), std::string::npos)
        << refused.err;
}

TEST_F(GptTrainMpi, ArgumentsThatDifferAreNamedOnEveryProcess) {
  Words words = on_processes(1, "gpt-train-mpi", {"--swap", swap("none"), "--steps", "3"});
  const Words others = on_processes(2, "gpt-train-mpi", {"--swap", swap("none"), "--steps", "4"});
  words.push_back(":");
  words.insert(words.end(), others.begin(), others.end());
  const auto refused = test_support::run_program(mpirun(), words);
  EXPECT_NE(refused.exit, 0);
  for (int rank = 0; rank < 3; ++rank)
    EXPECT_NE(refused.err.find("rank " + std::to_string(rank) +
                               ": --steps is not the same on all ranks: "),
              std::string::npos)
        << refused.err;
  EXPECT_NE(refused.err.find("3 on rank 0"), std::string::npos) << refused.err;
  EXPECT_NE(refused.err.find("4 on ranks 1, 2"), std::string::npos) << refused.err;
  EXPECT_FALSE(std::filesystem::exists(swap("none")));
}

TEST_F(GptTrainMpi, ProcessesAreTheRanks) {
  const auto refused = train_on(2, {"--swap", swap("none"), "--ranks", "3"});
  EXPECT_EQ(refused.exit, 2);
  EXPECT_NE(refused.err.find("--ranks 3: there are 2 processes, each is a rank"), std::string::npos)
      << refused.err;
}

TEST_F(GptTrainMpi, ExportsBehindTrainingAndAddsUpWhatAllProcessesDid) {
  const std::string exported = folder_ / "exported", results = folder_ / "results.json";
  const auto trained = train_on(2, {"--swap", swap("exporting"), "--steps", "4", "--export",
                                    "dcp:" + exported, "--json", results});
  ASSERT_EQ(trained.exit, 0) << trained.err;
  EXPECT_EQ(test_support::run_program("ckpt-inspect", {exported, "--verify"}).exit, 0);
  const auto shown = test_support::run_program("/bin/cat", {results});
  const auto value = [&](const std::string& key) {
    const std::size_t at = shown.out.find("\"" + key + "\": ");
    return at == std::string::npos ? -1.0 : std::stod(shown.out.substr(at + key.size() + 4));
  };
  EXPECT_GT(value("sent_bytes"), 0);
  EXPECT_EQ(value("sent_bytes"), value("predicted_sent_bytes"));
  EXPECT_LE(value("peak_rss_bytes"), value("predicted_memory_bytes"));
}

}  // namespace
}  // namespace ebb::gpt
