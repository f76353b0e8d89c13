// swap-bench: what a directory's disk gives to paged optimizer state, which settings to use there,
// and how long a step will take.
#include <array>

#include "ebb/formats/core/json_text.h"
#include "ebb/formats/core/units.h"
#include "tools/cli/mains.h"
#include "tools/cli/run.h"
#include "tools/cli/text.h"
#include "tools/swap_bench/picture.h"
#include "tools/swap_bench/report.h"

namespace ebb {

namespace tools::swap_bench {
namespace {

constexpr std::uint64_t kMostSeconds = 3600;

constexpr std::array kPositionals = {
    Positional{"DIR", "where state would be paged to; a directory that is there"}};

constexpr std::string_view kStep = "How long a step takes";
constexpr std::string_view kHow = "How";

constexpr std::array kFlags = {
    flag(kStep, "--state SIZE", "on SIZE of optimizer state").as(FlagType::size),
    flag(kStep, "--model CKPT", "on the state of the model in a checkpoint of any format",
         "8 bytes for each element of a matrix (Muon: fp32 master, momentum) and 12 for all others "
         "(AdamW: master, two moments)."),
    flag(kStep, "--resident SIZE", "when so much of the state stays in memory").as(FlagType::size),
    flag(kHow, "--size SIZE", "the test file, at most; shorter where the disk is slow",
         "At least 32 MiB. It has no name: nothing is left in DIR, however swap-bench ends.")
        .as(FlagType::size)
        .or_else("1GiB"),
    flag(kHow, "--seconds N", "in all; at most a quarter of it writes the test file",
         "Each setting is measured once in any case: a slow disk may take longer for that, and "
         "swap-bench says how long.")
        .as(FlagType::count)
        .or_else("20"),
    flag(kHow, "--picture FILE.html", "and draw the rates, and where a step lies"),
    flag(kHow, "--json", "for programs: one JSON document"),
};

constexpr std::array kExamples = {
    Example{"swap-bench /mnt/nvme", "rates, and settings to use"},
    Example{"swap-bench /mnt/nvme --state 64GiB", "and the time of a step on so much state"},
    Example{"swap-bench /mnt/nvme --model ckpt/ --json", "of a model, for programs"},
};

constexpr Program kProgram = {
    "swap-bench",
    "measures what a directory's disk gives to paged optimizer state",
    kPositionals,
    kFlags,
    kExamples,
    "Settings take turns, seven times where the time suffices. 4 MiB x 8, what the engine does "
    "unasked, stays the advice unless another setting was faster in its slowest turn than that in "
    "its fastest. With O_DIRECT no page cache flatters a figure, but a virtual machine's host or a "
    "RAID controller may still hold the test file: a larger --size says.",
    tools::Formats::none,
    tools::kPlainExits};

// "--state 64" would be 64 bytes.
Result<std::optional<std::uint64_t>> size_of_state(const Arguments& arguments,
                                                   std::string_view flag) {
  constexpr std::uint64_t kLeast = formats::MiB;
  const auto bytes = arguments.size(flag);
  if (!bytes || *bytes >= kLeast || *bytes == 0) return bytes;
  const std::string given = arguments.text(flag).value_or("");
  return Error{Code::usage, compose("--{} {} is less than 1 MiB", flag, given),
               compose("say a unit: --{} {}GiB", flag,
                       given.substr(0, given.find_first_not_of("0123456789.")))};
}

Result<SweepOptions> sweep_options_of(const Arguments& arguments) {
  SweepOptions options{.directory = arguments.positional(0)};
  const std::uint64_t size = arguments.size("size").value_or(options.file_bytes);
  if (size < kLeastFile)
    return Error{Code::usage, compose("--size takes {} or more, not {}", bytes_text(kLeastFile),
                                      bytes_text(size))};
  options.file_bytes = size - size % kLeastFile;
  const std::uint64_t seconds = arguments.count("seconds").value_or(20);
  if (seconds == 0 || seconds > kMostSeconds)
    return Error{Code::usage, compose("--seconds takes 1 to {}, not {}", kMostSeconds, seconds)};
  options.seconds = static_cast<double>(seconds);
  return options;
}

Result<std::optional<State>> state_of(const Arguments& arguments) {
  EBB_TRY_ASSIGN(const auto bytes, size_of_state(arguments, "state"));
  EBB_TRY_ASSIGN(const auto resident, size_of_state(arguments, "resident"));
  const auto model = arguments.text("model");
  if (bytes && model)
    return Error{Code::usage, "--state and --model both say how large the state is",
                 "give one of them"};
  if (!bytes && !model) {
    if (resident)
      return Error{Code::usage, "--resident says nothing without the state it is a part of",
                   "give --state or --model, too"};
    return std::optional<State>();
  }
  State state{.bytes = bytes.value_or(0)};
  if (model) {
    EBB_TRY_ASSIGN(state, state_of_model(*model));
  }
  state.resident_bytes = std::min(resident.value_or(0), state.bytes);
  return std::optional(state);
}

Result<Exit> work(Console& console, const Arguments& arguments) {
  catch_stop_signals();
  EBB_TRY_ASSIGN(const SweepOptions options, sweep_options_of(arguments));
  EBB_TRY_ASSIGN(const std::optional<State> state, state_of(arguments));
  const auto picture_file = arguments.text("picture");
  if (picture_file) EBB_TRY(check_picture(*picture_file));
  StatusLine status(console);
  const Result<Sweep> sweep = run_sweep(options, status);
  if (!sweep) return sweep.error();
  std::optional<Step> step;
  if (state) step = step_of(*state, advice_of(*sweep).use.rates);
  const std::string& directory = arguments.positional(0);
  std::optional<PictureWritten> picture;
  if (picture_file) {
    EBB_TRY_ASSIGN(picture, write_picture(*picture_file, directory, *sweep, step));
  }
  const bool as_json = arguments.has("json");
  console.print(as_json ? report_json(directory, *sweep, step, picture)
                        : report_text(directory, *sweep, step) + text_of(picture));
  return Exit::success;
}

}  // namespace
}  // namespace tools::swap_bench

int tools::swap_bench_main(int argc, char** argv) {
  return tools::run_program(tools::swap_bench::kProgram, argc, argv, tools::swap_bench::work);
}

}  // namespace ebb
