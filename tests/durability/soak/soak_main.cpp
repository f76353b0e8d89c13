// ebb-soak: kills a training at random moments and starts it again as something else, until it was
// killed as often as asked; what comes out must be the bits of a run that nothing happened to.
#include <sys/prctl.h>

#include <array>
#include <cstdio>
#include <random>

#include "ebb/libswap/sys/process.h"
#include "tests/durability/soak/run.h"
#include "tools/cli/json.h"
#include "tools/cli/result_file.h"
#include "tools/cli/run.h"

namespace ebb::soak {
namespace {

namespace fs = std::filesystem;
using tools::Exit;
using tools::Flag;
using tools::FlagType;

constexpr std::array kPositionals = {
    tools::Positional{.metavar = "KILLS", .line = "how often a training is killed"}};
constexpr std::array kFlags = {
    Flag{.name = "seed",
         .type = FlagType::count,
         .metavar = "N",
         .line = "draws the same starts again; moments differ (default: a new one)"},
    Flag{.name = "dir",
         .type = FlagType::text,
         .metavar = "DIR",
         .line = "where it trains (default: soak/ beside the folder of programs)"},
    Flag{.name = "json", .type = FlagType::text, .metavar = "FILE", .line = "the figures, too"},
};

constexpr tools::Program kProgram = {
    .name = "ebb-soak",
    .summary =
        "SIGKILLs a training of several ranks at random moments, starts it again on other "
        "ranks, budgets and tiles, and compares its bits.",
    .positionals = kPositionals,
    .flags = kFlags,
    .examples = {},
    .closing =
        "One line of JSON: kills; runs, of several kills each, and how many ended with the "
        "bits of one that nothing happened to; starts that were refused, or hung; kills by "
        "the phase they hit, and those behind a generation newer than their start's. Exit "
        "code 1 unless all runs are identical and nothing was refused or hung.",
    .formats = tools::Formats::none,
    .exits = tools::kPlainExits,
};

std::string json_of(const Figures& figures, std::uint64_t seed) {
  tools::JsonWriter json;
  json.open_object();
  json.put("kills", figures.kills)
      .put("runs", figures.runs)
      .put("identical", figures.identical)
      .put("refused", figures.refused)
      .put("hung", figures.hung)
      .put("seed", seed)
      .put("starts", figures.starts)
      .put("behind_newer_generation", figures.newer)
      .put("of_one_rank", figures.of_one_rank);
  json.key("phases").open_object();
  for (std::size_t i = 0; i < kPhases; ++i) json.put(kPhaseNames[i], figures.by_phase[i]);
  json.close_object();
  json.close_object();
  return json.take();
}

Result<Exit> soak(tools::Console& console, const tools::Arguments& arguments) {
  const auto kills = tools::parse_count(arguments.positional(0));
  if (!kills) return Error{Code::usage, "KILLS is a number: " + arguments.positional(0)};
  const std::uint64_t seed = arguments.count("seed").value_or(std::random_device()());
  EBB_TRY_ASSIGN(const fs::path programs, libswap::program_directory());
  const fs::path base =
      fs::path(arguments.text("dir").value_or((programs.parent_path() / "soak").string())) /
      compose("{}-{}", seed, libswap::process_id());
  const auto json_file = arguments.text("json");
  const tools::ResultFile file{"--json", json_file.value_or(""), "soak's figures", "{\"kills\":"};
  if (json_file) EBB_TRY(tools::check_replaceable(file));
  fs::create_directories(base);
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);

  const auto reference = make_reference();
  train_undisturbed(base / "undisturbed", *reference);
  test::Draws draws(seed);
  Figures figures;
  std::array<double, kPhases> seconds_in = {0.04, 0.04, 0.003, 0.01, 0.02};
  while (figures.kills < *kills) {
    const std::uint64_t bad = figures.runs - figures.identical;
    if (bad > 20) break;  // it is clear by now
    Run run(base / compose("run-{}", figures.runs), *reference, draws, seconds_in, figures);
    run.run(std::min(draws.between(3, 10), *kills - figures.kills));
  }
  std::error_code ignored;
  fs::remove_all(base / "undisturbed", ignored);
  fs::remove(base, ignored);  // not what went wrong
  const std::string json = json_of(figures, seed);
  console.print(json);
  if (json_file) EBB_TRY(tools::write_result(file, json));
  const bool good = figures.identical == figures.runs && figures.refused + figures.hung == 0;
  return good ? Exit::success : Exit::different;
}

}  // namespace
}  // namespace ebb::soak

int main(int argc, char** argv) {
  return ebb::tools::run_program(ebb::soak::kProgram, argc, argv, ebb::soak::soak);
}
