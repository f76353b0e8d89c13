#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>

#include "examples/gpt/demo.h"
#include "tools/cli/run.h"

namespace ebb::gpt {
namespace {

using formats::Code;
using formats::Error;
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

constexpr tools::Program kProgram = {
    .name = "ebb-demo",
    .summary = "Runs Ebb's main job on this machine and checks seven claims on what it measures.",
    .positionals = {},
    .flags = kFlags,
    .examples = {},
    .closing = "Exit code 1 when a claim does not hold; it is named.",
};

struct Claim {
  const char* name;
  Result<Lines> (*check)(const Demo&, const Story&);
};

constexpr std::array kClaims = {
    Claim{"1 (it learns, within its memory)", claim_loss},
    Claim{"2 (predicted is measured; paging is nearly free)", claim_predictions},
    Claim{"3 (a checkpoint while training goes on)", claim_export},
    Claim{"4 (one hash)", claim_one_hash},
    Claim{"5 (the tools)", claim_tools},
    Claim{"6 (DeepSpeed explained)", claim_deepspeed},
    Claim{"7 (map and timeline)", claim_pictures},
};

void print_screen(tools::Console& console, const Lines& lines, double seconds) {
  console.print("\n");
  for (const Line& line : lines) console.print(line.what + "  $ " + line.command + "\n");
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "every claim holds; %.0f seconds\n", seconds);
  console.print(text.data());
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
  EBB_TRY_ASSIGN(const Story story, tell_story(demo));
  Lines lines;
  std::vector<std::string> failed;
  for (const Claim& claim : kClaims) {
    auto held = claim.check(demo, story);
    if (held) {
      lines.insert(lines.end(), held->begin(), held->end());
      continue;
    }
    if (held.error().code == Code::cancelled) return std::move(held).error();
    console.fail(std::move(held).error().within(std::string("claim ") + claim.name));
    failed.push_back(claim.name);
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  if (failed.empty()) {
    print_screen(console, lines, took.count());
    return Exit::success;
  }
  for (const std::string& name : failed) console.print("claim " + name + " does NOT hold\n");
  return Exit::different;
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
int program_main(int argc, char** argv) {
  return tools::run_program(gpt::kProgram, argc, argv, gpt::work);
}

}  // namespace ebb::gpt

int main(int argc, char** argv) { return ebb::gpt::program_main(argc, argv); }
