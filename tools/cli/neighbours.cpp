#include "tools/cli/neighbours.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <map>
#include <set>
#include <system_error>
#include <vector>

#include "ebb/formats/catalog/known_files.h"
#include "ebb/formats/core/folder_tree.h"
#include "ebb/formats/core/json_text.h"
#include "ebb/formats/describe.h"
#include "ebb/formats/folders/folders.h"
#include "ebb/formats/pickle/known_globals.h"
#include "ebb/formats/registry.h"
#include "ebb/libswap/tree/file_tree.h"
#include "tools/cli/likeness.h"
#include "tools/cli/paths.h"
#include "tools/cli/text.h"

namespace ebb::tools {

namespace {

namespace fs = std::filesystem;
using Tree = std::shared_ptr<const formats::SourceTree>;

constexpr std::size_t kMostNeighbours = 1000;  // looked at by name
constexpr std::size_t kMostDescribed = 16;
constexpr int kLevels = 3;

// A folder that a format claims.
struct Found {
  std::string name;  // of the folder, below the one that was named
  Tree tree;
  const formats::Format* format = nullptr;
};

// What a sound one holds.
struct Whole {
  std::string path;
  std::optional<std::int64_t> step;
  bool has_weights = false;
  bool has_states = false;
};

// The folders below a tree's root, in natural order; hidden ones are a writer's temporaries.
std::vector<std::string> folders_in(const formats::SourceTree& tree) {
  std::set<std::string> names;
  for (const auto& entry : tree.entries()) {
    const std::size_t slash = entry.name.find('/');
    if (slash == std::string::npos || entry.name.starts_with('.')) continue;
    names.insert(entry.name.substr(0, slash));
    if (names.size() == kMostNeighbours) break;
  }
  std::vector<std::string> folders(names.begin(), names.end());
  std::ranges::sort(folders, natural_less);
  return folders;
}

void find_below(const Tree& tree, const std::string& above, int levels, std::size_t& looks,
                std::vector<Found>& found) {
  for (const std::string& folder : folders_in(*tree)) {
    if (looks++ == kMostNeighbours) return;
    Tree inside = formats::folder_of(tree, folder);
    const std::string name = above + folder;
    if (const auto* format = formats::format_at(*inside))
      found.push_back({name, std::move(inside), format});
    else if (levels > 1)
      find_below(inside, name + "/", levels - 1, looks, found);
  }
}

// What torch_checkpointing and transformers call a folder until all ranks have written into it.
bool is_unfinished(const fs::path& folder) {
  const std::string name = folder.filename().string();
  return name.starts_with("tmp_") || name.starts_with("tmp-");
}

// NeMo leaves NAME-unfinished beside NAME until all is written.
bool is_marked_unfinished(const std::string& folder) {
  std::error_code code;
  return fs::exists(trimmed(folder).string() + "-unfinished", code);
}

std::optional<Whole> described(const Tree& tree, std::string path) {
  if (is_unfinished(path) || is_marked_unfinished(path)) return std::nullopt;
  const auto checkpoint = formats::describe(tree);
  if (!checkpoint) return std::nullopt;
  const Catalog& catalog = (*checkpoint)->catalog();
  if (!prove_coverage(catalog) || !formats::unsafe_values(catalog).empty()) return std::nullopt;
  Whole whole{std::move(path), catalog.step};
  whole.has_states = std::ranges::any_of(catalog.beside, &formats::BesideEntry::holds_states);
  for (const TensorEntry& tensor : catalog.tensors) {
    const bool weight = tensor.state == "param" || tensor.state == "master";
    const bool other = tensor.state == "buffer" || tensor.state == "tensor";
    (weight ? whole.has_weights : whole.has_states) |= !other;
  }
  return whole;
}

std::optional<Whole> described(const Found& found, const fs::path& above) {
  return described(found.tree, (above / found.name).string());
}

// By the number that ends the folder's name, or a file's before its ending: ep0-ba20-rank0.pt.
bool is_numbered(const Whole& whole) {
  const std::string stem = fs::path(whole.path).stem().string();
  return std::isdigit(static_cast<unsigned char>(whole.path.back())) != 0 ||
         (fs::path(whole.path).has_extension() &&
          std::isdigit(static_cast<unsigned char>(stem.back())) != 0);
}

// By steps where both have one, else by the numbers that end their names: the last save of a run
// may lack a step. Else a step is later than none.
bool is_later(const Whole& whole, const Whole& than) {
  if (whole.step && than.step) return *whole.step > *than.step;
  if (is_numbered(whole) && is_numbered(than)) return natural_less(than.path, whole.path);
  return whole.step > than.step;
}

// Of those that nothing tells apart the one that was looked at first is kept.
const Whole* latest(const std::vector<const Whole*>& all) {
  const Whole* newest = nullptr;
  for (const Whole* whole : all)
    if (newest == nullptr || is_later(*whole, *newest)) newest = whole;
  return newest;
}

// Without a step, and without a number at the end of its name, nothing tells whether it is newest.
bool is_newest(const Whole& whole) { return whole.step || is_numbered(whole); }

std::string said(const Whole& whole) {
  std::string out = printable(whole.path, 1000);
  if (whole.step) out += compose(" (step {})", *whole.step);
  return out;
}

// Weights and states in folders of their own, side by side, are two halves of one save.
std::optional<std::string> halves(const std::vector<Whole>& all) {
  for (const Whole& weights : all)
    for (const Whole& states : all)
      if (weights.has_weights && !weights.has_states && states.has_states && !states.has_weights &&
          fs::path(weights.path).parent_path() == fs::path(states.path).parent_path())
        return compose("{} holds the weights, {} the optimizer's states: name the one you want",
                       printable(weights.path, 1000), printable(states.path, 1000));
  return std::nullopt;
}

// From weights alone nothing resumes: the newest that has states comes first.
std::string advice(const std::vector<Whole>& all) {
  if (all.empty()) return "name one of them";
  if (auto two = halves(all)) return *std::move(two);
  std::vector<const Whole*> any;
  std::vector<const Whole*> resumable;
  for (const Whole& whole : all) {
    any.push_back(&whole);
    if (whole.has_states) resumable.push_back(&whole);
  }
  const Whole& newest = *latest(any);
  if (resumable.empty() || newest.has_states)
    return (is_newest(newest) ? "the newest that is whole: " : "one that is whole: ") +
           said(newest);
  return compose(
      "the newest that is whole and has an optimizer's states: {}; {} is newer, but "
      "holds weights alone",
      said(*latest(resumable)), said(newest));
}

// "9, 10, 11" with the first ones left out.
std::string last_names(const std::vector<const Found*>& found, std::size_t most) {
  const std::size_t first = found.size() > most ? found.size() - most : 0;
  std::string out = first > 0 ? "..." : "";
  for (std::size_t i = first; i < found.size(); ++i)
    out += (out.empty() ? "" : ", ") + printable(found[i]->name, 100);
  return out;
}

std::string listed(const std::vector<Found>& found) {
  std::map<std::string_view, std::vector<const Found*>> by_format;
  for (const Found& one : found) by_format[one.format->name()].push_back(&one);
  if (by_format.size() == 1) return last_names(by_format.begin()->second, 6);
  std::string out;
  for (const auto& [format, of_it] : by_format)
    out += compose("{}{} {} ({})", (out.empty() ? "" : "; "), count_text(of_it.size()), format,
                   last_names(of_it, 3));
  return out;
}

// A run's saves are called alike; one that died may be of another format than the others.
bool of_one_run(const std::vector<Found>& found) {
  const std::string name = formats::without_numbers(found[0].name);
  return std::ranges::all_of(found, [&](const Found& one) {
    return one.format == found[0].format || formats::without_numbers(one.name) == name;
  });
}

// Of several runs, or of a run that lays weights down apart: the only one that has states, and of
// it the newest that is whole.
std::optional<std::string> only_run_with_states(const std::vector<Found>& found,
                                                const fs::path& above) {
  std::map<std::pair<std::string_view, std::string>, std::vector<Whole>> runs;
  std::size_t looks = 0;
  for (std::size_t i = found.size(); i-- > 0 && looks < kMostDescribed;) {
    const Found& one = found[i];
    auto& run = runs[{one.format->name(), formats::without_numbers(one.name)}];
    if (!run.empty()) continue;
    ++looks;
    if (auto whole = described(one, above)) run.push_back(std::move(*whole));
  }
  const Whole* only = nullptr;
  for (const auto& [name, wholes] : runs) {
    if (wholes.empty() || !wholes.front().has_states) continue;
    if (only != nullptr) return std::nullopt;
    only = &wholes.front();
  }
  if (only == nullptr) return std::nullopt;
  return "the newest that is whole and has an optimizer's states: " + said(*only);
}

// The folders that the checkpoint at `path` lies in: what is wrong with it is wrong with them.
std::set<fs::path> own_folders(const fs::path& path, const Tree& tree) {
  std::set<fs::path> own = {path};
  const auto here = formats::describe(tree);
  if (!here) return own;
  for (const auto& file : (*here)->catalog().files)
    own.insert((path / *fs::path(file.name).begin()).lexically_normal());
  return own;
}

// The folders of `folder` on the disk, the last in natural order first.
std::vector<fs::path> folders_on_disk(const fs::path& folder) {
  std::vector<fs::path> folders;
  std::error_code code;
  fs::directory_iterator at(folder, code);
  for (const fs::directory_iterator end; !code && at != end; at.increment(code)) {
    std::error_code ignored;
    const bool hidden = at->path().filename().string().starts_with('.');
    if (!hidden && at->is_directory(ignored)) folders.push_back(at->path());
    if (folders.size() == kMostNeighbours) break;
  }
  std::ranges::sort(folders, [](const fs::path& a, const fs::path& b) {
    return natural_less(b.filename().string(), a.filename().string());
  });
  return folders;
}

}  // namespace

std::optional<Error> checkpoints_below(const std::string& path, const Tree& tree) {
  std::vector<Found> found;
  std::size_t looks = 0;
  find_below(tree, "", kLevels, looks, found);
  if (found.empty()) return std::nullopt;
  std::vector<Whole> wholes;
  const bool comparable = of_one_run(found);
  for (std::size_t i = 0; comparable && i < std::min(found.size(), kMostDescribed); ++i) {
    if (auto whole = described(found[found.size() - 1 - i], trimmed(path)))
      wholes.push_back(std::move(*whole));
  }
  const auto run = comparable ? std::nullopt : only_run_with_states(found, trimmed(path));
  const std::string only = printable((trimmed(path) / found[0].name).string(), 1000);
  const std::string_view half = formats::missing_half(*tree);
  return Error{
      Code::usage,
      compose("{}: no checkpoint itself; {} below it: {}{}", path,
              (found.size() == 1 ? "1 lies" : count_text(found.size()) + " lie"), listed(found),
              half.empty() ? std::string() : compose("; of the whole save {} is missing", half)),
      wholes.empty() && found.size() == 1 ? "name it: " + only : run.value_or(advice(wholes))};
}

std::optional<std::string> newest_of_files(const std::string& path, const Tree& tree) {
  const formats::Format* const format = formats::format_at(*tree);
  if (format == nullptr) return std::nullopt;
  std::vector<std::string> names = format->saves_in(tree);
  const auto alike = [&](const std::string& name) {
    return formats::without_numbers(name) == formats::without_numbers(names.front());
  };
  if (names.empty() || !std::ranges::all_of(names, alike)) return std::nullopt;
  std::ranges::sort(names, natural_less);
  std::vector<Whole> wholes;
  for (std::size_t i = names.size(); i-- > 0 && wholes.size() < kMostDescribed;) {
    const std::string file = (trimmed(path) / names[i]).string();
    const auto one = libswap::open_tree(file);
    if (!one) continue;
    if (auto whole = described(*one, file)) wholes.push_back(std::move(*whole));
  }
  if (wholes.empty()) return std::nullopt;
  return advice(wholes);
}

std::optional<std::string> newest_below(const std::string& path, const Tree& tree) {
  std::vector<Found> found;
  std::size_t looks = 0;
  find_below(tree, "", 1, looks, found);
  for (std::size_t i = found.size(); i-- > 0;) {
    if (found.size() - i > kMostDescribed) break;
    const auto whole = described(found[i], trimmed(path));
    if (whole && whole->has_states) return said(*whole);
  }
  return std::nullopt;
}

std::optional<std::string> whole_neighbour(const std::string& path) {
  const fs::path here = trimmed(path);
  const auto tree = libswap::open_tree(here);
  if (!tree) return std::nullopt;
  const formats::Format* const format = formats::format_at(**tree);
  const std::set<fs::path> own = own_folders(here, *tree);
  const Likeness likeness(here.filename().string(), *tree);
  for (const fs::path& place : {here, folder_of(here)}) {
    std::vector<Whole> wholes;
    std::size_t looked_at = 0;
    for (const fs::path& folder : folders_on_disk(place)) {
      if (own.contains(folder.lexically_normal())) continue;
      const auto other = libswap::open_tree(folder);
      if (!other || formats::format_at(**other) == nullptr) continue;
      if (looked_at++ == kMostDescribed) break;
      if (format != nullptr && formats::format_at(**other) != format) continue;
      auto whole = described(*other, folder.string());
      if (whole && likeness.is_of_one_model(folder.filename().string(), *other))
        wholes.push_back(std::move(*whole));
    }
    std::vector<const Whole*> any;
    for (const Whole& whole : wholes) any.push_back(&whole);
    if (const Whole* newest = latest(any))
      return std::string(is_newest(*newest) ? "the newest" : "a") +
             " whole checkpoint beside it: " + said(*newest);
  }
  return std::nullopt;
}

}  // namespace ebb::tools
