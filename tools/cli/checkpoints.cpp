#include "tools/cli/checkpoints.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <memory>
#include <optional>
#include <system_error>
#include <vector>

#include "ebb/formats/catalog/known_files.h"
#include "ebb/formats/catalog/part_of_save.h"
#include "ebb/formats/catalog/resume.h"
#include "ebb/formats/catalog/with_catalog.h"
#include "ebb/formats/core/json_text.h"
#include "ebb/formats/core/nearest.h"
#include "ebb/formats/describe.h"
#include "ebb/formats/pickle/known_globals.h"
#include "ebb/formats/registry.h"
#include "ebb/libswap/tree/file_tree.h"
#include "tools/cli/neighbours.h"
#include "tools/cli/paths.h"

namespace ebb::tools {

namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMostFolders = 1000;            // looked at by name
constexpr std::string_view kRankFolder = "mp_rank_";  // Megatron's, of one rank

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code code;
  fs::directory_iterator at(folder, code);
  for (const fs::directory_iterator end; !code && at != end; at.increment(code))
    if (names.size() < kMostFolders) names.push_back(at->path().filename().string());
  std::ranges::sort(names);
  return names;
}

// The entry of the nearest existing folder whose name is most like what was typed.
std::optional<std::string> nearest_name(const fs::path& path) {
  const fs::path folder = folder_of(path);
  const auto name = formats::nearest(path.filename().string(), names_in(folder));
  if (!name) return std::nullopt;
  return path.has_parent_path() ? (folder / *name).string() : *name;
}

// One rank's file, or a file below the folder of one rank.
std::optional<formats::PartOfSave> part_at(const fs::path& path, const Catalog& catalog) {
  if (auto part = formats::part_by_arguments(catalog)) return part;
  std::error_code code;
  const bool file = fs::is_regular_file(path, code);
  const std::string name = path.filename().string();
  const fs::path folder = folder_of(path);
  if (file || name.starts_with(kRankFolder))
    if (auto part = formats::part_by_name(name, names_in(folder))) return part;
  const std::string above = folder.filename().string();
  if (!file || !above.starts_with(kRankFolder)) return std::nullopt;
  return formats::part_by_name(above, names_in(folder_of(folder)));
}

// Of weights that were named themselves: an optimizer's states that lie where they lie, as
// accelerate keeps pytorch_model_fsdp_0/ and optimizer_0/ side by side.
std::vector<formats::BesideEntry> states_around(const fs::path& path, const Catalog& catalog) {
  std::vector<formats::BesideEntry> found;
  const bool known = std::ranges::any_of(catalog.beside, &formats::BesideEntry::holds_states) ||
                     formats::format_of(catalog).traits().parts == formats::Parts::files;
  if (known || !formats::weights_only({catalog})) return found;
  std::error_code code;
  const std::string up = fs::is_directory(path, code) ? "../" : "";
  for (const std::string& name : names_in(folder_of(path))) {
    const bool folder = fs::is_directory(folder_of(path) / name, code);
    const auto file = formats::known_file(name);
    const bool states = folder ? formats::names_an_optimizer(name)
                               : file && file->role == formats::BesideEntry::Role::states;
    if (!states || name == path.filename().string()) continue;
    found.push_back({.path = up + name + (folder ? "/" : ""),
                     .what = "an optimizer's states",
                     .holds_states = true,
                     .role = formats::BesideEntry::Role::states});
  }
  return found;
}

// What was read may be a part alone, which its bytes do not always tell, and its other half may lie
// beside it.
std::unique_ptr<Checkpoint> with_its_place(std::unique_ptr<Checkpoint> read,
                                           const std::string& path) {
  std::error_code code;
  const fs::path whole = fs::absolute(trimmed(path), code);
  const fs::path place = code ? trimmed(path) : whole.lexically_normal();
  auto part = part_at(place, read->catalog());
  auto states = states_around(place, read->catalog());
  if (!part && states.empty()) return read;
  Catalog catalog = read->catalog();
  std::ranges::move(states, std::back_inserter(catalog.beside));
  if (!part) return formats::with_catalog(std::move(read), std::move(catalog));
  catalog.notes.push_back(
      compose("one part of a save{}, as {}: its tensors may be parts of the model's",
              part->parts > 0 ? compose(" of {}", part->parts) : "", part->why));
  catalog.part_of = std::move(part);
  return formats::with_catalog(std::move(read), std::move(catalog));
}

// Weights of which the saves that led to them lie in folders below.
std::unique_ptr<Checkpoint> with_saves_below(
    std::unique_ptr<Checkpoint> read, const std::string& path,
    const std::shared_ptr<const formats::SourceTree>& tree) {
  const auto is_save = [](const formats::BesideEntry& entry) {
    return entry.role == formats::BesideEntry::Role::checkpoint && entry.holds_states;
  };
  if (!formats::weights_only({read->catalog()}) ||
      std::ranges::none_of(read->catalog().beside, is_save))
    return read;
  const auto newest = newest_below(path, tree);
  Catalog catalog = read->catalog();
  catalog.notes.push_back(newest ? "weights alone; the newest whole checkpoint below, with an "
                                   "optimizer's states: " +
                                       *newest
                                 : "weights alone; no checkpoint below is whole");
  return formats::with_catalog(std::move(read), std::move(catalog));
}

// A file of a checkpoint that is a folder, named instead of the folder. `read_as`: the format in
// which the file is read alone; "" for none.
std::optional<Error> one_file_of_many(const fs::path& path, std::string_view read_as) {
  std::error_code code;
  if (!fs::is_regular_file(path, code)) return std::nullopt;
  const fs::path folder = folder_of(path);
  const auto tree = libswap::open_tree(folder);
  if (!tree || formats::format_at(**tree) == nullptr) return std::nullopt;
  const auto described = formats::describe(*tree);
  if (!described) return std::nullopt;
  const Catalog& catalog = (*described)->catalog();
  const std::string name = path.filename().string();
  if (catalog.format == read_as) return std::nullopt;
  if (std::ranges::find(catalog.files, name, &formats::FileEntry::name) == catalog.files.end())
    return std::nullopt;
  return Error{Code::usage,
               compose("{}: one file of a {} checkpoint, which is the folder",
                       printable(path.string(), 1000), catalog.format),
               "name the folder: " + printable(folder.string(), 1000)};
}

// A file that is known to be an object of Python's, and names nothing but what makes such a one.
std::optional<Error> object_of_a_job(const fs::path& path, const Catalog& catalog) {
  std::error_code code;
  const auto known = formats::known_file(path.filename().string());
  if (!known || known->packages.empty() || !catalog.tensors.empty() ||
      !fs::is_regular_file(path, code))
    return std::nullopt;
  for (const formats::UnsafeValue& value : formats::unsafe_values(catalog)) {
    const std::string package = compose(" {} ", value.name.substr(0, value.name.find('.')));
    if (known->packages.find(package) == std::string_view::npos) return std::nullopt;
  }
  return Error{
      Code::unsupported,
      compose("{}: {}: an object of Python's, and no checkpoint", printable(path.string(), 1000),
              known->what),
      "name the folder, where the model lies; ckpt-inspect --raw shows what is in the file"};
}

Error with_nearest_name(Error error, const std::string& path) {
  std::error_code code;
  if (!error.hint.empty() || fs::exists(fs::symlink_status(path, code))) return error;
  if (path.find("://") != std::string::npos) {
    error.hint = "only paths are read: mount what is there, or copy it here first";
    return error;
  }
  if (const auto near = nearest_name(trimmed(path)))
    error.hint = "did you mean " + printable(*near, 1000) + "?";
  return error;
}

}  // namespace

Error with_whole_neighbour(Error error, const std::string& path) {
  const bool damaged = error.code == Code::corrupt || error.code == Code::incomplete;
  if (!damaged) return error;
  if (const auto neighbour = whole_neighbour(path))
    error.hint += (error.hint.empty() ? "" : "; ") + *neighbour;
  return error;
}

Result<std::shared_ptr<const formats::SourceTree>> open_tree_at(const std::string& path) {
  auto tree = libswap::open_tree(path);
  if (!tree) return with_nearest_name(std::move(tree).error(), path);
  return tree;
}

Result<std::unique_ptr<Checkpoint>> open_checkpoint(const std::string& path,
                                                    const formats::PartsSaid& said) {
  EBB_TRY_ASSIGN(auto tree, open_tree_at(path));
  if (formats::format_at(*tree) == nullptr)
    if (auto error = checkpoints_below(path, tree)) return std::move(*error);
  auto described = formats::describe(tree, said);
  if (!described) {
    // What was asked for does not fit; else the file may be a part of something.
    if (described.error().code == Code::usage) return std::move(described).error();
    if (auto error = one_file_of_many(path, "")) return std::move(*error);
    if (described.error().code == Code::unsupported)
      if (auto newest = newest_of_files(path, tree)) {
        Error error = std::move(described).error();
        error.hint = std::move(*newest);
        return error;
      }
    return with_whole_neighbour(std::move(described).error(), path);
  }
  if (formats::part_name(trimmed(path).filename().string()))
    if (auto error = one_file_of_many(path, (*described)->catalog().format))
      return std::move(*error);
  if (auto error = object_of_a_job(trimmed(path), (*described)->catalog()))
    return std::move(*error);
  return with_saves_below(with_its_place(*std::move(described), path), path, tree);
}

Result<> check_unchanged(const Catalog& catalog, const libswap::FileStates& before) {
  if (formats::format_of(catalog).traits().overwriting == formats::Overwriting::noticed) return {};
  std::vector<std::string> names;
  for (const formats::FileEntry& file : catalog.files) names.push_back(file.name);
  const auto changed = before.changed_since(names);
  if (!changed) return {};
  return Error{Code::busy, "the source changed while it was read: " + printable(*changed),
               "try again once its writer is done, or read a copy"};
}

bool is_damage(const Error& error) {
  return error.code == Code::corrupt || error.code == Code::incomplete ||
         error.code == Code::layout;
}

}  // namespace ebb::tools
