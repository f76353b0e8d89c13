#include "ebb/formats/megatron/folder.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>

#include "ebb/formats/core/json_text.h"
#include "ebb/formats/core/number_text.h"
#include "ebb/formats/core/units.h"

namespace ebb::formats::megatron {
namespace {

constexpr std::uint64_t kMaxTracker = 64;
constexpr std::uint64_t kMaxLook = 64 * MiB;  // of .metadata
constexpr std::uint64_t kPiece = 1 * MiB;
constexpr std::string_view kRelease = "release";

std::string path_in(const std::string& folder, std::string_view name) {
  return folder.empty() ? std::string(name) : compose("{}/{}", folder, name);
}

std::string at_root(const SourceTree& tree, std::string_view name) {
  return compose("{}/{}", tree.root(), name);
}

Result<std::string> tracked_folder(const SourceTree& tree) {
  EBB_TRY_ASSIGN(const std::shared_ptr<const ByteSource> source, tree.open(kTracker));
  if (source->size() > kMaxTracker)
    return Error{Code::limit, compose("{}: {} bytes; the limit for an iteration is {}",
                                      at_root(tree, kTracker), source->size(), kMaxTracker)};
  EBB_TRY_ASSIGN(const ByteVector bytes, read_bytes(*source, 0, source->size(), kMaxTracker));
  std::string_view text = text_of(bytes);
  constexpr std::string_view kSpace = " \t\r\n";
  text.remove_prefix(std::min(text.find_first_not_of(kSpace), text.size()));
  text.remove_suffix(text.size() - (text.find_last_not_of(kSpace) + 1));
  if (text == kRelease) return std::string(kRelease);
  const auto iteration = parse_number<std::int64_t>(text);
  if (!iteration || *iteration < 0)
    return Error{Code::corrupt,
                 compose("{}:0: names no iteration: it says '{}', due is a number or 'release'",
                         at_root(tree, kTracker), printable(text)),
                 "name the folder of the iteration itself"};
  return iteration_folder(*iteration);
}

bool has_folder(const SourceTree& tree, const std::string& folder) {
  const std::string prefix = folder + "/";
  return std::any_of(tree.entries().begin(), tree.entries().end(),
                     [&](const auto& entry) { return entry.name.starts_with(prefix); });
}

bool is_iteration(std::string_view folder) {
  return folder.starts_with("iter_") || folder == kRelease;
}

// The iterations that lie there, newest last.
std::vector<std::string> iterations(const SourceTree& tree) {
  std::vector<std::string> folders;
  for (const SourceTree::Entry& entry : tree.entries()) {
    std::string folder = entry.name.substr(0, entry.name.find('/'));
    if (folder.size() == entry.name.size() || !is_iteration(folder)) continue;
    if (folders.empty() || folders.back() != folder) folders.push_back(std::move(folder));
  }
  return folders;
}

bool says_sharded_backend(const SourceTree& tree, const std::string& folder) {
  const std::string name = path_in(folder, kConfig);
  if (tree.find(name) == nullptr) return false;
  const auto source = tree.open(name);
  if (!source || (*source)->size() > kMaxConfig) return false;
  const auto bytes = read_bytes(**source, 0, (*source)->size(), kMaxConfig);
  return bytes && text_of(*bytes).find("\"sharded_backend\"") != std::string_view::npos;
}

// For a word with a '/' in it, which is rare in keys: finding that one is fastest.
bool holds_slashed(ByteView bytes, std::string_view word) {
  const std::string_view text = text_of(bytes);
  const std::size_t slash = word.find('/');
  for (std::size_t at = text.find('/'); at != std::string_view::npos; at = text.find('/', at + 1))
    if (at >= slash && text.substr(at - slash, word.size()) == word) return true;
  return false;
}

// Skips most of the bytes, which is why it is not find().
bool holds(ByteView bytes, std::string_view word) {
  const std::string_view text = text_of(bytes);
  const std::boyer_moore_horspool_searcher searcher(word.begin(), word.end());
  return std::search(text.begin(), text.end(), searcher) != text.end();
}

// Which kind the keys in .metadata belong to: they stand in the pickle as they are.
Kind kind_of_keys(const SourceTree& tree, const std::string& folder) {
  constexpr std::string_view kObject = "common_state/shard_";
  constexpr std::string_view kMeta = "param_to_group_meta";
  const std::string name = path_in(folder, ".metadata");
  if (tree.find(name) == nullptr) return Kind::none;
  const auto source = tree.open(name);
  if (!source) return Kind::none;
  const std::uint64_t end = std::min((*source)->size(), kMaxLook);
  Kind kind = Kind::none;
  ByteVector bytes(static_cast<std::size_t>(std::min(kPiece, end)));
  for (std::uint64_t at = 0; at < end;) {
    const auto part = std::span(bytes).first(std::min<std::uint64_t>(bytes.size(), end - at));
    if (!(*source)->read(at, part)) return Kind::none;
    if (holds_slashed(part, kObject)) return Kind::torch_dist;
    if (holds(part, kMeta)) kind = Kind::fsdp;
    if (at + part.size() == end) break;
    at += part.size() - kMeta.size();  // a word may lie across two passes
  }
  return kind;
}

// Both formats ask, and a large index takes a while to look through.
Kind kept_kind_of_keys(const SourceTree& tree, const std::string& folder) {
  const auto kind = tree.decoded("megatron kind of " + folder, sizeof(Kind), [&] {
    return Result<SourceTree::Decoded>(std::make_shared<const Kind>(kind_of_keys(tree, folder)));
  });
  return kind ? *static_cast<const Kind*>(kind->get()) : Kind::none;
}

// mp_rank_00/model_optim_rng.pt; with pipeline ranks mp_rank_00_001/.
bool has_rank_folders(const SourceTree& tree, const std::string& folder) {
  const std::string prefix = path_in(folder, kRankFolder);
  return std::ranges::any_of(tree.entries(), [&](const auto& entry) {
    return entry.name.starts_with(prefix) && entry.name.ends_with("/model_optim_rng.pt");
  });
}

// The last component of the folder's path.
std::string_view name_of_folder(const SourceTree& tree, std::string_view folder) {
  std::string_view path = folder.empty() ? tree.root() : folder;
  while (path.ends_with('/')) path.remove_suffix(1);
  return path.substr(path.rfind('/') + 1);
}

Kind kind_of(const SourceTree& tree, const std::string& folder) {
  if (has_rank_folders(tree, folder)) return Kind::by_rank;
  if (tree.find(path_in(folder, kConfig)) != nullptr && says_sharded_backend(tree, folder))
    return Kind::torch_dist;
  const bool dcp = std::any_of(tree.entries().begin(), tree.entries().end(),
                               [](const auto& entry) { return entry.name.ends_with(".distcp"); });
  // common.pt is written first: alone in an iteration's folder it is what a save that died left.
  const bool ours = dcp || is_iteration(name_of_folder(tree, folder));
  if (ours && tree.find(path_in(folder, kCommon)) != nullptr) return Kind::torch_dist;
  return kept_kind_of_keys(tree, folder);
}

bool holds_dcp(const SourceTree& tree, const std::string& folder) {
  const std::string prefix = folder + "/";
  return std::any_of(tree.entries().begin(), tree.entries().end(), [&](const auto& entry) {
    return entry.name.starts_with(prefix) &&
           (entry.name.ends_with(".distcp") || entry.name.ends_with("/.metadata"));
  });
}

// The last one whose save finished: metadata.json is written last. Where none is, the last.
std::string newest_finished(const SourceTree& tree, const std::vector<std::string>& folders) {
  const auto finished = std::find_if(
      folders.rbegin(), folders.rend(),
      [&](const std::string& folder) { return tree.find(path_in(folder, kConfig)) != nullptr; });
  return finished == folders.rend() ? folders.back() : *finished;
}

// NeMo keeps what Megatron saved in a folder beside its own context/.
std::optional<Place> place_in_nemos(const SourceTree& tree) {
  for (const std::string_view folder : {"weights", "model_weights"}) {
    const std::string name(folder);
    if (!holds_dcp(tree, name) && !says_sharded_backend(tree, name)) continue;
    if (const Kind kind = kind_of(tree, name); kind != Kind::none) return Place{kind, name};
  }
  return std::nullopt;
}

}  // namespace

Place look_for_place(const SourceTree& tree) {
  const auto folders = iterations(tree);
  if (tree.find(kTracker) == nullptr) {
    if (const Kind kind = kind_of(tree, ""); kind != Kind::none) return {kind, ""};
    for (const std::string& folder : folders)
      if (holds_dcp(tree, folder)) return {Kind::torch_dist, ""};
    for (const std::string& folder : folders)
      if (has_rank_folders(tree, folder)) return {Kind::by_rank, folder};
    return place_in_nemos(tree).value_or(Place{});
  }
  if (folders.empty()) return {};  // others write a tracker of that name, too: verl
  const auto folder = tracked_folder(tree);
  if (!folder || !has_folder(tree, *folder)) return {Kind::torch_dist, ""};
  Kind kind = kind_of(tree, *folder);
  // Saved without an optimizer, fsdp_dtensor has no key of its own; torch_dist always has.
  const bool index = tree.find(path_in(*folder, ".metadata")) != nullptr;
  if (kind == Kind::none) kind = index ? Kind::fsdp : Kind::torch_dist;
  return {kind, *folder};
}

Result<Place> find_place(const SourceTree& tree) {
  if (tree.find(kTracker) != nullptr) {
    EBB_TRY_ASSIGN(const std::string folder, tracked_folder(tree));
    if (!has_folder(tree, folder))
      return Error{Code::incomplete,
                   compose("{}:0: names {}, but there is no such folder, or it is empty",
                           at_root(tree, kTracker), folder),
                   "ckpt-inspect on the folder of an older iteration"};
  } else if (const auto folders = iterations(tree); !folders.empty() &&
                                                    look_for_place(tree).folder.empty() &&
                                                    kind_of(tree, "") == Kind::none) {
    return Error{
        Code::incomplete,
        at_root(tree, kTracker) + " is missing: which of the iterations is whole is not known",
        "name one: " + at_root(tree, newest_finished(tree, folders))};
  }
  return look_for_place(tree);
}

std::string iteration_folder(std::int64_t iteration) {
  return "iter_" + zero_padded(static_cast<std::uint64_t>(iteration), 7);
}

std::string iterations_that_differ(const Catalog& catalog) {
  for (const ValueEntry& entry : catalog.values) {
    if (entry.key != "folder" || !catalog.step ||
        entry.value.text == iteration_folder(*catalog.step))
      continue;
    if (entry.value.text.starts_with("iter_"))
      return compose(
          "the folder is {}, but what is stored is of iteration {}: renamed, or parts of two saves",
          printable(entry.value.text), *catalog.step);
  }
  return {};
}

}  // namespace ebb::formats::megatron
