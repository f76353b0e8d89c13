// gpt-train as a user runs it: same bits whatever memory, ranks, tiles and interruptions; and what
// it refuses.
#include <sys/resource.h>

#include <array>
#include <csignal>
#include <filesystem>

#include "ebb/libswap/queue/io_queue.h"
#include "ebb/libswap/sys/posix_backend.h"
#include "ebb/libswap/sys/process.h"
#include "tests/examples/gpt_train.h"

namespace ebb::gpt {
namespace {

namespace fs = std::filesystem;
using libswap::ChildProcess;

ChildProcess start(const std::vector<std::string>& words) {
  auto child = ChildProcess::start(words, ChildProcess::Stream::messages);
  EBB_CHECK(child.has_value());
  return std::move(*child);
}

void wait_for(ChildProcess& child, const std::string& beginning) {
  for (;;) {
    const auto line = child.read_line();
    ASSERT_TRUE(line && *line) << "ended before it said " << beginning;
    if ((*line)->starts_with(beginning)) return;
  }
}

TEST_F(GptTrain, GivesTheSameBitsForAnyRanksBudgetTileAndPlaceOfResume) {
  const auto plain = train({"--swap", swap("plain"), "--steps", "4", "--budget", "all"});
  ASSERT_EQ(plain.exit, 0) << plain.err;
  const std::string wanted = content(swap("plain"));

  const std::string exported = folder_ / "exported";
  const auto begun = train({"--swap", swap("parts"), "--steps", "2", "--ranks", "3", "--tile",
                            "32KiB", "--export", std::string("dcp:").append(exported)});
  ASSERT_EQ(begun.exit, 0) << begun.err;
  EXPECT_NE(content(swap("parts")), wanted);
  const auto ended = train({"--swap", swap("parts"), "--steps", "4", "--ranks", "2"});
  ASSERT_EQ(ended.exit, 0) << ended.err;
  EXPECT_EQ(content(swap("parts")), wanted);

  const auto loaded =
      train({"--swap", swap("loaded"), "--steps", "4", "--ranks", "1", "--resume-from", exported});
  ASSERT_EQ(loaded.exit, 0) << loaded.err;
  EXPECT_NE(loaded.err.find("at step 1"), std::string::npos) << loaded.err;
  EXPECT_EQ(content(swap("loaded")), wanted);
}

TEST_F(GptTrain, SaysWhatMuonSendsBesideWhatItWouldElsewhere) {
  const std::string results = folder_ / "results.json";
  const auto trained =
      test_support::run_program("gpt-train", {"--swap", swap("sending"), "--steps", "2", "--ranks",
                                              "3", "--layers", "1", "--json", results});
  ASSERT_EQ(trained.exit, 0) << trained.err;
  for (const std::string system : {"DeepSpeed ZeRO-1/2", "DeepSpeed ZeRO-3", "Megatron-FSDP"})
    EXPECT_NE(trained.out.find("; " + system + " would send "), std::string::npos) << trained.out;
  const std::string json = test_support::text_of_file(results);
  const auto value = [&](const std::string& key) {
    const std::size_t at = json.find("\"" + key + "\": ");
    return at == std::string::npos ? -1.0 : std::stod(json.substr(at + key.size() + 4));
  };
  // One block: four matrices of width x width, two of width x hidden; the wire is fp32.
  const double matrices = 4 * 128 * 128 + 2 * 128 * 512;
  EXPECT_EQ(value("deepspeed_zero12_bytes"), 4 * matrices * 2);
  EXPECT_EQ(value("deepspeed_zero3_bytes"), 16 * matrices * 2);
  EXPECT_EQ(value("megatron_fsdp_bytes"), 4 * matrices * 2);
  // Each gradient goes to one owner at most, from where the owner is not.
  EXPECT_GT(value("sent_beyond_adamw_bytes"), 0);
  EXPECT_LT(value("sent_beyond_adamw_bytes"), 4 * matrices);
}

// Snapshots of every step, until somebody ends it.
std::vector<std::string> for_ever(const std::string& directory) {
  return {EBB_BIN "/gpt-train", "--swap", directory, "--steps", "100000",
          "--snapshot-every",   "1",      "--quiet"};
}

TEST_F(GptTrain, GoesOnWhereSigkillLeftIt) {
  {
    ChildProcess child = start(small(for_ever(swap("killed"))));
    wait_for(child, "step  10/");
    child.kill();
    const auto exit = child.wait();
    ASSERT_TRUE(exit);
    EXPECT_EQ(exit->signal, SIGKILL);
  }
  const auto found = train({"--swap", swap("killed"), "--steps", "1"});
  ASSERT_EQ(found.exit, 0) << found.err;
  const std::string last =
      std::to_string(number_behind("resumed the store at step ", found.err) + 5);
  const auto resumed = train({"--swap", swap("killed"), "--steps", last});
  ASSERT_EQ(resumed.exit, 0) << resumed.err;
  const auto plain = train({"--swap", swap("plain"), "--steps", last, "--budget", "all"});
  ASSERT_EQ(plain.exit, 0) << plain.err;
  EXPECT_EQ(content(swap("killed")), content(swap("plain")));
}

TEST_F(GptTrain, CtrlCStopsAfterTheStepAndASecondTrainerIsRefusedMeanwhile) {
  ChildProcess child = start(small(for_ever(swap("busy"))));
  wait_for(child, "step  10/");
  const auto second = train({"--swap", swap("busy")});
  EXPECT_EQ(second.exit, 2);
  EXPECT_NE(second.err.find(std::to_string(child.id())), std::string::npos) << second.err;
  child.interrupt();
  wait_for(child, "stopped at step ");
  const auto exit = child.wait();
  ASSERT_TRUE(exit);
  EXPECT_EQ(exit->code, 130);
  EXPECT_EQ(exit->signal, 0);
  EXPECT_EQ(test_support::run_program("ckpt-inspect", {swap("busy"), "--verify"}).exit, 0);
}

TEST_F(GptTrain, DamageInTheStoreIsRefusedWithFileAndOffset) {
  ASSERT_EQ(train({"--swap", swap("damaged"), "--steps", "1"}).exit, 0);
  const auto shards =
      test_support::run_program("ckpt-inspect", {swap("damaged"), "--shards", "--json"});
  ASSERT_EQ(shards.exit, 0) << shards.err;
  const auto after = [&](const std::string& key) {
    const std::size_t at = shards.out.find(key) + key.size();
    return shards.out.substr(at, shards.out.find_first_of(",\"", at) - at);
  };
  const std::string file = after("\"file\": \"");
  auto backend = libswap::make_threads_backend(1);
  ASSERT_TRUE(backend);
  auto io = libswap::IoQueue::start(std::move(*backend), {});
  ASSERT_TRUE(io);
  const auto opened = (*io)->backend().open(fs::path(swap("damaged")) / file,
                                            {.access = libswap::Access::read_write});
  ASSERT_TRUE(opened) << opened.error().message;
  const std::array<std::byte, 1> wrong{std::byte{0xa5}};
  ASSERT_TRUE((*io)->write(*opened, std::stoull(after("\"offset\": ")) + 3, wrong));

  const auto refused = train({"--swap", swap("damaged"), "--steps", "2"});
  EXPECT_EQ(refused.exit, 3) << refused.err;
  EXPECT_NE(refused.err.find(fs::path(file).filename().string()), std::string::npos) << refused.err;
}

TEST_F(GptTrain, AnExportThatTheRunIsPastIsSaid) {
  ASSERT_EQ(train({"--swap", swap("past"), "--steps", "2"}).exit, 0);
  const auto resumed = train({"--swap", swap("past"), "--steps", "3", "--export",
                              "dcp:" + (folder_ / "late"), "--export-at", "1"});
  EXPECT_EQ(resumed.exit, 0) << resumed.err;
  EXPECT_NE(resumed.err.find("nothing is exported: the run begins at step 2"), std::string::npos)
      << resumed.err;
}

TEST_F(GptTrain, AnExportThatTheFormatCannotHoldIsRefusedBeforeTheFirstStep) {
  const auto refused = train(
      {"--swap", swap("early"), "--steps", "20", "--export", "deepspeed:" + (folder_ / "never")});
  EXPECT_EQ(refused.exit, 2) << refused.err;
  EXPECT_NE(refused.err.find("--export deepspeed"), std::string::npos) << refused.err;
  EXPECT_EQ(refused.err.find("step  10/"), std::string::npos) << refused.err;
  EXPECT_FALSE(std::filesystem::exists(folder_ / "never"));
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// What this process and those it starts may have, until the end of the test.
class Limit {
 public:
  Limit(int resource, rlim_t most) : resource_(resource) {
    getrlimit(static_cast<__rlimit_resource>(resource_), &before_);
    const rlimit changed{most, before_.rlim_max};
    setrlimit(static_cast<__rlimit_resource>(resource_), &changed);
  }
  ~Limit() { setrlimit(static_cast<__rlimit_resource>(resource_), &before_); }
  Limit(const Limit&) = delete;
  Limit& operator=(const Limit&) = delete;

 private:
  int resource_;
  rlimit before_{};
};

TEST_F(GptTrain, ResultsReplaceEarlierOnesAndNothingElse) {
  const std::string json = folder_ / "results.json", trace = folder_ / "timeline.json";
  for (const char* steps : {"1", "2"}) {
    const auto run =
        train({"--swap", swap("results"), "--steps", steps, "--json", json, "--trace", trace});
    EXPECT_EQ(run.exit, 0) << run.err;
  }
  const std::string thesis = folder_ / "thesis.json", link = folder_ / "link.json";
  fs::copy_file(trace, thesis);
  fs::create_symlink("results.json", link);
  for (const auto& [flag, file] :
       {std::pair("--json", thesis), {"--json", link}, {"--trace", json}}) {
    const auto run = train({"--swap", swap("results"), "--steps", "9", flag, file});
    EXPECT_EQ(run.exit, 2) << run.err;
    EXPECT_NE(run.err.find(file + ": it is there, and no "), std::string::npos) << run.err;
    EXPECT_EQ(run.err.find("step  "), std::string::npos) << run.err;  // not even one
  }
  EXPECT_EQ(fs::file_size(thesis), fs::file_size(trace));
}

TEST_F(GptTrain, CountersAreWrittenAsLinesOrAsPrometheusText) {
  const auto count_of = [](const std::string& text, const std::string& part) {
    std::size_t count = 0;
    for (std::size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++count;
    return count;
  };
  const std::string lines = folder_ / "stats.jsonl", text = folder_ / "stats.prom";
  for (const char* steps : {"10", "20"}) {
    const auto run = train({"--swap", swap("s"), "--steps", steps, "--stats", lines});
    ASSERT_EQ(run.exit, 0) << run.err;
  }
  const std::string written = test_support::text_of_file(lines);  // of the second run alone
  EXPECT_EQ(count_of(written, "{\"schema\":\"ebb.stats/1\",\"seconds\":"), 5u) << written;
  EXPECT_EQ(count_of(written, "\"engine_steps\":10,"), 4u) << written;
  EXPECT_EQ(count_of(written, "\"rank\":null,\"io_read_bytes\":"), 1u) << written;
  const auto run = train({"--swap", swap("s"), "--steps", "21", "--stats", text});
  ASSERT_EQ(run.exit, 0) << run.err;
  EXPECT_TRUE(test_support::text_of_file(text).starts_with("# HELP ebb_"))
      << test_support::text_of_file(text);
  EXPECT_NE(test_support::text_of_file(text).find("ebb_engine_steps_total{rank=\"0\"} 1\n"),
            std::string::npos);
  const auto refused =
      train({"--swap", swap("s"), "--steps", "22", "--stats", swap("s") + "/lock"});
  EXPECT_EQ(refused.exit, 2) << refused.err;
}

TEST_F(GptTrain, NoRoomForTheProbeIsNoReasonNotToTrain) {
  const Limit files(RLIMIT_FSIZE, 100u << 20);
  const auto trained =
      train({"--swap", swap("tight"), "--steps", "1", "--json", folder_ / "results"});
  EXPECT_EQ(trained.exit, 0) << trained.err;
  EXPECT_NE(trained.err.find("note: no time is predicted: "), std::string::npos) << trained.err;
}

TEST_F(GptTrain, AFileThatMayNotGrowIsAnErrorNotASignal) {
  const Limit files(RLIMIT_FSIZE, 1u << 20);
  const auto refused = train({"--swap", swap("small"), "--steps", "1"});
  EXPECT_EQ(refused.exit, 5) << refused.err;  // the environment refuses
  EXPECT_NE(refused.err.find("hint: ulimit -f"), std::string::npos) << refused.err;
}

TEST_F(GptTrain, TooLittleMemoryIsOneSentence) {
  for (const rlim_t mib : {60u, 90u, 120u}) {
    const Limit memory(RLIMIT_AS, rlim_t{mib} << 20);
    const auto ended = train({"--swap", swap("poor" + std::to_string(mib)), "--steps", "1"});
    EXPECT_TRUE(ended.exit == 0 || ended.exit == 5) << mib << " MiB: " << ended.err;
    if (ended.exit != 0) {
      EXPECT_NE(ended.err.find("error: "), std::string::npos) << ended.err;
    }
  }
}
#endif

}  // namespace
}  // namespace ebb::gpt
