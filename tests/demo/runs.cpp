#include <array>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <random>

#include "examples/gpt/files.h"
#include "tests/demo/demo.h"

namespace ebb::demo {
namespace {

using gpt::read_text;
using libswap::ChildProcess;

void show(const std::string& name, const std::string& line) {
  std::fprintf(stderr, "  [%s] %s\n", name.c_str(), line.c_str());
}

std::uint64_t random_below(std::uint64_t limit) {
  std::random_device device;
  return std::uniform_int_distribution<std::uint64_t>(0, limit - 1)(device);
}

// "step  30/150  loss ...": 30.
std::optional<std::uint64_t> step_in(const std::string& line) {
  if (!line.starts_with("step ")) return std::nullopt;
  const std::size_t first = line.find_first_not_of(' ', 5);
  if (first == std::string::npos) return std::nullopt;
  std::uint64_t step = 0;
  const auto parsed = std::from_chars(line.data() + first, line.data() + line.size(), step);
  if (parsed.ec != std::errc()) return std::nullopt;
  return step;
}

Result<ChildProcess> start(const Demo& demo, const TrainingRun& run) {
  const Command command = command_of(demo, run);
  std::fprintf(stderr, "$ %s\n", shell(command).c_str());
  return ChildProcess::start(command, ChildProcess::Stream::messages);
}

// Shows messages until the program ends.
Result<ChildProcess::Exit> show_to_end(const TrainingRun& run, ChildProcess& child) {
  for (;;) {
    EBB_TRY_ASSIGN(const auto line, child.read_line());
    if (!line) return child.wait();
    show(run.name, *line);
  }
}

Error ended_with(const TrainingRun& run, const ChildProcess::Exit& exit) {
  const std::string how = exit.signal != 0 ? "signal " + std::to_string(exit.signal)
                                           : "exit code " + std::to_string(exit.code);
  return {exit.code == 130 ? Code::cancelled : Code::state,
          "the training run '" + run.name + "' ended with " + how,
          {}};
}

}  // namespace

Command command_of(const Demo& demo, const TrainingRun& run) {
  Command command = {demo.program("gpt-train"), "--swap", demo.path(run.name)};
  const auto add = [&](const std::string& flag, const std::string& value) {
    command.push_back(flag);
    command.push_back(value);
  };
  if (demo.text) add("--text", *demo.text);
  add("--ranks", std::to_string(run.ranks));
  add("--budget", run.budget);
  add("--tile", run.tile);
  add("--steps", std::to_string(run.steps));
  add("--bf16", "emulated");  // the same bits on every machine
  add("--json", run.json(demo));
  command.insert(command.end(), run.more.begin(), run.more.end());
  return command;
}

Result<Results> train_to_end(const Demo& demo, const TrainingRun& run) {
  EBB_TRY_ASSIGN(ChildProcess child, start(demo, run));
  EBB_TRY_ASSIGN(const ChildProcess::Exit exit, show_to_end(run, child));
  if (exit.signal != 0 || exit.code != 0) return ended_with(run, exit);
  return Results::read(demo.io, run.json(demo));
}

namespace {

// SIGKILL at a random moment in the steps after `step`; an error if it ended before.
struct Killed {
  std::uint64_t after_step = 0;  // the last progress line
  double milliseconds = 0;       // later
};
Result<Killed> train_and_kill(const Demo& demo, const TrainingRun& run, std::uint64_t step) {
  EBB_TRY_ASSIGN(ChildProcess child, start(demo, run));
  Killed killed;
  while (killed.after_step < step) {
    EBB_TRY_ASSIGN(const auto line, child.read_line());
    if (!line) {
      EBB_TRY_ASSIGN(const ChildProcess::Exit exit, child.wait());
      return ended_with(run, exit);
    }
    show(run.name, *line);
    if (const auto now = step_in(*line)) killed.after_step = *now;
  }
  killed.milliseconds = static_cast<double>(random_below(600));
  libswap::sleep_for_seconds(killed.milliseconds / 1e3);
  child.kill();
  EBB_TRY_ASSIGN(const ChildProcess::Exit exit, child.wait());
  if (exit.signal != SIGKILL) return ended_with(run, exit);
  show(run.name, "SIGKILL " + std::to_string(static_cast<int>(killed.milliseconds)) +
                     " ms after step " + std::to_string(killed.after_step));
  return killed;
}

}  // namespace

Result<Trained> train_killed(const Demo& demo) {
  const std::uint64_t steps = demo.scale.steps;
  const auto some_step = [&](std::uint64_t percent) {
    return steps * (percent + random_below(15)) / 100 / 10 * 10;
  };
  TrainingRun run{.name = "killed", .ranks = 4, .steps = steps, .more = {"--print-pid"}};
  std::fprintf(stderr, "four ranks, to be killed at a random moment:\n");
  EBB_TRY_ASSIGN(const Killed first, train_and_kill(demo, run, some_step(20)));
  run.ranks = 3;
  run.tile = "32KiB";
  std::fprintf(stderr, "three ranks and other tiles resume it, and are killed, too:\n");
  EBB_TRY_ASSIGN(const Killed second, train_and_kill(demo, run, some_step(45)));
  run.ranks = 2;
  const std::string at = std::to_string(steps * 8 / 10);
  run.more = {"--export", "dcp:" + demo.path("export"), "--export-at", at,
              "--trace",  demo.path("timeline.json")};
  std::fprintf(stderr, "two ranks resume it, export step %s meanwhile, and end it:\n", at.c_str());
  EBB_TRY_ASSIGN(const Results results, train_to_end(demo, run));
  return Trained{results, command_of(demo, run),
                 "4, 3, 2 ranks, a quarter, SIGKILL after steps " +
                     std::to_string(first.after_step) + " and " +
                     std::to_string(second.after_step) + ", other tiles"};
}

Result<Trained> train_resident(const Demo& demo) {
  const TrainingRun run{.name = "resident", .budget = "all", .ranks = 4, .steps = demo.scale.steps};
  std::fprintf(stderr, "the same training with all state in memory:\n");
  EBB_TRY_ASSIGN(const Results results, train_to_end(demo, run));
  return Trained{results, command_of(demo, run), "4 ranks, all in memory, never killed"};
}

Result<Trained> train_from_export(const Demo& demo) {
  const TrainingRun run{.name = "resumed",
                        .ranks = 3,
                        .steps = demo.scale.steps,
                        .more = {"--resume-from", demo.path("export")}};
  std::fprintf(stderr, "the rest of it from the export alone:\n");
  EBB_TRY_ASSIGN(const Results results, train_to_end(demo, run));
  return Trained{results, command_of(demo, run),
                 "no store: resumed from the DCP export on 3 ranks"};
}

Result<Lines> let_user_kill(const Demo& demo) {
  TrainingRun quiet{.name = "resident", .budget = "all", .ranks = 4, .steps = demo.scale.steps};
  TrainingRun yours{.name = "yours",
                    .ranks = 4,
                    .steps = demo.scale.steps,
                    .more = {"--print-pid", "--snapshot-every", "5"}};
  std::uint64_t kills = 0;
  for (;;) {
    EBB_TRY_ASSIGN(ChildProcess child, start(demo, yours));
    std::fprintf(stderr, "\n  kill it from another terminal, any time:  kill -9 %llu\n\n",
                 static_cast<unsigned long long>(child.id()));
    EBB_TRY_ASSIGN(const ChildProcess::Exit exit, show_to_end(yours, child));
    if (exit.signal == 0 && exit.code == 0) break;
    if (exit.signal == 0) return ended_with(yours, exit);
    show(yours.name, "you killed it; going on from the store");
    ++kills;
  }
  std::fprintf(stderr, "the same without kills, all in memory, to compare:\n");
  EBB_TRY_ASSIGN(const Results plain, train_to_end(demo, quiet));
  EBB_TRY_ASSIGN(const Results mine, Results::read(demo.io, yours.json(demo)));
  EBB_TRY_ASSIGN(const std::string plain_store, plain.text("store"));
  EBB_TRY_ASSIGN(const std::string my_store, mine.text("store"));
  EBB_TRY_ASSIGN(const std::string wanted, hash_of(demo, plain_store));
  EBB_TRY_ASSIGN(const std::string got, hash_of(demo, my_store));
  if (wanted != got)
    return Error{Code::state, "killed " + std::to_string(kills) + " times: hash " + got +
                                  ", never killed: " + wanted};
  return Lines{{"killed " + std::to_string(kills) + " times, hash " + got.substr(0, 16) +
                    " = never killed, all in memory",
                shell({demo.program("ebb-demo"), "--you-kill"})}};
}

Result<Results> Results::read(libswap::IoQueue& io, const fs::path& file) {
  EBB_TRY_ASSIGN(const std::string text, read_text(io, file, formats::MiB));
  Results results;
  results.file_ = file.string();
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    std::string line = text.substr(begin, end - begin);
    begin = end + 1;
    const std::size_t colon = line.find("\": ");
    if (!line.starts_with("  \"") || colon == std::string::npos) continue;
    if (line.ends_with(',')) line.pop_back();
    results.values_[line.substr(3, colon - 3)] = line.substr(colon + 3);
  }
  return results;
}

Result<std::string> Results::text(const std::string& key) const {
  const auto found = values_.find(key);
  if (found == values_.end()) return Error{Code::state, file_ + ": no \"" + key + "\""};
  const std::string& value = found->second;
  return value.starts_with('"') ? value.substr(1, value.size() - 2) : value;
}

Result<double> Results::number(const std::string& key) const {
  EBB_TRY_ASSIGN(const std::string value, text(key));
  double number = 0;
  const auto parsed = std::from_chars(value.data(), value.data() + value.size(), number);
  if (parsed.ec != std::errc())
    return Error{Code::state, file_ + ": \"" + key + "\" is no number: " + value};
  return number;
}

}  // namespace ebb::demo
