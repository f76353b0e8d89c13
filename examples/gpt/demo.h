// ebb-demo: runs the main job as a user would - programs started, killed, resumed - and checks
// every claim on what they measured. Each claim is one function; nothing here trains or reads
// checkpoints itself.
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

namespace ebb::gpt {

namespace fs = std::filesystem;
using formats::Result;

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

// One line of the last screen and the command that repeats it.
struct Line {
  std::string what;
  std::string command;
};
using Lines = std::vector<Line>;

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

// --- demo_runs.cpp: training runs ---

struct TrainingRun {
  std::string name;  // of its swap directory and of its messages
  std::string budget = "quarter";
  std::string tile = "64KiB";
  std::uint32_t ranks = 4;
  std::uint64_t steps = 0;
  std::vector<std::string> more = {};
  std::string json(const Demo& demo) const { return demo.path(name + ".json"); }
};
std::vector<std::string> command_of(const Demo& demo, const TrainingRun& run);

// Runs to its end, messages shown; an exit code other than 0 is an error.
Result<Results> train_to_end(const Demo& demo, const TrainingRun& run);
// SIGKILL at a random moment in the steps after `step`; what it said last. An error if it ended
// before.
struct Killed {
  std::uint64_t after_step = 0;  // the last progress line
  double milliseconds = 0;       // later
};
Result<Killed> train_and_kill(const Demo& demo, const TrainingRun& run, std::uint64_t step);

// What the three ways to the same state left behind.
struct Story {
  Results resident;  // 4 ranks, all in memory, never killed
  Results killed;    // the last part of the killed run: 2 ranks, a quarter of the memory
  std::vector<Killed> kills;
  Results from_export;  // 3 ranks, from the export, the store deleted
  TrainingRun resident_run, killed_run, from_export_run;  // the last commands
};
Result<Story> tell_story(const Demo& demo);
// `--you-kill`: restarts the training that the user kills, until it is through.
Result<Lines> let_user_kill(const Demo& demo);

// --- demo_tools.cpp: what the tools say ---

struct ToolRun {
  std::string output;
  int code = 0;
};
// Standard output of a tool; messages go through. Error when it cannot run or ends by a signal.
Result<ToolRun> run_tool(const std::vector<std::string>& command);
// One sha256 over name, state and sha256 of every tensor of a checkpoint.
Result<std::string> hash_of(const Demo& demo, const std::string& checkpoint);
std::string shell(const std::vector<std::string>& command);  // to be typed

// --- the claims; an Error says what does not hold ---

Result<Lines> claim_loss(const Demo& demo, const Story& story);
Result<Lines> claim_predictions(const Demo& demo, const Story& story);
Result<Lines> claim_export(const Demo& demo, const Story& story);
Result<Lines> claim_one_hash(const Demo& demo, const Story& story);
Result<Lines> claim_tools(const Demo& demo, const Story& story);
Result<Lines> claim_deepspeed(const Demo& demo, const Story& story);
Result<Lines> claim_pictures(const Demo& demo, const Story& story);

}  // namespace ebb::gpt
