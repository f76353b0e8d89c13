// ckpt-inspect: reads, checks and explains any checkpoint this version knows. It never executes
// anything from a checkpoint and never writes into one.
#include <cstdlib>

#include "ebb/formats/describe.h"
#include "ebb/formats/pickle/known_globals.h"
#include "ebb/libswap/sys/process.h"
#include "tools/ckpt_inspect/flags.h"
#include "tools/ckpt_inspect/modes.h"
#include "tools/cli/checkpoints.h"
#include "tools/cli/mains.h"
#include "tools/cli/run.h"
#include "tools/cli/text.h"
#include "tools/cli/watched_checkpoint.h"

namespace ebb {

namespace tools::inspect {
namespace {

Output output_of(const Arguments& arguments) {
  return arguments.has("json") ? Output::json : Output::text;
}

Result<Selection> selection_of(const Arguments& arguments) {
  Selection selection;
  selection.include = arguments.texts("key");
  selection.states = arguments.texts("state");
  if (const auto rank = arguments.count("rank")) {
    if (*rank > 0xffff'ffffu) return Error{Code::usage, compose("--rank {} is no rank", *rank)};
    selection.rank = Rank{static_cast<std::uint32_t>(*rank)};
  }
  return selection;
}

Result<View> view_of(const std::string& path, const Checkpoint& checkpoint,
                     const Arguments& arguments) {
  EBB_TRY_ASSIGN(Selection selection, selection_of(arguments));
  const std::uint32_t world = checkpoint.catalog().world;
  if (selection.rank && index_of(*selection.rank) >= world)
    return Error{Code::usage,
                 compose("--rank {}, but {} wrote {}", index_of(*selection.rank),
                         plural(world, "rank"), path),
                 "the first rank is 0"};
  EBB_TRY_ASSIGN(auto tensors, select(checkpoint.catalog(), selection));
  return View{path,
              checkpoint,
              std::move(tensors),
              std::move(selection),
              output_of(arguments),
              arguments.count("limit")};
}

// The same selection of the other checkpoint; it may have nothing of it.
View other_side(const std::string& path, const Checkpoint& checkpoint, const View& view) {
  View other{path, checkpoint, {}, view.selection, view.output, view.limit};
  for (const TensorEntry& tensor : checkpoint.catalog().tensors)
    if (view.selection.wants(tensor)) other.tensors.push_back(&tensor);
  return other;
}

// Whatever was shown: this is not a checkpoint to go on with.
Error unsafe_error(const std::string& path, const std::vector<formats::UnsafeValue>& values) {
  Error error = error_of(values.front(), path);
  if (values.size() > 1) error.message += " (and " + plural(values.size() - 1, "more value") + ")";
  error.hint = "ckpt-convert " + path + " DST --to FORMAT --drop leaves it behind";
  return error;
}

// Modes that have something to say where there is no catalog to show.
Result<Exit> show_undescribed(Console& console, const Arguments& arguments, std::string_view mode,
                              const Error& error) {
  const Unreadable what{arguments.positional(0), error, output_of(arguments)};
  if (mode == "explain-resume") {
    EBB_TRY_ASSIGN(const std::uint32_t world, world_of(arguments));
    return explain_unreadable(console, what, world);
  }
  if (mode == "verify") verify_unreadable(console, what);
  return error;
}

// The map of what is not whole, where an index tells what would lie where. The error stays one.
Result<> draw_holes(Console& console, const Arguments& arguments,
                    std::unique_ptr<Checkpoint>& checkpoint) {
  EBB_TRY_ASSIGN(auto tree, open_tree_at(arguments.positional(0)));
  auto described = formats::describe_with_holes(std::move(tree));
  if (!described) return {};
  checkpoint = *std::move(described);
  EBB_TRY_ASSIGN(const View view, view_of(arguments.positional(0), *checkpoint, arguments));
  EBB_TRY(write_map(console, view, *arguments.text("map")));
  return {};
}

Result<Exit> show(Console& console, const View& view, const Arguments& arguments,
                  std::string_view mode) {
  if (mode == "tensors")
    return show_tensors(console, view, arguments.has("digest") ? Digest::sha256 : Digest::none);
  if (mode == "shards") return show_shards(console, view);
  if (mode == "groups") return show_groups(console, view);
  if (mode == "verify") return verify(console, view);
  if (mode == "stats") return show_statistics(console, view, arguments.text("picture"));
  if (mode == "map") return write_map(console, view, *arguments.text("map"));
  if (mode == "explain-resume") {
    EBB_TRY_ASSIGN(const std::uint32_t world, world_of(arguments));
    return explain_resume(console, view, world);
  }
  if (mode == "diff") {
    const std::string other_path = *arguments.text("diff");
    EBB_TRY_ASSIGN(const auto other, open_checkpoint(other_path));
    return show_difference(console, view, other_side(other_path, *other, view));
  }
  return show_summary(console, view);
}

// What the modes do that read all that is selected; "" of others.
std::string_view reading_of(const Arguments& arguments, std::string_view mode) {
  if (mode == "verify") return "verifying";
  if (mode == "stats") return "reading";
  if (mode == "diff") return "comparing";
  return arguments.has("digest") ? "hashing" : "";
}

// The same, and says meanwhile how far it is.
Result<Exit> show_watched(Console& console, const View& view, const Arguments& arguments,
                          std::string_view mode) {
  const std::string_view doing = reading_of(arguments, mode);
  if (doing.empty()) return show(console, view, arguments, mode);
  std::uint64_t bytes = 0;
  for (const TensorEntry* tensor : view.tensors) bytes += bytes_of(*tensor, view.selection);
  const WatchedCheckpoint checkpoint(view.checkpoint, console, doing, bytes);
  const View watched{view.path, checkpoint, view.tensors, view.selection, view.output, view.limit};
  return show(console, watched, arguments, mode);
}

// `checkpoint` takes what was described.
Result<Exit> work(Console& console, const Arguments& arguments,
                  std::unique_ptr<Checkpoint>& checkpoint) {
  EBB_TRY_ASSIGN(const std::string_view mode, mode_of(arguments));
  const std::string& path = arguments.positional(0);
  if (mode == "raw") {
    EBB_TRY_ASSIGN(auto tree, open_tree_at(path));
    return show_raw(console, {path, std::move(tree), arguments.texts("key"), output_of(arguments),
                              arguments.count("limit")});
  }
  auto described = open_checkpoint(path, {arguments.texts("model"), arguments.texts("optimizer")});
  if (!described) {
    if (mode == "map" && is_damage(described.error()))
      EBB_TRY(draw_holes(console, arguments, checkpoint));
    return show_undescribed(console, arguments, mode, described.error());
  }
  checkpoint = std::move(*described);
  EBB_TRY_ASSIGN(const View view, view_of(path, *checkpoint, arguments));
  EBB_TRY_ASSIGN(const Exit exit, show_watched(console, view, arguments, mode));
  const auto unsafe = formats::unsafe_values(checkpoint->catalog());
  if (!unsafe.empty()) return unsafe_error(path, unsafe);
  EBB_TRY(check_read(view));
  return exit;
}

}  // namespace
}  // namespace tools::inspect

int tools::inspect_main(int argc, char** argv) {
  libswap::keep_freed_memory();
  std::unique_ptr<Checkpoint> checkpoint;
  const int exit = tools::run_program(
      tools::inspect::command_line(), argc, argv,
      tools::looking_again([&](tools::Console& console, const tools::Arguments& arguments) {
        return tools::inspect::work(console, arguments, checkpoint);
      }));
  // The end of the process frees a catalog of a million pieces at once, its destructor one by one.
  std::quick_exit(exit);
}

}  // namespace ebb
