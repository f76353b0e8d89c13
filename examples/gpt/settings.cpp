#include "examples/gpt/settings.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "ebb/formats/registry.h"
#include "examples/gpt/batches.h"
#include "examples/gpt/muon.h"
#include "tools/cli/paths.h"
#include "tools/cli/text.h"

namespace ebb::gpt {
namespace {

using tools::Flag;
using tools::FlagType;

constexpr std::array kFlags = {
    Flag{.name = "swap",
         .type = FlagType::text,
         .metavar = "DIR...",
         .group = "state",
         .line = "where optimizer state lives; a store found there is resumed (required)",
         .more = "Several directories are shared out to the ranks in turn, as many as there are "
                 "disks. A run on other ranks names all directories of the one before.",
         .repeat = tools::Repeat::list},
    Flag{.name = "swap-weights",
         .type = FlagType::text,
         .metavar = "W...",
         .group = "state",
         .line = "how fast the directories are beside each other: as many ranks page to each",
         .repeat = tools::Repeat::list},
    Flag{.name = "budget",
         .type = FlagType::text,
         .metavar = "SIZE",
         .default_value = "quarter",
         .group = "state",
         .line = "memory for state, all ranks together: quarter, all, or a size"},
    Flag{.name = "tile",
         .type = FlagType::size,
         .metavar = "SIZE",
         .default_value = "64KiB",
         .group = "state",
         .line = "unit of paging, a multiple of 4 KiB"},
    Flag{.name = "io-block",
         .type = FlagType::size,
         .metavar = "SIZE",
         .default_value = "4MiB",
         .group = "state",
         .line = "largest operation of the disk, up to 16 MiB; swap-bench says which"},
    Flag{.name = "io-in-flight",
         .type = FlagType::size,
         .metavar = "SIZE",
         .default_value = "32MiB",
         .group = "state",
         .line = "bytes of them under way at a time, read and written each"},
    Flag{.name = "momentum",
         .type = FlagType::text,
         .metavar = "DTYPE",
         .default_value = "fp32",
         .group = "state",
         .line = "Muon's momentum is kept as fp32, bf16 or int8; a run may go on with another"},
    Flag{.name = "bf16",
         .type = FlagType::text,
         .metavar = "HOW",
         .default_value = "auto",
         .group = "state",
         .line = "how precision=bf16 is multiplied: auto, real or emulated; bits depend on it"},
    Flag{.name = "placement",
         .type = FlagType::text,
         .metavar = "WHERE",
         .default_value = "owner",
         .group = "state",
         .line = "Muon's state: whole at each matrix' owner, or on every rank's shard"},
    Flag{.name = "stream-above",
         .type = FlagType::size,
         .metavar = "SIZE",
         .group = "state",
         .line = "matrices in Gram form whose update is larger are never whole in memory"},
    Flag{.name = "snapshot-every",
         .type = FlagType::count,
         .metavar = "K",
         .default_value = "10",
         .group = "state",
         .line = "steps from one snapshot to the next"},
    Flag{.name = "resume-from",
         .type = FlagType::text,
         .metavar = "CHECKPOINT",
         .group = "state",
         .line = "start from this checkpoint, any readable format, when DIR has no store"},
    Flag{.name = "allow-dropped",
         .type = FlagType::on,
         .group = "state",
         .line = "go on without the state of parameters that this model does not have"},
    Flag{.name = "text",
         .type = FlagType::text,
         .metavar = "FILE",
         .group = "training",
         .line = "train on this file (default: the licence texts every Debian has)"},
    Flag{.name = "seed",
         .type = FlagType::count,
         .metavar = "N",
         .default_value = "7",
         .group = "training",
         .line = "which sequences are drawn; a run that goes on keeps its own"},
    Flag{.name = "optimizer",
         .type = FlagType::text,
         .metavar = "NAME",
         .default_value = "muon",
         .group = "training",
         .line = "of the blocks' matrices: muon or adamw; all else is AdamW's"},
    Flag{.name = "preset",
         .type = FlagType::text,
         .metavar = "NAME",
         .group = "training",
         .line = "Muon as a framework means it (default: Keller Jordan's in fp32)"},
    Flag{.name = "lr",
         .type = FlagType::text,
         .metavar = "X",
         .group = "training",
         .line = "the matrices' learning rate at its highest (default: the preset's)"},
    Flag{.name = "set",
         .type = FlagType::text,
         .metavar = "NAME=VALUE",
         .group = "training",
         .line = "another setting of the matrices: weight_decay=0.1, precision=fp32",
         .repeat = tools::Repeat::many},
    Flag{.name = "list-presets",
         .type = FlagType::on,
         .group = "training",
         .line = "show what each preset sets, and whose it is; nothing is trained"},
    Flag{.name = "loss-scale",
         .type = FlagType::count,
         .metavar = "BITS",
         .default_value = "16",
         .group = "training",
         .line = "losses begin times 2^BITS; a run that goes on keeps its own"},
    Flag{.name = "layers",
         .type = FlagType::count,
         .metavar = "N",
         .default_value = "4",
         .group = "training",
         .line = "blocks of the model; a run may go on with more or fewer"},
    Flag{.name = "width",
         .type = FlagType::count,
         .metavar = "N",
         .default_value = "128",
         .group = "training",
         .line = "of the model, a multiple of 8; its MLPs have four times as many"},
    Flag{.name = "sequence",
         .type = FlagType::count,
         .metavar = "N",
         .default_value = "256",
         .group = "training",
         .line = "bytes that the model sees at once"},
    Flag{.name = "freeze",
         .type = FlagType::text,
         .metavar = "PATTERN",
         .group = "training",
         .line = "keep parameters of such names as they are: blocks.0.*",
         .repeat = tools::Repeat::many},
    Flag{.name = "ranks",
         .type = FlagType::count,
         .metavar = "N",
         .default_value = "4",
         .group = "training",
         .line = "data-parallel ranks, threads of this process"},
    Flag{.name = "peer-limit",
         .type = FlagType::count,
         .metavar = "SECONDS",
         .default_value = "1800",
         .group = "training",
         .line = "how long ranks wait for one that does not answer"},
    Flag{.name = "steps",
         .type = FlagType::count,
         .metavar = "N",
         .default_value = "150",
         .group = "training",
         .line = "train until this step"},
    Flag{.name = "decay-end",
         .type = FlagType::count,
         .metavar = "STEP",
         .default_value = "150",
         .group = "training",
         .line = "rates fall from two fifths of this step on, to a twentieth at it"},
    Flag{.name = "export",
         .type = FlagType::text,
         .metavar = "FORMAT:DIR",
         .group = "output",
         .line = "write the snapshot of one step as this format, behind training"},
    Flag{.name = "export-at",
         .type = FlagType::count,
         .metavar = "STEP",
         .group = "output",
         .line = "the step to export (default: half of --steps)"},
    Flag{.name = "trace",
         .type = FlagType::text,
         .metavar = "FILE",
         .group = "output",
         .line = "step timeline as Chrome trace JSON"},
    Flag{.name = "stats",
         .type = FlagType::text,
         .metavar = "FILE",
         .group = "output",
         .line = "counters while it runs: JSON Lines, or Prometheus text in FILE.prom"},
    Flag{.name = "json",
         .type = FlagType::text,
         .metavar = "FILE",
         .group = "output",
         .line = "results for programs"},
    Flag{.name = "quiet",
         .type = FlagType::on,
         .group = "output",
         .line = "progress only: no plan before, no results after"},
    Flag{.name = "print-pid",
         .type = FlagType::on,
         .group = "output",
         .line = "say which process to kill"},
};

constexpr std::array kExamples = {
    tools::Example{"gpt-train --swap state", "train, or go on where it was killed"},
    tools::Example{"gpt-train --swap state --preset moonlight --lr 2e-3",
                   "Muon as Moonlight means it, at another rate"},
    tools::Example{"gpt-train --swap state --ranks 3 --budget all",
                   "go on with other ranks and more memory; the result has the same bits"},
};

constexpr tools::ExitLine kInterrupted = {"130", "stopped by Ctrl-C, with a snapshot"};
constexpr std::array kExits = {tools::kSuccess,     tools::kUsage,       tools::kUnsafe,
                               tools::kUnsupported, tools::kEnvironment, kInterrupted};

constexpr tools::Program kProgram = {
    .name = "gpt-train",
    .summary = "Trains a small GPT with Muon, its optimizer state paged from a directory.",
    .positionals = {},
    .flags = kFlags,
    .examples = kExamples,
    .closing =
        "Ctrl-C stops after the step, with a snapshot; the same command goes on. So do SIGTERM "
        "and SIGUSR1, which schedulers send before they take the machine: exit code 0.",
    .exits = kExits,
};

constexpr std::uint64_t kMostLayers = 1000, kMostWidth = 8192, kMostSequence = 8192;
constexpr std::uint64_t kMostPeerLimit = 7 * 24 * 3600;

Error usage(std::string message) { return {Code::usage, std::move(message), "gpt-train -h"}; }

Result<Budget> budget_from(const std::string& text) {
  if (text == "all") return Budget{Budget::Kind::all, 0};
  if (text == "quarter") return Budget{Budget::Kind::quarter, 0};
  const auto bytes = tools::parse_size(text);
  if (!bytes || *bytes == 0)
    return usage("--budget " + text + ": not a size such as 2MiB, nor quarter, nor all");
  return Budget{Budget::Kind::bytes, *bytes};
}

Result<DType> momentum_from(const std::string& text) {
  if (text == "fp32") return DType::f32;
  if (text == "bf16") return DType::bf16;
  if (text == "int8") return DType::i8;
  return usage("--momentum " + text + ": wanted fp32, bf16 or int8");
}

Result<std::optional<libmuon::Bf16>> bf16_from(const std::string& text) {
  using libmuon::Bf16;
  if (text == "auto") return std::optional<Bf16>();
  if (text == "real") return std::optional(Bf16::real);
  if (text == "emulated") return std::optional(Bf16::emulated);
  return usage("--bf16 " + text + ": wanted auto, real or emulated");
}

Result<libmuon::Placement> placement_from(const std::string& text) {
  for (const auto placement : {libmuon::Placement::owner, libmuon::Placement::shard})
    if (text == name_of(placement)) return placement;
  return usage("--placement " + text + ": wanted owner or shard");
}

Result<ExportRequest> export_from(const std::string& text, std::uint64_t step) {
  const std::size_t colon = text.find(':');
  if (colon == std::string::npos || colon + 1 == text.size())
    return usage("--export " + text + ": wanted FORMAT:DIR, as in dcp:checkpoint");
  ExportRequest wanted{text.substr(0, colon), text.substr(colon + 1), step};
  if (formats::format_named(wanted.format) == nullptr)
    return usage(compose("--export {}: no format '{}' that can be written", text, wanted.format));
  return wanted;
}

Result<Config> model_from(const tools::Arguments& arguments) {
  Config model;
  const auto size = [&](std::string_view name, std::uint64_t most,
                        std::uint32_t& value) -> Result<> {
    const std::uint64_t asked = arguments.count(name).value_or(value);
    if (asked == 0 || asked > most)
      return usage(compose("--{} {}: wanted 1 to {}", name, asked, most));
    value = static_cast<std::uint32_t>(asked);
    return {};
  };
  EBB_TRY(size("layers", kMostLayers, model.layers));
  EBB_TRY(size("width", kMostWidth, model.width));
  EBB_TRY(size("sequence", kMostSequence, model.sequence));
  if (model.width % (2 * model.heads) != 0)
    return usage(compose("--width {}: not a multiple of {}", model.width, 2 * model.heads));
  model.hidden = 4 * model.width;
  return model;
}

Result<SwapPaths> swap_from(const tools::Arguments& arguments) {
  SwapPaths swap;
  for (const std::string& directory : arguments.texts("swap")) {
    const auto path = tools::trimmed(directory);
    if (std::ranges::find(swap.directories, path) != swap.directories.end())
      return usage(compose("--swap {}: named twice", directory));
    swap.directories.push_back(path);
  }
  for (const std::string& text : arguments.texts("swap-weights")) {
    double weight = 0;
    const auto end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, weight);
    if (error != std::errc() || stop != end || !std::isfinite(weight) || !(weight > 0))
      return usage(compose("--swap-weights {}: wanted a number above zero", text));
    swap.weights.push_back(weight);
  }
  if (!swap.weights.empty() && swap.weights.size() != swap.directories.size())
    return usage(compose("--swap names {} directories, --swap-weights {}", swap.directories.size(),
                         swap.weights.size()));
  return swap;
}

// As swap-bench advises.
Result<libswap::IoQueue::Options> io_from(const tools::Arguments& arguments) {
  constexpr std::uint64_t kUnit = 4096, kMost = 16u << 20;
  libswap::IoQueue::Options io;
  const std::uint64_t block = arguments.size("io-block").value_or(io.chunk_bytes);
  if (block == 0 || block > kMost || block % kUnit != 0)
    return usage(compose("--io-block {}: wanted a multiple of 4 KiB up to 16 MiB",
                         tools::bytes_text(block)));
  const std::uint64_t window = arguments.size("io-in-flight").value_or(io.read_bytes_in_flight);
  if (window < block)
    return usage(compose("--io-in-flight {} is less than one operation, --io-block {}",
                         tools::bytes_text(window), tools::bytes_text(block)));
  io.chunk_bytes = static_cast<std::uint32_t>(block);
  io.read_bytes_in_flight = io.write_bytes_in_flight = window;
  return io;
}

}  // namespace

const tools::Program& train_program() { return kProgram; }

Result<Settings> settings_from(const tools::Arguments& arguments,
                               std::optional<std::uint32_t> world) {
  Settings settings;
  if (!arguments.has("swap")) return usage("--swap DIR is missing: where state is to live");
  EBB_TRY_ASSIGN(settings.swap, swap_from(arguments));
  const std::uint64_t ranks = arguments.count("ranks").value_or(world.value_or(settings.ranks));
  EBB_TRY(check_ranks(ranks));
  if (world && ranks != *world)
    return usage(compose("--ranks {}: there are {} processes, each is a rank", ranks, *world));
  settings.ranks = static_cast<std::uint32_t>(ranks);
  const std::uint64_t limit = arguments.count("peer-limit").value_or(1800);
  if (limit == 0 || limit > kMostPeerLimit)
    return usage(compose("--peer-limit {}: wanted 1 to {} seconds", limit, kMostPeerLimit));
  settings.peer_limit = std::chrono::seconds(limit);
  settings.steps = arguments.count("steps").value_or(settings.steps);
  EBB_TRY_ASSIGN(settings.model, model_from(arguments));
  settings.freeze = arguments.texts("freeze");
  settings.begin.seed = arguments.count("seed").value_or(settings.begin.seed);
  const std::uint64_t bits = arguments.count("loss-scale").value_or(settings.begin.loss_scale.bits);
  if (bits > LossScale::kMostBits)
    return usage(compose("--loss-scale {}: 2^{} is the most", bits, LossScale::kMostBits));
  settings.begin.loss_scale.bits = static_cast<std::uint32_t>(bits);
  EBB_TRY_ASSIGN(settings.budget, budget_from(arguments.text("budget").value_or("quarter")));
  settings.tile_bytes = arguments.size("tile").value_or(settings.tile_bytes);
  EBB_TRY_ASSIGN(settings.io, io_from(arguments));
  EBB_TRY_ASSIGN(settings.bf16, bf16_from(arguments.text("bf16").value_or("auto")));
  EBB_TRY_ASSIGN(settings.momentum, momentum_from(arguments.text("momentum").value_or("fp32")));
  EBB_TRY_ASSIGN(settings.placement, placement_from(arguments.text("placement").value_or("owner")));
  settings.stream_above_bytes =
      arguments.size("stream-above").value_or(settings.stream_above_bytes);
  EBB_TRY_ASSIGN(settings.matrices, matrices_from(arguments));
  settings.decay_end = arguments.count("decay-end").value_or(settings.decay_end);
  if (settings.decay_end == 0) return usage("--decay-end 0: wanted at least 1");
  settings.snapshot_every = arguments.count("snapshot-every").value_or(settings.snapshot_every);
  if (settings.snapshot_every == 0) return usage("--snapshot-every 0: wanted at least 1");
  const std::uint64_t export_step = arguments.count("export-at").value_or(settings.steps / 2);
  if (export_step > settings.steps)
    return usage(compose("--export-at {}: training ends at step {}", export_step, settings.steps));
  if (const auto text = arguments.text("export")) {
    EBB_TRY_ASSIGN(settings.exported, export_from(*text, export_step));
  }
  settings.text = arguments.text("text");
  settings.resume_from = arguments.text("resume-from");
  if (arguments.has("allow-dropped")) settings.dropped = libmuon::DroppedState::allowed;
  settings.trace = arguments.text("trace");
  settings.stats = arguments.text("stats");
  settings.json = arguments.text("json");
  if (arguments.has("quiet")) settings.texts = Report::off;
  if (arguments.has("print-pid")) settings.print_pid = Report::on;
  if (settings.exported && settings.swap.directories.size() > 1) {
    Error error = usage("--export reads one directory, --swap names several");
    error.hint = "gpt-train --ranks 1 --swap NEW DIR... brings what lies in all of them into NEW";
    return error;
  }
  return settings;
}

}  // namespace ebb::gpt
