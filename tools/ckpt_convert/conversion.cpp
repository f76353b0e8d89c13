#include "tools/ckpt_convert/conversion.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <set>
#include <span>

#include "ebb/formats/beside.h"
#include "ebb/formats/conversion/dequantize.h"
#include "ebb/formats/conversion/unread.h"
#include "ebb/formats/core/compose.h"
#include "ebb/formats/core/json_text.h"
#include "ebb/formats/core/units.h"
#include "ebb/formats/describe.h"
#include "ebb/formats/registry.h"
#include "ebb/libswap/read/in_parallel.h"
#include "ebb/libswap/tree/file_tree.h"
#include "tools/ckpt_convert/order.h"
#include "tools/ckpt_convert/read_back.h"
#include "tools/cli/beside.h"
#include "tools/cli/checkpoints.h"
#include "tools/cli/paths.h"
#include "tools/cli/program.h"
#include "tools/cli/text.h"
#include "tools/cli/transfer_line.h"

namespace ebb::tools::convert {

namespace fs = std::filesystem;

namespace {

// The place itself, however it is spelt and whether it is there or not: of a relative path that
// does not exist the library makes no absolute one.
Result<fs::path> place_of(const std::string& said) {
  std::error_code failure;
  fs::path place = fs::absolute(fs::path(said), failure);
  if (!failure) place = fs::weakly_canonical(trimmed(place.string()), failure);
  if (failure) return Error{Code::io, printable(said) + ": " + failure.message()};
  return place;
}

bool begins_with(const fs::path& path, const fs::path& folder) {
  const auto [in_path, in_folder] =
      std::mismatch(path.begin(), path.end(), folder.begin(), folder.end());
  return in_folder == folder.end();
}

// Things of one kind in one line: "value 'a', value 'b' and 5 more".
std::string in_one_line(const std::vector<std::string>& items, std::size_t most) {
  if (items.size() <= most) return joined(items);
  return compose("{} and {} more", joined(std::span(items).first(most)),
                 count_text(items.size() - most));
}

// Those at the destination that belong neither to the checkpoint there nor to the plan.
std::vector<std::string> foreign_files(const formats::SourceTree& tree, const Catalog* there,
                                       const EmitPlan& plan) {
  std::set<std::string> known;
  for (const auto* files : {&plan.files, &plan.commit_files})
    for (const OutputFile& file : *files) known.insert(file.name);
  if (there != nullptr)
    for (const formats::FileEntry& file : there->files) known.insert(file.name);
  std::vector<std::string> foreign;
  for (const formats::SourceTree::Entry& entry : tree.entries()) {
    const bool own = there != nullptr && formats::is_loaders_own(*there, entry.name);
    if (!own && !known.contains(entry.name)) foreign.push_back(printable(entry.name));
  }
  return foreign;
}

// What -f would remove, in a few words; "" for nothing. Fails where it is a link, no checkpoint, or
// holds files that are not part of one.
Result<std::string> replaced_by(const Request& request, const EmitPlan& plan) {
  std::error_code failure;
  const fs::path destination = trimmed(request.destination);
  const fs::file_status status = fs::symlink_status(destination, failure);
  const std::string shown = printable(request.destination);
  if (fs::is_symlink(status))
    return Error{Code::usage, shown + ": is a symbolic link, which is not replaced",
                 "name what it leads to"};
  if (request.overwrite == libswap::Overwrite::refuse || !fs::exists(status)) return std::string();
  if (fs::is_directory(status) && fs::is_empty(destination, failure)) return std::string();
  auto tree = libswap::open_tree(destination);
  if (!tree) return std::move(tree).error().within("-f replaces checkpoints alone");
  const auto described = formats::describe(*tree);
  const Catalog* there = described ? &(*described)->catalog() : nullptr;
  const auto foreign = foreign_files(**tree, there, plan);
  if (!foreign.empty() || (*tree)->entries().empty())
    return Error{Code::usage,
                 compose("{}: was not replaced: -f replaces a checkpoint and nothing else, "
                         "but {} there belong to none: {}",
                         shown, plural(foreign.size(), "file"), in_one_line(foreign, 3)),
                 "move them away, or choose another destination"};
  if (there == nullptr) return std::string("an incomplete result of the same conversion");
  return compose("{}, {}", there->format, plural(there->tensors.size(), "tensor"));
}

Result<> check_places(const Request& request) {
  const std::string last = trimmed(request.destination).filename().string();
  if (last.empty() || last == "." || last == "..")
    return Error{Code::usage,
                 "'" + printable(request.destination) + "' cannot be made anew under that name",
                 "give the directory its own name, as in ../result"};
  EBB_TRY_ASSIGN(const fs::path source, place_of(request.source));
  EBB_TRY_ASSIGN(const fs::path destination, place_of(request.destination));
  const std::string both = printable(request.destination) + " and " + printable(request.source);
  if (source == destination)
    return Error{Code::usage, "source and destination are the same place: " + both,
                 "name another directory; a checkpoint is never converted in place"};
  if (begins_with(destination, source))
    return Error{Code::usage, "the destination lies inside the source: " + both,
                 "name a directory outside; the source is never touched"};
  if (begins_with(source, destination))
    return Error{Code::usage, "the source lies inside the destination: " + both,
                 "name another directory; replacing it would remove the source"};
  return check_folder_of(request.destination);
}

// Who reads packed items holds a decoded one, beside those that the tree keeps.
std::uint32_t readers_within(const Request& request, const EmitPlan& plan) {
  const std::uint32_t wanted = libswap::workers_or_default(request.workers);
  std::uint64_t largest = 0;
  for (const OutputFile& file : plan.files)
    for (const formats::PackedItem& item : file.items) largest = std::max(largest, item.place.size);
  if (largest == 0) return wanted;
  const std::uint64_t held = request.memory_bytes / 2 / (largest + formats::MiB);
  return static_cast<std::uint32_t>(std::clamp<std::uint64_t>(held, 1, wanted));
}

// Weights alone in a format that jobs resume from: the job would start a new optimizer. Where its
// states lie beside the weights, nobody means that without saying it.
Result<> check_optimizer(const Request& request, const Catalog& source, const Catalog& content) {
  const bool asked_for =
      request.taking == formats::Taking::weights || request.new_optimizer == NewOptimizer::allowed;
  const std::string beside = states_beside(source);
  if (asked_for || beside.empty() || !formats::weights_only({content}) ||
      request.format->traits().resumes == formats::Resumes::nothing)
    return {};
  return Error{Code::unsupported,
               compose("{}: only weights are read here; the optimizer's states lie beside them in "
                       "{}: a job that resumes from the result would start a new optimizer",
                       printable(request.source), beside),
               "--new-optimizer goes on without the states; --weights writes the model alone"};
}

}  // namespace

std::uint64_t Prepared::bytes() const {
  std::uint64_t bytes = 0;
  for (const auto* files : {&conversion.plan.files, &conversion.plan.commit_files})
    for (const OutputFile& file : *files) bytes += file.size;
  return bytes;
}

std::size_t Prepared::files() const {
  return conversion.plan.files.size() + conversion.plan.commit_files.size();
}

libswap::Becomes becomes(const Request& request, const EmitPlan& plan) {
  return libswap::becomes(*request.format, plan, request.destination);
}

Result<Prepared> prepare(const Request& request) {
  if (!is_read_here(*request.format))
    return Error{
        Code::unsupported,
        compose("what is written as {} could not be read back: no {} lies beside ckpt-convert",
                request.format->name(), request.format->traits().reader_program),
        "install libhdf5-dev, then ./dev setup && ./dev build"};
  EBB_TRY(check_places(request));
  auto before = libswap::FileStates::below(trimmed(request.source));
  EBB_TRY_ASSIGN(Opened opened, open_source(request));
  auto& [source, order, changes] = opened;
  if (!before) return std::move(before).error();
  if (request.quantized == Quantized::made_plain) {
    EBB_TRY_ASSIGN(formats::Dequantized made, formats::dequantized(std::move(source)));
    source = std::move(made.checkpoint);
    std::ranges::move(made.changes, std::back_inserter(changes));
  }
  EBB_TRY_ASSIGN(const auto chosen, select(source->catalog(), request.selection));
  for (const TensorEntry* tensor : chosen) {
    if (auto proof = prove_coverage(*tensor, source->catalog()); !proof) {
      Error error = proof.error();
      error.hint = "ckpt-inspect --verify " + request.source + " lists everything that is missing";
      return error;
    }
  }
  EBB_TRY_ASSIGN(
      formats::Conversion conversion,
      formats::plan_conversion(
          *source, {.from = formats::format_of(source->catalog()),
                    .to = *request.format,
                    .taking = request.taking,
                    .world = request.world,
                    .policy = request.policy,
                    .wanted = [&](const TensorEntry& t) { return request.selection.wants(t); },
                    .file_bytes = request.file_bytes,
                    .edits = &request.edits,
                    .compression = request.compression,
                    .names_by_order = request.names_by_order,
                    .order = order ? &*order : nullptr}));
  conversion.changes.insert(conversion.changes.begin(), changes.begin(), changes.end());
  EBB_TRY(check_optimizer(request, source->catalog(), conversion.content->catalog()));
  EBB_TRY_ASSIGN(std::string replaces, replaced_by(request, conversion.plan));
  if (!conversion.unsafe.empty() && request.dropping == Dropping::refused)
    return Error{Code::corrupt,
                 printable(request.source) +
                     " is not safe to load, and no part of what makes it so "
                     "is ever written: " +
                     in_one_line(conversion.unsafe, 6),
                 "--drop goes on without it; -n --drop lists all of it"};
  if (!conversion.unread.empty() && request.dropping == Dropping::refused)
    return Error{
        Code::unsupported,
        compose("{}: {} not read: {}", printable(request.source),
                plural(conversion.unread.size(), "tensor"), in_one_line(conversion.unread, 2)),
        formats::hint_about_unread(source->catalog())};
  if (!conversion.plan.dropped.empty() && request.dropping == Dropping::refused)
    return Error{Code::unsupported,
                 compose("{} cannot hold {}", request.format->name(),
                         in_one_line(conversion.plan.dropped, 6)),
                 "--drop goes on without; -n --drop lists all of it"};
  return Prepared{std::move(source), *std::move(before), std::move(conversion),
                  std::move(replaces)};
}

Result<Outcome> carry_out(Console& console, const Request& request, const Prepared& prepared) {
  EBB_TRY_ASSIGN(auto chosen, libswap::open_backend(libswap::BackendChoice::automatic));
  EBB_TRY_ASSIGN(const auto io, libswap::IoQueue::start(std::move(chosen.backend), {}));
  TransferLine progress(console, "writing");
  std::uint64_t total = 0;
  const ReadBack read_back(prepared.conversion, readers_within(request, prepared.conversion.plan));
  Outcome outcome;
  libswap::WriteOptions options;
  options.overwrite = request.overwrite;
  options.becomes = becomes(request, prepared.conversion.plan);
  if (request.dropping == Dropping::allowed) options.derived = libswap::Derivation::assumed;
  options.priority = libswap::Priority::step;
  options.cancel = &stop_requested();
  options.workers = request.workers;
  options.memory_bytes = request.memory_bytes;
  options.source_identity = prepared.files_before.identity() +
                            prepared.conversion.content->identity() +
                            (request.quantized == Quantized::made_plain ? " dequantized" : "");
  options.progress = [&](const libswap::WriteProgress& now) {
    total = now.bytes_total;
    progress.now({.bytes = now.bytes_done, .of = total, .found = now.bytes_found});
  };
  options.check = [&](const fs::path& directory,
                      std::span<const std::uint64_t> fingerprints) -> Result<> {
    progress.line().say("reading back");
    progress.line().tell("reading back", 0, total);
    if (request.dropping == Dropping::allowed) {
      EBB_TRY_ASSIGN(outcome.rounded_otherwise, read_back.rounded_otherwise());
    }
    EBB_TRY(read_back.run(console, directory, fingerprints));
    return check_unchanged(prepared.source->catalog(), prepared.files_before);
  };
  auto report =
      libswap::write_checkpoint(*io, *prepared.conversion.content, prepared.conversion.plan,
                                trimmed(request.destination), options);
  console.clear_line();
  // What looks like damage may be a file of which one half is new.
  if (!report && is_damage(report.error()))
    EBB_TRY(check_unchanged(prepared.source->catalog(), prepared.files_before));
  EBB_TRY_ASSIGN(outcome.report, std::move(report));
  return outcome;
}

}  // namespace ebb::tools::convert
