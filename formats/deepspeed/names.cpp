#include "ebb/formats/deepspeed/names.h"

#include <algorithm>
#include <charconv>
#include <vector>

#include "ebb/formats/core/json_text.h"

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

std::string folder_path(const SourceTree& tree, std::string_view folder) {
  if (folder.empty()) return std::string(tree.root());
  return compose("{}/{}", tree.root(), folder.substr(0, folder.size() - 1));
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

Result<Files> find_files(const SourceTree& tree) {
  Files files;
  EBB_TRY_ASSIGN(files.folder, find_folder(tree));
  files.tag = tag_of(tree, files.folder);
  std::optional<FileName> first_optimizer;
  for (const SourceTree::Entry& entry : tree.entries()) {
    if (folder_of(entry.name) != files.folder) continue;
    const std::string_view base = std::string_view(entry.name).substr(files.folder.size());
    const bool other_axis = base.starts_with("layer_") || base.starts_with("expp_rank_");
    const auto name = parse_name(base);
    if (other_axis || (name && name->model_rank != 0))
      return refused(tree, Code::unsupported,
                     compose("a checkpoint with tensor, pipeline or expert parallelism ({}) is not "
                             "read by this version",
                             base),
                     compose("DeepSpeed's ds_to_universal.py --input_folder {} --output_folder "
                             "DIR makes a universal checkpoint of it, which is read",
                             folder_path(tree, files.folder)));
    if (!name) continue;
    auto& of_kind = name->kind == FileName::Kind::model ? files.model : files.optimizer;
    const auto [place, fresh] = of_kind.emplace(name->data_rank.value_or(0), entry.name);
    if (!fresh)
      return refused(tree, Code::layout,
                     compose("two files for one rank: {} and {}", place->second, entry.name));
    if (name->kind == FileName::Kind::model) continue;
    if (!first_optimizer) first_optimizer = name;
    if (first_optimizer->bf16 != name->bf16)
      return refused(
          tree, Code::layout,
          compose("{}: optimizer files with and without \"bf16_\": two saves in one folder", base));
  }
  if (files.model.empty())
    return refused(tree, Code::incomplete, files.tag + ": no model_states.pt file",
                   "a checkpoint is the folder with the files of all ranks; ckpt-inspect --raw "
                   "shows what one file holds");
  const bool stage3 = std::ranges::any_of(files.model, [&](const auto& file) {
    return parse_name(file.second.substr(files.folder.size()))->data_rank.has_value();
  });
  if (files.optimizer.empty() && stage3) return no_optimizer(tree, files);
  return files;
}

Error no_optimizer(const SourceTree& tree, const Files& files) {
  const std::string& last = files.model.rbegin()->second;
  const bool stage3 = parse_name(last.substr(files.folder.size()))->data_rank.has_value();
  return refused(tree, Code::incomplete,
                 compose("{}: no optim_states.pt file, which holds ZeRO{}", files.tag,
                         stage3 ? "-3's weights" : "'s master weights and states"),
                 "bring the files of all ranks together, or use the checkpoint before this one");
}

}  // namespace ebb::formats::deepspeed
