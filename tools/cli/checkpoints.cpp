#include "tools/cli/checkpoints.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <system_error>
#include <vector>

#include "ebb/formats/core/json_text.h"
#include "ebb/formats/core/nearest.h"
#include "ebb/formats/pickle/known_globals.h"
#include "ebb/formats/registry.h"
#include "ebb/libswap/tree/file_tree.h"
#include "tools/cli/arguments.h"
#include "tools/cli/paths.h"
#include "tools/cli/text.h"

namespace ebb::tools {

namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMostFolders = 1000;  // looked at by name
constexpr std::size_t kMostDescribed = 16;

// The folders below `folder`, in natural order; hidden ones are a writer's temporaries.
std::vector<fs::path> folders_in(const fs::path& folder) {
  std::vector<fs::path> folders;
  std::error_code code;
  fs::directory_iterator at(folder, code);
  for (const fs::directory_iterator end; !code && at != end; at.increment(code)) {
    std::error_code ignored;
    const bool hidden = at->path().filename().string().starts_with('.');
    if (!hidden && at->is_directory(ignored)) folders.push_back(at->path());
    if (folders.size() == kMostFolders) break;
  }
  std::ranges::sort(folders, [](const fs::path& a, const fs::path& b) {
    return natural_less(a.filename().string(), b.filename().string());
  });
  return folders;
}

// Opened, where a format claims it.
std::shared_ptr<const formats::SourceTree> checkpoint_tree(const fs::path& folder) {
  auto tree = libswap::open_tree(folder);
  return tree && formats::format_at(**tree) != nullptr ? *std::move(tree) : nullptr;
}

struct Whole {
  std::string path;
  std::optional<std::int64_t> step;
};

// Keeps the later step; a step is later than none, and of those without the first is kept.
void take_newer(std::optional<Whole>& newest, const fs::path& folder,
                const std::shared_ptr<const formats::SourceTree>& tree) {
  const auto described = formats::describe(tree);
  if (!described || !prove_coverage((*described)->catalog())) return;
  if (!formats::unsafe_values((*described)->catalog()).empty()) return;
  const auto step = (*described)->catalog().step;
  if (!newest || step > newest->step) newest = Whole{folder.string(), step};
}

// The folders that the checkpoint at `path` lies in: what is wrong with it is wrong with them.
std::set<fs::path> own_folders(const fs::path& path,
                               const std::shared_ptr<const formats::SourceTree>& tree) {
  std::set<fs::path> own = {path};
  if (tree == nullptr) return own;
  const auto described = formats::describe(tree);
  if (!described) return own;
  for (const auto& file : (*described)->catalog().files)
    own.insert((path / *fs::path(file.name).begin()).lexically_normal());
  return own;
}

// Below `path`, else beside it, of the format there, if any: the last in natural order are looked
// at first.
std::optional<Whole> newest_whole(const fs::path& path) {
  const auto here = checkpoint_tree(path);
  const formats::Format* const format = here == nullptr ? nullptr : formats::format_at(*here);
  const std::set<fs::path> own = own_folders(path, here);
  for (const fs::path& place : {path, folder_of(path)}) {
    std::optional<Whole> newest;
    std::vector<fs::path> folders = folders_in(place);
    std::ranges::reverse(folders);
    std::size_t described = 0;
    for (const fs::path& folder : folders) {
      if (own.contains(folder.lexically_normal())) continue;
      const auto tree = checkpoint_tree(folder);
      if (tree == nullptr) continue;
      if (described++ == kMostDescribed) break;
      if (format == nullptr || formats::format_at(*tree) == format)
        take_newer(newest, folder, tree);
    }
    if (newest) return newest;
  }
  return std::nullopt;
}

// Without a step, and without a number at the end of its name, nothing tells whether it is newest.
bool is_newest(const Whole& whole) {
  return whole.step || (whole.path.back() >= '0' && whole.path.back() <= '9');
}

std::string said(const Whole& whole) {
  std::string out = printable(whole.path, 1000);
  if (whole.step) out += compose(" (step {})", *whole.step);
  return out;
}

// A folder of checkpoints instead of one: says which there are.
std::optional<Error> several_below(const std::string& path) {
  constexpr std::size_t kShown = 6;
  std::vector<std::string> names;
  for (const fs::path& folder : folders_in(trimmed(path)))
    if (checkpoint_tree(folder) != nullptr) names.push_back(folder.filename().string());
  if (names.empty()) return std::nullopt;
  std::string message = compose("{}: no checkpoint itself; {} below it: ", path,
                                (names.size() == 1 ? "1 lies" : count_text(names.size()) + " lie"));
  const std::size_t first = names.size() > kShown ? names.size() - kShown : 0;
  if (first > 0) message += "..., ";
  for (std::size_t i = first; i < names.size(); ++i)
    message += (i > first ? ", " : "") + printable(names[i], 100);
  const auto newest = newest_whole(trimmed(path));
  return Error{Code::usage, std::move(message),
               !newest
                   ? "name one of them"
                   : (is_newest(*newest) ? "the newest that is whole: " : "one that is whole: ") +
                         said(*newest)};
}

// The entry of the nearest existing folder whose name is most like what was typed.
std::optional<std::string> nearest_name(const fs::path& path) {
  const fs::path folder = folder_of(path);
  std::vector<std::string> names;
  std::error_code code;
  fs::directory_iterator at(folder, code);
  for (const fs::directory_iterator end; !code && at != end; at.increment(code))
    if (names.size() < kMostFolders) names.push_back(at->path().filename().string());
  const auto name = formats::nearest(path.filename().string(), names);
  if (!name) return std::nullopt;
  return path.has_parent_path() ? (folder / *name).string() : *name;
}

// A file of a checkpoint that is a folder, named instead of the folder.
std::optional<Error> one_file_of_many(const fs::path& path) {
  std::error_code code;
  if (!fs::is_regular_file(path, code)) return std::nullopt;
  const fs::path folder = folder_of(path);
  const auto tree = checkpoint_tree(folder);
  if (tree == nullptr) return std::nullopt;
  const auto described = formats::describe(tree);
  if (!described) return std::nullopt;
  const Catalog& catalog = (*described)->catalog();
  const std::string name = path.filename().string();
  if (std::ranges::find(catalog.files, name, &formats::FileEntry::name) == catalog.files.end())
    return std::nullopt;
  return Error{Code::usage,
               compose("{}: one file of a {} checkpoint, which is the folder",
                       printable(path.string(), 1000), catalog.format),
               "name the folder: " + printable(folder.string(), 1000)};
}

Error with_nearest_name(Error error, const std::string& path) {
  std::error_code code;
  if (!error.hint.empty() || fs::exists(fs::symlink_status(path, code))) return error;
  if (const auto near = nearest_name(trimmed(path)))
    error.hint = "did you mean " + printable(*near, 1000) + "?";
  return error;
}

}  // namespace

Error with_whole_neighbour(Error error, const std::string& path) {
  const bool damaged = error.code == Code::corrupt || error.code == Code::incomplete;
  if (!damaged) return error;
  const auto whole = newest_whole(trimmed(path));
  if (!whole) return error;
  if (!error.hint.empty()) error.hint += "; ";
  error.hint += is_newest(*whole) ? "the newest" : "a";
  error.hint += " whole checkpoint beside it: " + said(*whole);
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
    if (auto error = several_below(path)) return std::move(*error);
  auto described = formats::describe(std::move(tree), said);
  if (!described) {
    if (auto error = one_file_of_many(path)) return std::move(*error);
    return with_whole_neighbour(std::move(described).error(), path);
  }
  return described;
}

}  // namespace ebb::tools
