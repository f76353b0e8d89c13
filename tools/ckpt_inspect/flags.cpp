#include "tools/ckpt_inspect/flags.h"

#include <array>

namespace ebb::tools::inspect {

namespace {

constexpr std::string_view kModes = "What to show (without one of these: one screen about all)";
constexpr std::string_view kFilters = "Which tensors";
constexpr std::string_view kOutput = "How";

constexpr std::array kPositionals = {
    Positional{"PATH", "a checkpoint's directory, a single file, or a swap store", "."}};

constexpr std::array kFlags = {
    flag(kModes, "-l, --tensors", "every tensor and value",
         "With --json, the document is {\"tensors\": [...], \"values\": {...}}: the logical "
         "content, the same for the same content in any format."),
    flag(kModes, "--digest", "with --tensors: sha256 of each whole tensor",
         "Row-major, little-endian, whatever the partition: equal content has equal digests in "
         "every format and at every number of ranks."),
    flag(kModes, "-s, --shards", "every stored piece: rank, rows, file, bytes"),
    flag(kModes, "-g, --groups", "parameter groups with all their settings"),
    flag(
        kModes, "--verify", "prove coverage, read all, check checksums",
        "Damaged bytes are named by tensor, file and offset; goes on after a problem and ends with "
        "exit code 1. What the index alone shows (a hole, an overlap, a missing rank) is exit code "
        "3 in every mode."),
    flag(kModes, "--stats", "smallest, largest, mean, norm, zeros, NaN",
         "Reads every element once, a few MiB at a time. NaN and infinities are counted and left "
         "out of the rest; of complex numbers, real and imaginary parts count one by one."),
    flag(kModes, "--picture FILE.html", "with --stats: draw norms by layer and state"),
    flag(kModes, "-d, --diff OTHER", "compare with another checkpoint, in any format",
         "Tensors are matched by parameter and state and compared bit for bit, across formats and "
         "numbers of ranks; so are step, settings and values. Exit code 1 when they differ."),
    flag(kModes, "--explain-resume W", "can the framework resume it on W ranks",
         "If not, says why and which ckpt-convert command makes it possible, and the exit "
         "code is 1.")
        .as(FlagType::count),
    flag(kModes, "--raw", "what the files hold, not interpreted",
         "Zip entries, pickles as an inert tree, headers, each with its offset; also of damaged "
         "checkpoints. -k picks files by name, --limit the lines of each file."),
    flag(kModes, "--map FILE.html", "draw who holds what into one HTML file"),
    flag(kFilters, "--model KEY", "the model in a state dict (dcp, torch); repeatable", kModelKey)
        .many(),
    flag(kFilters, "--optimizer KEY", "an optimizer in a state dict; repeatable").many(),
    flag(kFilters, "-k, --key GLOB", "tensors whose name or key matches; repeatable",
         "'*' stands for any run of characters, '?' for one. Quote it.")
        .many(),
    flag(kFilters, "--state NAME", "param, master, momentum_buffer, ...; repeatable").many(),
    flag(kFilters, "-r, --rank R", "only what this rank wrote").as(FlagType::count),
    flag(kOutput, "--json", "for programs: one JSON document"),
    quiet_flag(kOutput),
    flag(kOutput, "-n, --limit N", "at most N lines of a list").as(FlagType::count),
};

constexpr std::array kExamples = {
    Example{"ckpt-inspect ckpt/", "what is it, is it complete, who holds what"},
    Example{"ckpt-inspect ckpt/ --shards -k 'layers.0.*'", "where each piece lies"},
    Example{"ckpt-inspect ckpt/ --verify", "is every element as it was written"},
    Example{"ckpt-inspect ckpt/ --explain-resume 16", "would it load on 16 ranks, and if not?"},
    Example{"ckpt-inspect a/ --diff b/", "do two checkpoints hold the same"},
    Example{"ckpt-inspect ckpt/ --map map.html", "the same as a picture"},
};

constexpr Program kProgram = {
    "ckpt-inspect",  "reads, checks and explains a checkpoint",
    kPositionals,    kFlags,
    kExamples,       "A checkpoint is only ever read, and nothing in it is executed.",
    Formats::listed, kJudgeExits};

// Which filters say something in a mode.
struct Mode {
  std::string_view flag;
  std::string_view filters;  // names, each with a blank before and behind it
};
constexpr std::string_view kAll = " key state rank limit ";
constexpr std::array kModeTable = {
    Mode{"tensors", kAll},       Mode{"shards", kAll},       Mode{"groups", " key limit "},
    Mode{"verify", kAll},        Mode{"stats", kAll},        Mode{"diff", " key state limit "},
    Mode{"explain-resume", " "}, Mode{"raw", " key limit "}, Mode{"map", " key state rank "},
};

}  // namespace

const Program& command_line() { return kProgram; }

Result<std::string_view> mode_of(const Arguments& arguments) {
  const Mode* chosen = nullptr;
  for (const Mode& one : kModeTable) {
    if (!arguments.has(one.flag)) continue;
    if (chosen != nullptr)
      return Error{Code::usage,
                   compose("--{} and --{} cannot be shown together", chosen->flag, one.flag),
                   "run ckpt-inspect once for each"};
    chosen = &one;
  }
  if (arguments.has("digest") && !arguments.has("tensors"))
    return Error{Code::usage, "--digest is a part of --tensors", "add --tensors"};
  if (arguments.has("picture") && !arguments.has("stats"))
    return Error{Code::usage, "--picture is a picture of --stats",
                 "add --stats; --map draws who holds what"};
  if (arguments.has("picture") && arguments.has("limit"))
    return Error{Code::usage, "--limit says nothing with --picture", "leave it out"};
  if (chosen == nullptr) return std::string_view();
  for (const std::string_view name : {"key", "state", "rank", "limit"})
    if (arguments.has(name) &&
        chosen->filters.find(compose(" {} ", name)) == std::string_view::npos)
      return Error{Code::usage, compose("--{} says nothing with --{}", name, chosen->flag),
                   "leave it out"};
  return chosen->flag;
}

}  // namespace ebb::tools::inspect
