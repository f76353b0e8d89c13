// ebb-demo: runs the main job as a user would - programs started, killed, resumed - and checks
// seven claims on what they measured. Nothing here trains or reads checkpoints itself.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ebb/formats/core/result.h"
#include "ebb/formats/core/units.h"
#include "ebb/libswap/queue/io_queue.h"
#include "ebb/libswap/sys/process.h"

namespace ebb::demo {

namespace fs = std::filesystem;

struct Scale {
  std::uint64_t steps = 150;
  std::uint64_t pair_rounds = 3;  // of paged and resident runs in turn
  std::uint64_t pair_steps = 15;  // a round
  std::uint64_t swept_bytes = formats::GiB;
};

struct Demo {
  fs::path directory;  // everything the demo writes
  fs::path programs;   // gpt-train, ebb-sweep, ckpt-inspect, ckpt-convert
  fs::path fixtures;   // checkpoints of other frameworks that come with the sources
  std::optional<std::string> text;
  Scale scale;
  libswap::IoQueue& io;

  std::string program(const std::string& name) const { return (programs / name).string(); }
  std::string path(const std::string& name) const { return (directory / name).string(); }
};

// One line of the last screen and the command that repeats it. `missed` is a speed that was
// promised and not reached; `not_judged` says why nobody can tell.
enum class Verdict : std::uint8_t { ok, failed, missed, not_judged };
struct Line {
  std::string what;
  std::string command;
  Verdict verdict = Verdict::ok;
};
using Lines = std::vector<Line>;
// The line, or that what it says does not hold; an Error when the user stopped the demo.
Result<> add(Lines& lines, const char* claim, Result<Line> line);
using Command = std::vector<std::string>;

// A flat JSON object as gpt-train and ebb-sweep write it: one key a line.
class Results {
 public:
  static Result<Results> read(libswap::IoQueue& io, const fs::path& file);
  // Code::state names the key that is missing.
  Result<double> number(const std::string& key) const;
  Result<std::string> text(const std::string& key) const;

 private:
  std::string file_;
  std::map<std::string, std::string> values_;
};

// --- runs.cpp: training runs ---

struct TrainingRun {
  std::string name;  // of its swap directory and of its messages
  std::string budget = "quarter";
  std::string tile = "64KiB";
  std::uint32_t ranks = 4;
  std::uint64_t steps = 0;
  std::vector<std::string> more = {};
  std::string json(const Demo& demo) const { return demo.path(name + ".json"); }
};
Command command_of(const Demo& demo, const TrainingRun& run);

// Runs to its end, messages shown; an exit code other than 0 is an error.
Result<Results> train_to_end(const Demo& demo, const TrainingRun& run);

// A training that ended, and how to repeat its last part.
struct Trained {
  Results results;
  Command command;
  std::string what;  // "4 ranks, all in memory, never killed"
};
// 4, then 3, then 2 ranks on a quarter of the memory, killed twice, exporting while it goes on.
Result<Trained> train_killed(const Demo& demo);
Result<Trained> train_resident(const Demo& demo);     // 4 ranks, never killed
Result<Trained> train_from_export(const Demo& demo);  // 3 ranks, no store: from that export
// `--you-kill`: restarts the training that the user kills, until it is through.
Result<Lines> let_user_kill(const Demo& demo);

// --- tools.cpp: what the tools say ---

struct ToolRun {
  std::string output;
  int code = 0;
};
// Standard output of a tool; messages go through. Error when it cannot run or ends by a signal.
Result<ToolRun> run_tool(const Command& command);
// One sha256 over name, state and sha256 of every tensor of a checkpoint, by a line for the shell.
std::string hash_command(const Demo& demo, const std::string& checkpoint);
Result<std::string> hash_of(const Demo& demo, const std::string& checkpoint);
std::string shell(const Command& command);  // to be typed

// --- quiet.cpp: whether a speed measured here means anything ---

// The processor time that other programs took since the watch began, as a share of all there was.
class QuietWatch {
 public:
  QuietWatch();
  double share_of_others() const;

 private:
  struct Sample {
    double wall = 0, busy = 0, ours = 0;  // seconds
  };
  static Sample now();
  Sample begin_;
};
constexpr double kQuiet = 0.1;
// The verdict on a speed: judged where other programs left the machine alone.
Line judged(Line line, bool promise_holds, double share_of_others);

// --- claims.cpp, tools.cpp: an Error says what does not hold; all of them are asked ---

struct Story {
  Result<Trained> killed = never_ran(), resident = never_ran(), from_export = never_ran();

 private:
  static Error never_ran() { return {Code::state, "the training before it did not come so far"}; }
};

Result<Lines> claim_loss(const Demo& demo, Story& story);
Result<Lines> claim_predictions(const Demo& demo, Story& story);
Result<Lines> claim_export(const Demo& demo, Story& story);
Result<Lines> claim_one_hash(const Demo& demo, Story& story);
Result<Lines> claim_tools(const Demo& demo, Story& story);
Result<Lines> claim_deepspeed(const Demo& demo, Story& story);
Result<Lines> claim_pictures(const Demo& demo, Story& story);

}  // namespace ebb::demo
