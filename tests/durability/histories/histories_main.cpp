// ebb-histories: draws histories of engines, SwapSpaces and StateStores, runs each in a process of
// its own, and makes those that fail simpler.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <map>
#include <mutex>

#include "ebb/libswap/sys/process.h"
#include "tests/durability/histories/shrink.h"
#include "tests/durability/histories/spaces.h"
#include "tests/durability/machines.h"
#include "tools/cli/run.h"

namespace ebb::test {
namespace {

namespace fs = std::filesystem;
using tools::Exit;
using tools::Flag;
using tools::FlagType;

constexpr unsigned kMostSeconds = 300;  // of one history
constexpr std::uint64_t kMostOutput = 1u << 20;
constexpr std::array<std::string_view, 3> kKinds = {"engine", "space", "store"};

constexpr std::array kPositionals = {
    tools::Positional{.metavar = "SEED", .line = "of the first history"},
    tools::Positional{.metavar = "COUNT", .line = "how many, of seeds one after the other"}};
constexpr std::array kFlags = {
    Flag{.name = "of",
         .type = FlagType::choice,
         .metavar = "KIND",
         .choices = kKinds,
         .line = "only histories of that kind (default: mostly engines)"},
    Flag{.name = "without",
         .type = FlagType::text,
         .metavar = "NAME",
         .line = "what is made simpler about an engine's history, as a failure names it",
         .repeat = tools::Repeat::list},
    Flag{.name = "at-a-time",
         .type = FlagType::count,
         .metavar = "N",
         .default_value = "3",
         .line = "processes"},
    Flag{.name = "dir",
         .type = FlagType::text,
         .metavar = "DIR",
         .line = "where their stores are (default: histories/ beside the folder of programs)"},
    Flag{.name = "alone",
         .type = FlagType::on,
         .line = "the one history in this process, in the words of another ebb-histories"},
};

constexpr tools::Program kProgram = {
    .name = "ebb-histories",
    .summary =
        "Draws histories of random configurations, faults and restarts, and compares their bits "
        "with those of runs that nothing happens to.",
    .positionals = kPositionals,
    .flags = kFlags,
    .examples = {},
    .closing =
        "Of a history that fails: its seed, what it did, and the shortest command that still "
        "fails. Exit code 1 then.",
};

struct Job {
  std::uint64_t seed = 0;
  std::string kind;
  std::vector<std::string> without;
  fs::path directory;

  std::vector<std::string> words() const {
    std::vector<std::string> all = {std::to_string(seed), "1", "--of", kind};
    if (!without.empty()) all.emplace_back("--without");
    all.insert(all.end(), without.begin(), without.end());
    return all;
  }
};

Verdict run_here(const Job& job) {
  if (job.kind == "space") return run_space_history(job.seed, job.directory);
  if (job.kind == "store") return run_state_store_history(job.seed, job.directory);
  const auto history = simplified(draw_history(job.seed), job.without);
  if (!history) return {.wrong = history.error().message};
  return run_history(*history, job.directory);
}

Result<Verdict> run_in_process(const fs::path& program, const Job& job) {
  std::vector<std::string> command = {program.string()};
  const auto words = job.words();
  command.insert(command.end(), words.begin(), words.end());
  command.insert(command.end(), {"--alone", "--dir", job.directory.string()});
  EBB_TRY_ASSIGN(auto child,
                 libswap::ChildProcess::start(command, libswap::ChildProcess::Stream::output));
  EBB_TRY_ASSIGN(const std::string text, child.read_all(kMostOutput));
  EBB_TRY_ASSIGN(const auto exit, child.wait());
  if (exit.signal == SIGALRM)
    return Verdict{.wrong = compose("it took more than {} seconds", kMostSeconds)};
  if (exit.signal != 0) return Verdict{.wrong = compose("signal {} ended it", exit.signal)};
  return verdict_from(text);
}

// Mostly engines: they have the most to go wrong.
std::string kind_of(std::uint64_t seed) {
  return seed % 10 == 7 ? "space" : seed % 10 == 9 ? "store" : "engine";
}

class Runs {
 public:
  explicit Runs(fs::path program) : program_(std::move(program)) {}

  void run(const Job& job) {
    Verdict verdict = run_or_say(job);
    std::string report;
    if (!verdict.wrong.empty()) report = report_of(job, verdict.wrong);
    const std::lock_guard lock(mutex_);
    tally_ += verdict.tally;
    for (const std::string& why : verdict.refused) ++refused_[why];
    if (report.empty()) return;
    ++failed_;
    std::printf("%s\n", report.c_str());
    std::fflush(stdout);
  }
  std::uint64_t failed() const { return failed_; }
  std::string summary() const {
    std::string text = compose("{}; {} failed", text_of(tally_), failed_);
    for (const auto& [why, times] : refused_)
      text += compose("\n  refused {} times: {}", times, why);
    return text;
  }

 private:
  Verdict run_or_say(const Job& job) const {
    auto verdict = run_in_process(program_, job);
    return verdict ? *std::move(verdict) : Verdict{.wrong = verdict.error().message};
  }
  std::string report_of(const Job& job, const std::string& wrong) const {
    std::string text = compose("history {} of {}: {}", job.seed, job.kind, wrong);
    Job simpler = job;
    if (job.kind == "engine" && job.without.empty()) {
      const History history = draw_history(job.seed);
      simpler.without = shrink(history, [&](const std::vector<std::string>& names) {
        Job tried = job;
        tried.without = names;
        return !run_or_say(tried).wrong.empty();
      });
    }
    if (job.kind == "engine")
      if (const auto shown = simplified(draw_history(job.seed), simpler.without); shown) {
        text += "\n  " + text_of(shown->meaning);
        for (const Start& start : shown->starts)
          if (start.until > 0) text += "\n  " + text_of(start);
      }
    text += "\n  again: ebb-histories";
    for (const std::string& word : simpler.words()) text += " " + word;
    return text;
  }

  const fs::path program_;
  std::mutex mutex_;
  Tally tally_;
  std::map<std::string, std::uint64_t> refused_;
  std::uint64_t failed_ = 0;
};

Result<Exit> histories(tools::Console& console, const tools::Arguments& arguments) {
  const auto seed = tools::parse_count(arguments.positional(0));
  const auto count = tools::parse_count(arguments.positional(1));
  if (!seed || !count) return Error{Code::usage, "SEED and COUNT are numbers"};
  EBB_TRY_ASSIGN(const fs::path programs, libswap::program_directory());
  const fs::path directory =
      arguments.text("dir").value_or((programs.parent_path() / "histories").string());
  const auto job_of = [&](std::uint64_t number) {
    return Job{number, arguments.text("of").value_or(kind_of(number)), arguments.texts("without"),
               directory};
  };
  if (arguments.has("alone")) {
    ::alarm(kMostSeconds);
    Verdict verdict = run_here(job_of(*seed));
    if (verdict.wrong.empty() && testing::Test::HasFailure())
      verdict.wrong = "an expectation failed, see above";
    console.print(to_text(verdict));
    return verdict.wrong.empty() ? Exit::success : Exit::different;
  }
  Runs runs(programs / "ebb-histories");
  std::atomic<std::uint64_t> next = 0;
  in_parallel(std::min(*count, arguments.count("at-a-time").value_or(1)), [&](std::uint64_t) {
    for (std::uint64_t i = next++; i < *count; i = next++) runs.run(job_of(*seed + i));
  });
  console.print(compose("seeds {} to {}: {}\n", *seed, *seed + *count - 1, runs.summary()));
  return runs.failed() == 0 ? Exit::success : Exit::different;
}

}  // namespace
}  // namespace ebb::test

int main(int argc, char** argv) {
  return ebb::tools::run_program(ebb::test::kProgram, argc, argv, ebb::test::histories);
}
