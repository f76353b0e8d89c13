// ckpt-convert: writes the content of any checkpoint this version reads as another format, for
// another number of ranks, bit for bit, and proves it before the result gets its name.
#include <algorithm>
#include <array>

#include "ebb/formats/core/compress.h"
#include "ebb/formats/core/json_text.h"
#include "ebb/formats/core/nearest.h"
#include "ebb/formats/core/number_text.h"
#include "ebb/formats/registry.h"
#include "ebb/libswap/sys/process.h"
#include "tools/ckpt_convert/changes.h"
#include "tools/ckpt_convert/conversion.h"
#include "tools/ckpt_convert/plan_picture.h"
#include "tools/ckpt_convert/report.h"
#include "tools/cli/mains.h"
#include "tools/cli/run.h"
#include "tools/cli/text.h"

namespace ebb {

namespace tools::convert {
namespace {

constexpr std::uint64_t kMaxWorld = 1u << 20;
constexpr std::uint64_t kMaxJobs = 256;

constexpr std::array kPositionals = {
    Positional{"SRC", "the checkpoint to read; never touched"},
    Positional{"DST", "the directory (x.safetensors, x.pt, x.h5: the file) to make; all or none"}};

constexpr std::array<std::string_view, 6> kPolicies = {"replicated", "zero12", "zero12-boundary",
                                                       "zero3",      "rows",   "layer-wise"};

constexpr std::string_view kResult = "What to write";
constexpr std::string_view kFilters = "Which tensors";
constexpr std::string_view kChanges = "What to change";
constexpr std::string_view kHow = "How";

constexpr std::array kFlags = {
    flag(kResult, "-t, --to FORMAT", "dcp, safetensors, ...: --version lists them"),
    flag(kResult, "-w, --world-size N", "ranks the result is for").as(FlagType::count).or_else("1"),
    flag(kResult, "-p, --partition P",
         "how tensors are cut over the ranks; default: as FORMAT does",
         "rows: equal numbers of rows (FSDP). zero3: equal numbers of elements of each tensor. "
         "zero12: one flat buffer cut evenly; zero12-boundary: the same, never inside a tensor. "
         "layer-wise: whole tensors, spread by size. replicated: one copy, at rank 0.")
        .one_of(kPolicies),
    flag(kResult, "--shard-size SIZE", "cut safetensors into files of at most SIZE, with an index")
        .as(FlagType::size),
    flag(kResult, "--compress CODEC", "zstd or zstd:LEVEL, 1 to 19; for dcp and hdf5",
         "Without a level, 3. As PyTorch's own extension and HDF5's registered filter write it; "
         "levels from 16 on take 100 MiB for each worker."),
    flag(kFilters, "--model KEY", "the model in a state dict (dcp, torch); repeatable", kModelKey)
        .many(),
    flag(kFilters, "--optimizer KEY", "an optimizer in a state dict; repeatable").many(),
    flag(
        kFilters, "--names WHAT", "what an optimizer's numbers are called: a FILE, or order",
        "FILE has a parameter a line, in the order in which the optimizer was given them, and an "
        "empty line behind each group. It is checked against shapes. order: as the model of a "
        "torch.save file lists its parameters, which nothing records; what a job resumes from "
        "wants one of the two. For --to transformers, where the source has names and no order: the "
        "order in which its optimizer numbers them."),
    flag(
        kFilters, "--like CHECKPOINT", "number and group parameters as that job does",
        "For --to transformers and accelerate-fsdp. The source's own settings stay, and those that "
        "it lacks are CHECKPOINT's."),
    flag(kFilters, "--weights", "the model's weights, as load_state_dict takes them",
         "Each parameter and buffer once, under its name and in its most exact copy: a master, "
         "else what the model computes with; tied ones under each name. Without --to DST's ending "
         "says the format (x.pt, x.h5), else it is safetensors; --dtype bf16 makes them smaller."),
    flag(kFilters, "-k, --include GLOB", "only tensors whose name or key matches; repeatable")
        .many(),
    flag(kFilters, "-x, --exclude GLOB", "not these; repeatable").many(),
    flag(kFilters, "--states LIST", "only these states, as in param,momentum_buffer").many(),
    flag(kChanges, "--rename RULES", "give parameters other names: OLD=NEW,... or @FILE",
         "'*' in OLD is any run of characters, and in NEW what that run was ($1, $2, ... pick "
         "one). The first rule that fits a name counts. A rule that fits nothing and names that "
         "would collide are errors. FILE has one rule a line.")
        .many(),
    flag(kChanges, "--strip PREFIX", "take PREFIX off the names, as in --strip model.",
         "Behind --rename, and behind the words of wrappers, which come off by themselves."),
    flag(kChanges, "--keep-names", "leave the words of wrappers (_orig_mod., module.) in names",
         "Without it, --weights takes them out where all parameters have them or the optimizer's "
         "names are without; other conversions do so where states and parameters have different "
         "names otherwise."),
    flag(kChanges, "--dtype RULES", "cast floating tensors: bf16, or param=bf16,exp_avg*=f32",
         "The pattern is of a state, or else of a name. A dtype alone is for everything that no "
         "pattern fits, but for step counters. Rounded to nearest, ties to even.")
        .many(),
    flag(kChanges, "--dequantize", "plain tensors in the place of quantized ones",
         "What the class's own dequantize() gives: torchao's 8-bit, 4-bit and FP8 states in F32, "
         "its Float8, Int8, Intx, MX, NVFP4 and NF4 weights in the dtype that they stand for. "
         "Classes "
         "whose formula is not known stay."),
    flag(kChanges, "--momentum FORM",
         "ema or sum: scale momentum buffers by their group's 1 - beta",
         "What a buffer is now follows from its optimizer; sum:ema says it where nothing tells. "
         "The groups note the new form."),
    flag(kHow, "-n, --dry-run", "say what would be written and stop"),
    flag(kHow, "--plan FILE.html", "and draw what stays, what moves, between which ranks"),
    flag(kHow, "-f, --force", "replace DST, once the new one is complete"),
    flag(kHow, "--drop", "go on without what FORMAT cannot hold"),
    flag(kHow, "--new-optimizer", "go on although the optimizer's states lie beside, not read"),
    flag(kHow, "-j, --jobs N", "workers that read, compute and write; default: two for each core")
        .as(FlagType::count),
    flag(kHow, "--memory SIZE", "for all workers together; fewer of them where it is short")
        .as(FlagType::size)
        .or_else("128MiB"),
    flag(kHow, "--json", "for programs: one JSON document"),
    quiet_flag(kHow),
};

constexpr std::array kExamples = {
    Example{"ckpt-convert ckpt/ out/ --to safetensors", "one file that everything can load"},
    Example{"ckpt-convert ckpt/ out/ --to dcp --world-size 2", "resume on two ranks"},
    Example{"ckpt-convert ckpt/ out/ --to dcp -n", "what would be written, and how much"},
    Example{"ckpt-convert ckpt/ out/ --to dcp -w 8 -n --plan plan.html", "as a picture"},
    Example{"ckpt-convert ckpt/ out/ --weights --dtype bf16", "the model, for load_state_dict"},
};

constexpr Program kProgram = {
    "ckpt-convert",
    "writes a checkpoint as another format or for other ranks",
    kPositionals,
    kFlags,
    kExamples,
    "Every tensor is read back and compared with the source before DST gets its name. After "
    "Ctrl-C, a kill or a crash the same command goes on from where it was: what is finished waits "
    "beside DST in a folder .DST.ebb-new-*."};

std::vector<std::string> split_list(const std::vector<std::string>& lists) {
  std::vector<std::string> out;
  for (std::string_view list : lists) {
    while (!list.empty()) {
      const std::size_t comma = std::min(list.find(','), list.size());
      if (comma != 0) out.emplace_back(list.substr(0, comma));
      list.remove_prefix(std::min(comma + 1, list.size()));
    }
  }
  return out;
}

// What people call formats that have another name here.
struct Synonym {
  std::string_view name, format;
};
constexpr std::array kSynonyms = {
    Synonym{"bin", "torch"},
    Synonym{"fsdp", "dcp"},
    Synonym{"fsdp1", "dcp"},
    Synonym{"fsdp2", "dcp"},
    Synonym{"hf", "transformers"},
    Synonym{"huggingface", "transformers"},
    Synonym{"pt", "torch"},
    Synonym{"pth", "torch"},
    Synonym{"pytorch", "torch"},
    Synonym{"torchtitan", "dcp"},
    Synonym{"trainer", "transformers"},
    Synonym{"zero", "deepspeed"},
};

// Whatever the case; or a name of which it is a part: universal is deepspeed-universal.
std::optional<std::string> format_meant(std::string name, const std::vector<std::string>& known) {
  for (char& letter : name)
    if (letter >= 'A' && letter <= 'Z') letter = static_cast<char>(letter - 'A' + 'a');
  const auto* synonym = std::ranges::find(kSynonyms, name, &Synonym::name);
  if (synonym != kSynonyms.end()) return std::string(synonym->format);
  if (auto meant = formats::nearest(name, known)) return meant;
  for (const std::string& one : known)
    if (name.size() >= 3 && one.find(name) != std::string::npos) return one;
  return std::nullopt;
}

// Of which a file is called so: x.pt is torch's. Else safetensors.
const formats::Format* format_of_weights(const std::string& path) {
  for (const formats::Format* const format : formats::written_formats())
    if (format->is_called_so(path)) return format;
  return formats::format_named("safetensors");
}

Result<const formats::Format*> target_of(const Arguments& arguments) {
  const auto name = arguments.text("to");
  std::vector<std::string> known;
  for (const formats::Format* format : formats::written_formats())
    known.emplace_back(format->name());
  const std::string list = joined(known);
  if (!name && arguments.has("weights")) return format_of_weights(arguments.positional(1));
  if (!name) return Error{Code::usage, "--to is missing: which format to write?", "one of " + list};
  const formats::Format* format = formats::format_named(*name);
  if (format != nullptr && format->traits().written == formats::Written::yes) return format;
  if (format != nullptr)
    return Error{Code::usage,
                 compose("--to {}: ckpt-convert reads {}, and does not write it", *name, *name),
                 "one of " + list};
  const auto meant = format_meant(*name, known);
  return Error{Code::usage, compose("--to takes one of {}, not '{}'", list, printable(*name)),
               meant ? "did you mean --to " + *meant + "?" : std::string()};
}

// --compress, where the format's readers decompress.
Result<formats::Compression> compression_of(std::string_view text, const formats::Format& format) {
  if (format.traits().packs == formats::Packs::nothing) {
    std::vector<std::string_view> others;
    for (const formats::Format* other : formats::written_formats())
      if (other->traits().packs != formats::Packs::nothing) others.push_back(other->name());
    return Error{Code::usage,
                 compose("--compress: readers of {} know no compressed data", format.name()),
                 "formats that take --compress: " + joined(others, " and ")};
  }
  using formats::ZstdWriter;
  constexpr std::string_view kCodec = "zstd";
  formats::Compression compression{formats::Codec::zstd, ZstdWriter::kDefaultLevel};
  if (text == kCodec) return compression;
  const auto level =
      formats::parse_number<int>(text.substr(std::min(kCodec.size() + 1, text.size())));
  if (level && text.starts_with(kCodec) && text[kCodec.size()] == ':' &&
      *level >= ZstdWriter::kFirstLevel && *level <= ZstdWriter::kLastLevel) {
    compression.level = *level;
    return compression;
  }
  return Error{Code::usage,
               compose("--compress takes zstd or zstd:LEVEL with a level from {} to {}, not '{}'",
                       ZstdWriter::kFirstLevel, ZstdWriter::kLastLevel, printable(text))};
}

Result<> take_names(const Arguments& arguments, Request& request) {
  const auto names = arguments.text("names");
  if (!names) return {};
  if (*names == "order") {
    request.names_by_order = formats::NamesByOrder::taken;
    return {};
  }
  EBB_TRY_ASSIGN(request.names, names_in_file(*names));
  return {};
}

Result<Request> request_of(const Arguments& arguments) {
  Request request;
  request.source = arguments.positional(0);
  request.destination = arguments.positional(1);
  request.parts = {arguments.texts("model"), arguments.texts("optimizer")};
  EBB_TRY(take_names(arguments, request));
  EBB_TRY_ASSIGN(request.format, target_of(arguments));
  request.like = arguments.text("like");
  if (request.like && request.format->traits().parts != formats::Parts::files)
    return Error{Code::usage,
                 compose("--like: in {} parameters have names, and groups are as they come",
                         request.format->name()),
                 "it is for --to transformers and accelerate-fsdp"};
  const std::uint64_t world = arguments.count("world-size").value_or(1);
  if (world == 0 || world > kMaxWorld)
    return Error{Code::usage,
                 compose("--world-size takes 1 to {} ranks, not {}", kMaxWorld, world)};
  request.world = static_cast<std::uint32_t>(world);
  if (const auto policy = arguments.text("partition"))
    request.policy = formats::policy_named(*policy);
  request.file_bytes = arguments.size("shard-size");
  if (request.file_bytes && request.format->traits().file_size != formats::FileSize::limited)
    return Error{Code::usage,
                 compose("--shard-size: a file of {} holds what its rank has, whatever the size",
                         request.format->name()),
                 "more ranks (--world-size) make smaller files; safetensors takes --shard-size"};
  if (const auto text = arguments.text("compress")) {
    EBB_TRY_ASSIGN(request.compression, compression_of(*text, *request.format));
  }
  request.selection.include = arguments.texts("include");
  request.selection.exclude = arguments.texts("exclude");
  request.selection.states = split_list(arguments.texts("states"));
  if (arguments.has("weights")) {
    request.taking = formats::Taking::weights;
    if (!request.selection.states.empty())
      return Error{Code::usage, "--weights takes each parameter's best copy, whatever its state",
                   "give --weights or --states, not both"};
  }
  const std::uint64_t jobs = arguments.count("jobs").value_or(0);
  if (arguments.count("jobs") && (jobs == 0 || jobs > kMaxJobs))
    return Error{Code::usage, compose("--jobs takes 1 to {} workers, not {}", kMaxJobs, jobs)};
  request.workers = static_cast<std::uint32_t>(jobs);
  request.memory_bytes = arguments.size("memory").value_or(request.memory_bytes);
  EBB_TRY_ASSIGN(request.edits, edits_of(arguments));
  if (arguments.has("drop")) request.dropping = Dropping::allowed;
  if (arguments.has("new-optimizer")) request.new_optimizer = NewOptimizer::allowed;
  if (arguments.has("dequantize")) request.quantized = Quantized::made_plain;
  if (arguments.has("force")) request.overwrite = libswap::Overwrite::replace;
  return request;
}

Result<Exit> work(Console& console, const Arguments& arguments) {
  catch_stop_signals();
  EBB_TRY_ASSIGN(const Request request, request_of(arguments));
  const auto picture_file = arguments.text("plan");
  if (picture_file && !arguments.has("dry-run"))
    return Error{Code::usage, "--plan is a picture of what --dry-run says", "add -n"};
  if (picture_file) EBB_TRY(check_picture(*picture_file));
  EBB_TRY_ASSIGN(const Prepared prepared, prepare(request));
  const bool as_json = arguments.has("json");
  if (arguments.has("dry-run")) {
    std::optional<PlanPicture> picture;
    if (picture_file) {
      EBB_TRY_ASSIGN(picture, write_picture(request, prepared, *picture_file));
    }
    console.print(as_json
                      ? report_json(request, prepared, {.picture = picture ? &*picture : nullptr})
                      : plan_text(request, prepared) + (picture ? picture_text(*picture) : ""));
    return Exit::success;
  }
  EBB_TRY_ASSIGN(const Outcome outcome, carry_out(console, request, prepared));
  console.print(as_json ? report_json(request, prepared, {.outcome = &outcome})
                        : done_text(request, prepared, outcome));
  return Exit::success;
}

}  // namespace
}  // namespace tools::convert

int tools::convert_main(int argc, char** argv) {
  libswap::spare_addresses();
  return tools::run_program(tools::convert::kProgram, argc, argv,
                            tools::looking_again(tools::convert::work));
}

}  // namespace ebb
