#include "ebb/formats/deepspeed/names.h"

#include <algorithm>
#include <charconv>
#include <vector>

#include "ebb/formats/catalog/part_of_save.h"
#include "ebb/formats/core/json_text.h"
#include "ebb/formats/core/number_text.h"

namespace ebb::formats::deepspeed {
namespace {

constexpr std::uint64_t kMaxTag = 4096;

bool take(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

bool take_number(std::string_view& text, std::uint32_t& into) {
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), into);
  if (error != std::errc{} || stop == text.data()) return false;
  text.remove_prefix(static_cast<std::size_t>(stop - text.data()));
  return true;
}

// The tag's folder with its '/', "" for the root: from `latest`, or the only one there is.
Result<std::string> find_folder(const SourceTree& tree) {
  std::set<std::string> folders;
  for (const SourceTree::Entry& entry : tree.entries()) {
    if (file_of_checkpoint(entry.name)) folders.emplace(folder_of(entry.name));
  }
  if (tree.find("latest") != nullptr) {
    EBB_TRY_ASSIGN(const std::string tag, read_latest(tree, "latest"));
    if (folders.contains(tag + "/")) return tag + "/";
    return refused(tree, Code::incomplete,
                   "latest names " + json_string(tag) + ", which holds no checkpoint");
  }
  if (folders.size() == 1) return *folders.begin();
  return no_latest(tree, "latest", folders);
}

// What follows "layer_": of a pipeline "03-model_01-model_states.pt", without the tensor-parallel
// rank where there is one; of experts "0_expert_2_mp_rank_00_model_states.pt".
std::optional<FileName> name_of_layer(std::string_view file) {
  FileName name;
  name.kind = FileName::Kind::layer;
  if (!take_number(file, name.layer)) return std::nullopt;
  if (take(file, "_expert_")) {
    name.kind = FileName::Kind::expert;
    if (!take_number(file, name.expert) || !take(file, "_mp_rank_") ||
        !take_number(file, name.model_rank) || file != "_model_states.pt")
      return std::nullopt;
    return name;
  }
  if (take(file, "-model_") && !file.starts_with("states") && !take_number(file, name.model_rank))
    return std::nullopt;
  if (file == "-model_states.pt" || file == "states.pt") return name;
  return std::nullopt;
}

// "global_step9" before "global_step10".
bool earlier(std::string_view a, std::string_view b) {
  const auto number = [](std::string_view text) {
    const std::size_t digits = text.find_last_not_of("0123456789/") + 1;
    return text.substr(digits, text.find('/', digits) - digits);
  };
  const std::string_view left = number(a);
  const std::string_view right = number(b);
  return left.size() != right.size() ? left.size() < right.size() : left < right;
}

}  // namespace

Error refused(const SourceTree& tree, Code code, const std::string& why, std::string hint) {
  return Error{code, compose("{}: {}", tree.root(), why), std::move(hint)};
}

Error missing_file(const SourceTree& tree, const std::string& why, const std::string& file) {
  Error error = refused(tree, Code::incomplete, why, std::string(kTogetherHint));
  error.place.file = file;
  return error;
}

Error no_latest(const SourceTree& tree, std::string_view latest,
                const std::set<std::string>& folders) {
  constexpr std::size_t kShown = 8;
  if (folders.empty()) return refused(tree, Code::unsupported, "no DeepSpeed checkpoint is in it");
  std::vector<std::string> names;
  for (const std::string& folder : folders)
    names.push_back(folder.empty() ? "." : folder.substr(0, folder.size() - 1));
  std::ranges::stable_sort(names, earlier);
  std::string list;
  for (std::size_t i = 0; i < names.size() && i < kShown; ++i)
    list += (i == 0 ? "" : ", ") + printable(names[i]);
  if (names.size() > kShown) list += compose(" and {} more", names.size() - kShown);
  const std::string path = compose("{}/{}", tree.root(), names.back());
  return refused(tree, Code::usage,
                 compose("{} folders hold checkpoints, and no file {} says which one is meant: {}",
                         names.size(), latest, list),
                 "name one of them: " + path);
}

// Without the line end an editor may have added.
Result<std::string> read_latest(const SourceTree& tree, std::string_view file) {
  EBB_TRY_ASSIGN(const std::shared_ptr<const ByteSource> source, tree.open(file));
  if (source->size() > kMaxTag)
    return refused(tree, Code::limit,
                   compose("{} has {} bytes; a tag has at most {}", file, source->size(), kMaxTag));
  EBB_TRY_ASSIGN(const ByteVector bytes, read_bytes(*source, 0, source->size(), kMaxTag));
  std::string tag(text_of(bytes));
  while (!tag.empty() && (tag.back() == '\n' || tag.back() == '\r' || tag.back() == ' '))
    tag.pop_back();
  const bool plain =
      !tag.empty() && tag != "." && tag != ".." && std::all_of(tag.begin(), tag.end(), [](char c) {
        return c != '/' && c != '\\' && static_cast<unsigned char>(c) >= 0x20;
      });
  if (plain) return tag;
  return refused(tree, Code::corrupt,
                 compose("{} names {}, which is no folder", file, json_string(tag)));
}

std::string tag_of(const SourceTree& tree, std::string_view folder) {
  std::string_view path = folder.empty() ? tree.root() : folder;
  while (path.ends_with('/')) path.remove_suffix(1);
  const std::string_view last = path.substr(path.rfind('/') + 1);
  return last == "." || last == ".." ? std::string() : std::string(last);
}

std::string_view folder_of(std::string_view path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string_view::npos ? std::string_view{} : path.substr(0, slash + 1);
}

std::optional<FileName> parse_name(std::string_view file) {
  FileName name;
  std::uint32_t number = 0;
  if (take(file, "layer_")) return name_of_layer(file);
  if (take(file, "expp_rank_")) {
    if (!take_number(file, number) || !take(file, "_mp_rank_") ||
        !take_number(file, name.model_rank) || file != "_optim_states.pt")
      return std::nullopt;
    name.kind = FileName::Kind::expert_optimizer;
    name.data_rank = number;
    return name;
  }
  name.bf16 = take(file, "bf16_");
  if (take(file, "zero_pp_rank_")) {
    if (!take_number(file, number) || !take(file, "_")) return std::nullopt;
    name.data_rank = number;
  }
  if (!take(file, "mp_rank_") || !take_number(file, name.model_rank)) return std::nullopt;
  take(file, "_");  // old releases left it out
  if (file == "model_states.pt") return name;
  name.kind = FileName::Kind::optimizer;
  if (file == "optim_states.pt" && name.data_rank) return name;
  return std::nullopt;
}

std::optional<FileName> file_of_checkpoint(std::string_view path) {
  const std::string_view folder = folder_of(path);
  if (std::ranges::count(folder, '/') > 1) return std::nullopt;
  return parse_name(path.substr(folder.size()));
}

std::string file_of_rank(std::string_view file, std::uint32_t rank) {
  constexpr std::string_view kRank = "zero_pp_rank_";
  const std::size_t number = file.find(kRank, folder_of(file).size());
  if (number == std::string_view::npos) return std::string(file);
  const std::size_t end = file.find('_', number + kRank.size());
  return std::string(file.substr(0, number + kRank.size())) + std::to_string(rank) +
         std::string(file.substr(end));
}

std::string file_of_model_rank(std::string_view file, std::uint32_t model_rank) {
  constexpr std::string_view kRank = "mp_rank_";
  const std::size_t number = file.find(kRank, folder_of(file).size());
  if (number == std::string_view::npos) return std::string(file);
  const std::size_t end = file.find_first_not_of("0123456789", number + kRank.size());
  return std::string(file.substr(0, number + kRank.size())) + zero_padded(model_rank, 2) +
         std::string(file.substr(std::min(end, file.size())));
}

namespace {

// The files of one folder, one after the other.
class Sorter {
 public:
  Sorter(const SourceTree& tree, Files& files) : tree_(tree), files_(files) {}

  Result<> add(const std::string& path, const FileName& name) {
    switch (name.kind) {
      case FileName::Kind::layer:
        return keep(files_.layers, {name.layer, name.model_rank}, path);
      case FileName::Kind::expert:
        if (name.model_rank != 0) return folded(path);
        return keep(files_.experts, {name.layer, name.expert}, path);
      case FileName::Kind::expert_optimizer:
        if (name.model_rank != 0) return folded(path);
        return keep(files_.expert_optimizers, *name.data_rank, path);
      default:
        return add_of_rank(path, name);
    }
  }

 private:
  template <typename Key>
  Result<> keep(std::map<Key, std::string>& files, Key key, const std::string& path) {
    const auto [place, fresh] = files.emplace(key, path);
    if (fresh) return {};
    return refused(tree_, Code::layout,
                   compose("two files for one rank: {} and {}", place->second, path));
  }

  Error folded(const std::string& path) const {
    return refused(
        tree_, Code::unsupported,
        compose("{}: experts cut over tensor-parallel ranks are not read by this version", path),
        "DeepSpeed's ds_to_universal.py makes a universal checkpoint of those that it "
        "knows, which is read");
  }

  Result<> add_of_rank(const std::string& path, const FileName& name) {
    if (name.model_rank >= kMaxModelRanks)
      return refused(tree_, Code::limit,
                     compose("{}: model-parallel rank {}; the limit is {}", path, name.model_rank,
                             kMaxModelRanks));
    if (files_.of_model_ranks.size() <= name.model_rank)
      files_.of_model_ranks.resize(name.model_rank + 1);
    RankFiles& files = files_.of_model_ranks[name.model_rank];
    const bool model = name.kind == FileName::Kind::model;
    EBB_TRY(keep(model ? files.model : files.optimizer, name.data_rank.value_or(0), path));
    if (model) return {};
    if (!first_optimizer_) first_optimizer_ = name;
    if (first_optimizer_->bf16 == name.bf16) return {};
    return refused(
        tree_, Code::layout,
        compose("{}: optimizer files with and without \"bf16_\": two saves in one folder",
                path.substr(files_.folder.size())));
  }

  static constexpr std::uint32_t kMaxModelRanks = 1 << 14;
  const SourceTree& tree_;
  Files& files_;
  std::optional<FileName> first_optimizer_;
};

bool is_stage3(const std::string& model_file) {
  return parse_name(std::string_view(model_file).substr(folder_of(model_file).size()))
      ->data_rank.has_value();
}

}  // namespace

Result<Files> find_files(const SourceTree& tree) {
  Files files;
  EBB_TRY_ASSIGN(files.folder, find_folder(tree));
  files.tag = tag_of(tree, files.folder);
  files.of_model_ranks.resize(1);
  Sorter sorter(tree, files);
  for (const SourceTree::Entry& entry : tree.entries()) {
    if (folder_of(entry.name) != files.folder) continue;
    const auto name = parse_name(std::string_view(entry.name).substr(files.folder.size()));
    if (name) EBB_TRY(sorter.add(entry.name, *name));
  }
  const auto has_model = [](const RankFiles& rank) { return !rank.model.empty(); };
  if (std::ranges::none_of(files.of_model_ranks, has_model))
    return refused(tree, Code::incomplete,
                   files.tag + ": no model_states.pt file, which rank 0 writes",
                   "a checkpoint is the folder with the files of all ranks, some of which may lie "
                   "on another node; ckpt-inspect --raw shows what one file holds");
  const auto without = [](const RankFiles& rank) {
    return rank.optimizer.empty() &&
           std::ranges::any_of(rank.model, [](const auto& file) { return is_stage3(file.second); });
  };
  if (std::ranges::any_of(files.of_model_ranks, without)) return no_optimizer(tree, files);
  return files;
}

Error no_optimizer(const SourceTree& tree, const Files& files) {
  const auto stage3 = [](const RankFiles& rank) {
    return !rank.model.empty() && is_stage3(rank.model.rbegin()->second);
  };
  return refused(
      tree, Code::incomplete,
      compose("{}: no optim_states.pt file, which holds ZeRO{}", files.tag,
              std::ranges::any_of(files.of_model_ranks, stage3) ? "-3's weights"
                                                                : "'s master weights and states"),
      "bring the files of all ranks together, or use the checkpoint before this one");
}

}  // namespace ebb::formats::deepspeed
