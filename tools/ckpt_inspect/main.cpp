// ckpt-inspect: reads, checks and explains any checkpoint this version knows. It never executes
// anything from a checkpoint and never writes into one.
#include <array>

#include "formats/registry.h"
#include "libswap/sys/file_tree.h"
#include "tools/ckpt_inspect/modes.h"
#include "tools/cli/run.h"

namespace tools::inspect {
namespace {

using formats::Code;
using formats::Error;
using formats::Result;

constexpr std::array kPositionals = {
    Positional{"PATH", "a checkpoint's directory, a single file, or a swap store"}};

constexpr std::string_view kModes = "What to show (without one of these: one screen about all)";
constexpr std::string_view kFilters = "Which tensors";
constexpr std::string_view kOutput = "How";

constexpr std::array kFlags = {
    Flag{"tensors",
         'l',
         FlagType::on,
         {},
         {},
         kModes,
         {},
         "every tensor and value",
         "With --json, the document is {\"tensors\": [...], \"values\": {...}}: the logical "
         "content, "
         "the same for the same content in any format.",
         Repeat::once},
    Flag{"digest",
         '\0',
         FlagType::on,
         {},
         {},
         kModes,
         {},
         "with --tensors: sha256 of each whole tensor",
         "Row-major, little-endian, whatever the partition: equal content has equal digests in "
         "every format and at every number of ranks.",
         Repeat::once},
    Flag{"shards",
         's',
         FlagType::on,
         {},
         {},
         kModes,
         {},
         "every stored piece: rank, rows, file, bytes",
         {},
         Repeat::once},
    Flag{"groups",
         'g',
         FlagType::on,
         {},
         {},
         kModes,
         {},
         "parameter groups with all their settings",
         {},
         Repeat::once},
    Flag{"verify",
         '\0',
         FlagType::on,
         {},
         {},
         kModes,
         {},
         "prove coverage, read all, check checksums",
         "Holes, overlaps and damaged bytes are named by tensor, file and offset. Goes on after a "
         "problem. Exit code 1 when there is one.",
         Repeat::once},
    Flag{"diff",
         'd',
         FlagType::text,
         "OTHER",
         {},
         kModes,
         {},
         "compare with another checkpoint, in any format",
         "Tensors are matched by parameter and state and compared bit for bit, across formats and "
         "numbers of ranks. Exit code 1 when they differ.",
         Repeat::once},
    Flag{"map",
         '\0',
         FlagType::text,
         "FILE.html",
         {},
         kModes,
         {},
         "draw who holds what into one HTML file",
         {},
         Repeat::once},
    Flag{"key",
         'k',
         FlagType::text,
         "GLOB",
         {},
         kFilters,
         {},
         "tensors whose name or key matches; repeatable",
         "'*' stands for any run of characters, '?' for one. Quote it.",
         Repeat::many},
    Flag{"state",
         '\0',
         FlagType::text,
         "NAME",
         {},
         kFilters,
         {},
         "param, master, momentum_buffer, ...; repeatable",
         {},
         Repeat::many},
    Flag{"rank",
         'r',
         FlagType::count,
         "R",
         {},
         kFilters,
         {},
         "only what this rank wrote",
         {},
         Repeat::once},
    Flag{"json",
         '\0',
         FlagType::on,
         {},
         {},
         kOutput,
         {},
         "for programs: one JSON document",
         {},
         Repeat::once},
    Flag{"limit",
         'n',
         FlagType::count,
         "N",
         {},
         kOutput,
         {},
         "at most N lines of a list",
         {},
         Repeat::once},
};

constexpr std::array kExamples = {
    Example{"ckpt-inspect ckpt/", "what is it, is it complete, who holds what"},
    Example{"ckpt-inspect ckpt/ --shards -k 'layers.0.*'", "where each piece lies"},
    Example{"ckpt-inspect ckpt/ --verify", "is every byte as it was written"},
    Example{"ckpt-inspect a/ --diff b/", "do two checkpoints hold the same"},
    Example{"ckpt-inspect ckpt/ --map map.html", "the same as a picture"},
};

constexpr Program kProgram = {
    "ckpt-inspect", "reads, checks and explains a checkpoint",
    kPositionals,   kFlags,
    kExamples,      "A checkpoint is only ever read, and nothing in it is executed."};

Result<Selection> selection_of(const Arguments& arguments) {
  Selection selection;
  selection.include = arguments.texts("key");
  selection.states = arguments.texts("state");
  if (const auto rank = arguments.count("rank")) {
    if (*rank > 0xffff'ffffu)
      return Error{Code::usage, "--rank " + std::to_string(*rank) + " is no rank", {}};
    selection.rank = formats::Rank{static_cast<std::uint32_t>(*rank)};
  }
  return selection;
}

Result<std::unique_ptr<formats::Checkpoint>> open_checkpoint(const std::string& path) {
  TRY_ASSIGN(auto tree, libswap::open_tree(path));
  return formats::describe(std::move(tree));
}

Result<View> view_of(const std::string& path, const formats::Checkpoint& checkpoint,
                     const Arguments& arguments) {
  TRY_ASSIGN(Selection selection, selection_of(arguments));
  TRY_ASSIGN(auto tensors, select(checkpoint.catalog(), selection));
  const Output output = arguments.has("json") ? Output::json : Output::text;
  return View{
      path, checkpoint, std::move(tensors), std::move(selection), output, arguments.count("limit")};
}

Result<> check_modes(const Arguments& arguments) {
  std::string first;
  for (const std::string_view mode : {"tensors", "shards", "groups", "verify", "diff", "map"}) {
    if (!arguments.has(mode)) continue;
    if (!first.empty())
      return Error{Code::usage,
                   "--" + first + " and --" + std::string(mode) + " cannot be shown together",
                   "run ckpt-inspect once for each"};
    first = mode;
  }
  if (arguments.has("digest") && !arguments.has("tensors"))
    return Error{Code::usage, "--digest is a part of --tensors", "add --tensors"};
  return {};
}

Result<Exit> work(Console& console, const Arguments& arguments) {
  TRY(check_modes(arguments));
  const std::string& path = arguments.positional(0);
  TRY_ASSIGN(const auto checkpoint, open_checkpoint(path));
  TRY_ASSIGN(const View view, view_of(path, *checkpoint, arguments));
  if (arguments.has("tensors"))
    return show_tensors(console, view, arguments.has("digest") ? Digest::sha256 : Digest::none);
  if (arguments.has("shards")) return show_shards(console, view);
  if (arguments.has("groups")) return show_groups(console, view);
  if (arguments.has("verify")) return verify(console, view);
  if (const auto other_path = arguments.text("diff")) {
    TRY_ASSIGN(const auto other, open_checkpoint(*other_path));
    TRY_ASSIGN(const View other_view, view_of(*other_path, *other, arguments));
    return show_difference(console, view, other_view);
  }
  if (const auto file = arguments.text("map")) return write_map(console, view, *file);
  return show_summary(console, view);
}

}  // namespace
}  // namespace tools::inspect

int main(int argc, char** argv) {
  return tools::run_program(tools::inspect::kProgram, argc, argv, tools::inspect::work);
}
