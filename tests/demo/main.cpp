#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>

#include "tests/demo/demo.h"
#include "tools/cli/run.h"

namespace ebb::demo {
namespace {

using tools::Exit;
using tools::Flag;
using tools::FlagType;

constexpr std::array kFlags = {
    Flag{.name = "quick",
         .type = FlagType::on,
         .line = "fewer steps, less state: a third of the time"},
    Flag{.name = "you-kill",
         .type = FlagType::on,
         .line = "prints a pid for you to kill, as often as you like, and goes on from the store"},
    Flag{.name = "text",
         .type = FlagType::text,
         .metavar = "FILE",
         .line = "train on this file instead of Debian's licence texts"},
    Flag{.name = "dir",
         .type = FlagType::text,
         .metavar = "DIR",
         .line = "where everything is written, emptied first (default: demo/ beside the programs)"},
};

constexpr std::array kExits = {tools::ExitLine{"0", "every claim holds"},
                               tools::ExitLine{"1", "a claim does not hold"}, tools::kUsage,
                               tools::kEnvironment, tools::kStopped};

constexpr tools::Program kProgram = {
    .name = "ebb-demo",
    .summary = "Runs Ebb's main job on this machine and checks seven claims on what it measures.",
    .positionals = {},
    .flags = kFlags,
    .examples = {},
    .closing = "Speeds are judged on a quiet machine only, and decide nothing.",
    .formats = tools::Formats::none,
    .exits = kExits,
};

struct Claim {
  const char* name;
  Result<Lines> (*check)(const Demo&, Story&);
};

constexpr std::array kClaims = {
    Claim{"it learns, in a quarter of its state's memory, killed twice", claim_loss},
    Claim{"what was predicted is measured; paging is nearly free", claim_predictions},
    Claim{"a checkpoint while training goes on", claim_export},
    Claim{"one hash, whichever way it came about", claim_one_hash},
    Claim{"the tools read, convert and verify it", claim_tools},
    Claim{"a checkpoint of DeepSpeed, explained", claim_deepspeed},
    Claim{"pictures: shard map and timeline", claim_pictures},
};

const char* word_of(Verdict verdict) {
  switch (verdict) {
    case Verdict::ok:
      return "ok        ";
    case Verdict::not_judged:
      return "not judged";
    default:
      return "FAILED    ";
  }
}

// Every line, whatever became of the others. A speed that was missed is shown and decides nothing.
Exit print_screen(tools::Console& console, const Lines& lines, double seconds) {
  std::size_t failed = 0, missed = 0, open = 0;
  console.print("\n");
  for (const Line& line : lines) {
    failed += line.verdict == Verdict::failed;
    missed += line.verdict == Verdict::missed;
    open += line.verdict == Verdict::not_judged;
    console.print(std::string(word_of(line.verdict)) + " " + line.what + "\n");
    if (!line.command.empty()) console.print("             $ " + line.command + "\n");
  }
  std::string end = failed == 0 ? "every claim holds" : std::to_string(failed) + " FAILED";
  if (missed != 0) end += "; speeds promised and missed: " + std::to_string(missed);
  if (open != 0) end += "; speeds not judged on this busy machine: " + std::to_string(open);
  std::array<char, 64> took{};
  std::snprintf(took.data(), took.size(), "; %.0f seconds\n", seconds);
  console.print(end + took.data());
  return failed == 0 ? Exit::success : Exit::different;
}

// A folder of ours: made, or emptied of what an earlier demo left in it.
Result<> prepare(const fs::path& directory) {
  constexpr std::string_view kMark = "made-by-ebb-demo";
  std::error_code failed;
  if (fs::exists(directory, failed) && !fs::is_empty(directory, failed) &&
      !fs::exists(directory / kMark, failed))
    return Error{Code::usage,
                 directory.string() + ": has files that are not this demo's; it would be emptied",
                 "give an empty or new folder with --dir"};
  fs::remove_all(directory, failed);
  fs::create_directories(directory / kMark, failed);
  if (failed) return Error{Code::io, directory.string() + ": " + failed.message(), "use --dir DIR"};
  return {};
}

Result<Exit> check_claims(tools::Console& console, const Demo& demo) {
  const auto begin = std::chrono::steady_clock::now();
  Story story;
  Lines lines;
  std::size_t number = 0;
  for (const Claim& claim : kClaims) {
    const std::string heading =
        std::to_string(++number) + " of " + std::to_string(kClaims.size()) + "  " + claim.name;
    std::fprintf(stderr, "\n== %s ==\n", heading.c_str());
    auto held = claim.check(demo, story);
    if (held) {
      lines.insert(lines.end(), held->begin(), held->end());
      continue;
    }
    if (held.error().code == Code::cancelled) return std::move(held).error();
    lines.push_back({std::to_string(number) + " " + claim.name + ": " + held.error().message,
                     {},
                     Verdict::failed});
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  return print_screen(console, lines, took.count());
}

Result<Exit> work(tools::Console& console, const tools::Arguments& arguments) {
  EBB_TRY_ASSIGN(const fs::path programs, libswap::program_directory());
  EBB_TRY_ASSIGN(auto backend, libswap::open_backend(libswap::BackendChoice::threads));
  EBB_TRY_ASSIGN(const auto io, libswap::IoQueue::start(std::move(backend.backend), {}));
  std::error_code ignored;
  const fs::path beside = programs.parent_path() / "demo";
  const fs::path wanted = arguments.text("dir").value_or(beside.string());
  Demo demo{.directory = fs::proximate(wanted, ignored),
            .programs = fs::proximate(programs, ignored),
            .fixtures = EBB_DEMO_FIXTURES,
            .text = arguments.text("text"),
            .scale = {},
            .io = *io};
  if (arguments.has("quick"))
    demo.scale = {
        .steps = 60, .pair_rounds = 2, .pair_steps = 8, .swept_bytes = 256 * formats::MiB};
  EBB_TRY(prepare(demo.directory));
  tools::catch_stop_signals();
  if (!arguments.has("you-kill")) return check_claims(console, demo);
  EBB_TRY_ASSIGN(const Lines lines, let_user_kill(demo));
  for (const Line& line : lines) console.print(line.what + "  $ " + line.command + "\n");
  return Exit::success;
}

}  // namespace
int program_main(int argc, char** argv) { return tools::run_program(kProgram, argc, argv, work); }

}  // namespace ebb::demo

int main(int argc, char** argv) { return ebb::demo::program_main(argc, argv); }
