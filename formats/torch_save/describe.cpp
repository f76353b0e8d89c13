#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>

#include "ebb/formats/catalog/key_path.h"
#include "ebb/formats/catalog/known_files.h"
#include "ebb/formats/catalog/part_of_save.h"
#include "ebb/formats/core/json_text.h"
#include "ebb/formats/json/weight_index.h"
#include "ebb/formats/pickle/known_globals.h"
#include "ebb/formats/state_dict/names.h"
#include "ebb/formats/state_dict/small_tensors.h"
#include "ebb/formats/torch_save/open_file.h"
#include "ebb/formats/torch_save/ranks.h"
#include "ebb/formats/torch_save/torch_save.h"
#include "ebb/formats/torch_save/walk.h"

namespace ebb::formats {
namespace torch_save {
namespace {

constexpr std::string_view kSuffixes[] = {".pt", ".pth", ".bin", ".ckpt"};
constexpr std::uint64_t kTarMagicAt = 257;

bool has_suffix(std::string_view name) {
  return std::any_of(std::begin(kSuffixes), std::end(kSuffixes),
                     [&](std::string_view suffix) { return name.ends_with(suffix); });
}

// A zip archive, the old stream, or the tar of torch 0.1.
bool begins_like_torch(const SourceTree& tree, const SourceTree::Entry& entry) {
  const std::uint64_t wanted = std::min<std::uint64_t>(entry.size, kTarMagicAt + 5);
  const auto source = tree.open(entry.name);
  if (!source || wanted < 4) return false;
  const auto head = read_bytes(**source, 0, wanted, wanted);
  if (!head) return false;
  const bool tar = head->size() == wanted && wanted > kTarMagicAt &&
                   text_of(ByteView(*head).subspan(kTarMagicAt)) == "ustar";
  return load_le<std::uint32_t>(*head) == 0x04034b50 || is_legacy_magic(*head) || tar;
}

bool is_of_an_optimizer(const std::string& name) {
  const auto known = known_file(name);
  return known && known->role == BesideEntry::Role::states;
}

// The tree is a file that somebody named, or a folder of one file.
bool is_named_itself(const SourceTree& tree) {
  return tree.root().ends_with(tree.entries().front().name);
}

bool is_a_jobs_own(const SourceTree& tree, const std::string& name) {
  return holds_nothing_trained(compose("{}/{}", tree.root(), name));
}

// The files that could be meant: the only one there is, or those on top that look like it. What a
// job keeps of its own is not meant.
std::vector<std::string> torch_files(const SourceTree& tree) {
  const auto& entries = tree.entries();
  if (entries.size() == 1) {
    const std::string& name = entries.front().name;
    const bool on_top = name.find('/') == std::string::npos;
    const bool meant = is_named_itself(tree) || (on_top && !is_a_jobs_own(tree, name));
    if (meant && (has_suffix(name) || begins_like_torch(tree, entries.front()))) return {name};
    return {};
  }
  std::vector<std::string> names;
  for (const SourceTree::Entry& entry : entries) {
    if (entry.name.find('/') != std::string::npos || !has_suffix(entry.name)) continue;
    if (!is_a_jobs_own(tree, entry.name) && begins_like_torch(tree, entry))
      names.push_back(entry.name);
  }
  return names;
}

// Of several, an optimizer's states are meant where no model lies beside them.
std::vector<std::string> without_states(std::vector<std::string> names) {
  if (!std::ranges::all_of(names, is_of_an_optimizer)) std::erase_if(names, is_of_an_optimizer);
  return names;
}

// pytorch_model.bin.index.json, as transformers writes it beside the files of a model it has cut.
const SourceTree::Entry* index_in(const SourceTree& tree) {
  constexpr std::string_view kEnding = ".index.json";
  for (const SourceTree::Entry& entry : tree.entries()) {
    const std::string_view name = entry.name;
    if (name.ends_with(kEnding) && name.find('/') == std::string_view::npos &&
        has_suffix(name.substr(0, name.size() - kEnding.size())))
      return &entry;
  }
  return nullptr;
}

Result<std::set<std::string>> files_of(const WeightIndex& index, const SourceTree& tree,
                                       const std::string& index_name) {
  std::set<std::string> files;
  std::string missing;
  for (const WeightIndex::Weight& weight : index.weights)
    if (files.insert(weight.file).second && tree.find(weight.file) == nullptr)
      missing += (missing.empty() ? "" : ", ") + weight.file;
  if (missing.empty()) return files;
  return Error{Code::incomplete, compose("{}: missing, though {} says tensors are there: {}",
                                         tree.root(), index_name, missing)};
}

// The first family of which there is more than one file; nullopt: none.
std::optional<std::pair<PartName, std::size_t>> of_several_ranks(
    const std::vector<std::string>& names) {
  std::map<std::string, std::pair<PartName, std::size_t>> families;
  for (const std::string& name : names)
    if (const auto part = part_name(name))
      ++families.try_emplace(part->family, *part, 0).first->second.second;
  for (const auto& [name, family] : families)
    if (family.second > 1) return family;
  return std::nullopt;
}

// Files of which each rank wrote one are no choice: none of them is the model.
Error several(const SourceTree& tree, const std::vector<std::string>& names) {
  const auto of_ranks = of_several_ranks(names);
  if (!of_ranks)
    return Error{
        Code::unsupported,
        compose("{}: {} torch.save files, {} and {} among them: which one is meant?", tree.root(),
                names.size(), printable(names.front()), printable(names.back())),
        "name one of the files"};
  const auto& [name, files] = *of_ranks;
  return Error{Code::unsupported,
               compose("{}: a torch.save file for each rank ({}), with its part of the tensors: "
                       "this version does not join them",
                       tree.root(), family_text(name, files)),
               "save with torch.distributed.checkpoint, or gather the tensors first "
               "(full_tensor(), FULL_STATE_DICT); one file named itself shows one rank's part"};
}

class Describer final : Visitor {
 public:
  explicit Describer(const std::shared_ptr<const SourceTree>& tree)
      : tree_(*tree), checkpoint_(std::make_unique<FileCheckpoint>(tree)) {
    catalog().format = "torch";
  }

  Result<> add(const std::string& name) {
    EBB_TRY_ASSIGN(OpenFile file, OpenFile::open(tree_, name, *checkpoint_, rank_of_file(name)));
    file_ = &file;
    graph_ = &file.graph();
    if (catalog().producer.empty()) catalog().producer = file.producer();
    in_order_ = in_order_ && file.is_in_order();
    unknown_.look_at(*graph_, name);
    EBB_TRY(walk_.run(*graph_, file.where(), {}, *this));
    sharing_ += file.sharing();
    return {};
  }

  // Every key that the index lists must be where it says.
  Result<> check(const WeightIndex& index, const std::string& index_name) const {
    for (const WeightIndex::Weight& weight : index.weights) {
      const auto found = file_of_key_.find(weight.key);
      if (found == file_of_key_.end() || found->second != weight.file)
        return Error{Code::incomplete,
                     compose("{}/{}: tensor {} should lie in {}, but that file does not hold it",
                             tree_.root(), index_name, json_string(weight.key), weight.file)};
    }
    return {};
  }

  Result<std::unique_ptr<Checkpoint>> finish() {
    checkpoint_->finish();
    const std::size_t files = catalog().files.size();
    catalog().partition =
        files == 1 ? "whole tensors in one file" : compose("whole tensors in {} files", files);
    if (files == 1 && in_order_) catalog().listed = ListOrder::of_the_model;
    add_notes();
    EBB_TRY(name_contents(catalog(), {}, values_in_tensors(*checkpoint_)));
    leave_unread(catalog(), unread_);
    unfold(catalog(), std::move(parts_));
    note_composites(catalog());
    unknown_.show_in(catalog());
    return std::unique_ptr<Checkpoint>(std::move(checkpoint_));
  }

 private:
  Catalog& catalog() { return checkpoint_->building(); }
  Result<> value(const std::vector<PathItem>& path, Value value) override {
    catalog().values.push_back({joined(path), path, std::move(value)});
    return {};
  }

  Result<> container(const std::vector<PathItem>& path, Value::Kind kind) override {
    catalog().containers.push_back({path, kind});
    return {};
  }

  Result<> tensor(const std::vector<PathItem>& path, PickleId id) override {
    TensorEntry entry = entry_at(path);
    const std::string key = json_string(*entry.key);
    EBB_TRY(take_key(*entry.key));
    if (is_sharded_tensor(*graph_, id)) return add_sharded(std::move(entry), id);
    auto composite = composite_of(*graph_, id);
    if (!composite) return std::move(composite).error().about(key);
    if (*composite) return add_composite(std::move(entry), std::move(**composite));
    if (auto form = unread_form(*graph_, id)) return add_unread(std::move(entry), std::move(*form));
    auto tensor = torch_tensor(*graph_, id);
    if (!tensor) return std::move(tensor).error().about(key);
    return add_read(std::move(entry), std::move(*tensor));
  }

  Result<> add_read(TensorEntry entry, TorchTensor tensor) {
    auto record = file_->number_of(tensor);
    if (!record) return std::move(record).error().about(json_string(*entry.key));
    entry.dtype = tensor.dtype;
    entry.shape = tensor.shape;
    checkpoint_->add_tensor(std::move(entry), std::move(tensor), *record);
    return {};
  }

  Result<> add_composite(TensorEntry entry, TorchComposite made) {
    CompositeJoin join(made.whole.shape);
    Box box = whole(made.whole.shape);
    auto piece = file_->piece_of(std::move(made), std::move(box), Rank{});
    if (!piece) return std::move(piece).error().about(json_string(*entry.key));
    join.add(std::move(*piece));
    std::vector<TensorEntry> parts = join.take();
    stand_for(parts, entry);
    entry.chunks = parts.front().chunks;
    parts_.emplace(entry.part_of->whole.get(), std::move(parts));
    catalog().tensors.push_back(std::move(entry));
    return {};
  }

  // One rank's part, unless that is all there is.
  Result<> add_sharded(TensorEntry entry, PickleId id) {
    auto read = file_->sharded().part_of(id);
    if (!read) return std::move(read).error().about(json_string(*entry.key));
    if (auto* form = std::get_if<UnreadForm>(&*read))
      return add_unread(std::move(entry), std::move(*form));
    ShardedPart& part = std::get<ShardedPart>(*read);
    if (!part.is_whole()) return add_unread(std::move(entry), form_of_part(part));
    TensorShard& shard = part.shards.front();
    if (shard.made) return add_composite(std::move(entry), std::move(*shard.made));
    return add_read(std::move(entry), std::move(shard.tensor));
  }

  Result<> add_unread(TensorEntry entry, UnreadForm form) {
    EBB_TRY(take_key(*entry.key));
    formats::add_unread(std::move(entry), std::move(form), catalog(), unread_);
    return {};
  }

  Result<> take_key(const std::string& key) {
    const auto [known, fresh] = file_of_key_.emplace(key, catalog().files.back().name);
    if (!fresh && known->second != catalog().files.back().name)
      return Error{Code::corrupt, compose("{}: {}: is already in {}", file_->where(),
                                          json_string(key), known->second)};
    return {};
  }

  void add_notes() {
    if (sharing_ > 0)
      catalog().notes.push_back(
          compose("{}{}: each is shown whole", sharing_,
                  (sharing_ == 1 ? " tensor shares its storage with another"
                                 : " tensors share their storage with others")));
    walk_.add_notes(catalog());
  }

  const SourceTree& tree_;
  OpenFile* file_ = nullptr;            // being read
  const PickleGraph* graph_ = nullptr;  // its
  std::unique_ptr<FileCheckpoint> checkpoint_;
  StateWalk walk_;
  UnknownNames unknown_;
  std::unordered_map<std::string, std::string> file_of_key_;  // of tensors
  std::vector<UnreadAt> unread_;
  PartsOf parts_;
  std::size_t sharing_ = 0;
  bool in_order_ = true;
};

// Files of ranks, read as one; nullptr: they are none.
Result<std::unique_ptr<Checkpoint>> joined_ranks(const std::shared_ptr<const SourceTree>& tree,
                                                 const std::vector<std::string>& files) {
  auto of_ranks = rank_families(*tree, files);
  // What else lies there, and holds no parts, lies beside.
  const bool others = std::ranges::any_of(
      files, [](const std::string& file) { return !rank_of_file(file).has_value(); });
  if (others || !are_one_save(of_ranks))
    std::erase_if(of_ranks, [&](const RankFamily& one) { return !names_shards(*tree, one); });
  if (!of_ranks.empty()) {
    EBB_TRY(check_one_save(*tree, of_ranks));
    return describe_ranks(tree, of_ranks);
  }
  const auto families = numbered_families(files);
  if (families.empty() || !check_one_save(*tree, families)) return std::unique_ptr<Checkpoint>();
  auto joined = describe_ranks(tree, families);
  if (!joined && joined.error().code != Code::incomplete) return std::unique_ptr<Checkpoint>();
  return joined;
}

}  // namespace
}  // namespace torch_save

std::vector<std::string> torch_saves_in(const std::shared_ptr<const SourceTree>& tree) {
  if (torch_save::index_in(*tree) != nullptr) return {};
  auto names = torch_save::torch_files(*tree);
  if (names.empty() || torch_save::is_named_itself(*tree)) return {};
  const auto joined = torch_save::joined_ranks(tree, names);
  if (!joined || *joined != nullptr) return {};
  names = torch_save::without_states(std::move(names));
  // Composer's latest-rank0.pt is a link to one of the others.
  std::erase_if(names, [](const std::string& name) { return name.starts_with("latest"); });
  if (names.size() < 2 || torch_save::of_several_ranks(names)) return {};
  return names;
}

bool detect_torch(const SourceTree& tree) {
  return torch_save::index_in(tree) != nullptr || !torch_save::torch_files(tree).empty();
}

Result<std::unique_ptr<Checkpoint>> describe_torch(std::shared_ptr<const SourceTree> tree) {
  torch_save::Describer describer(tree);
  if (const SourceTree::Entry* entry = torch_save::index_in(*tree)) {
    EBB_TRY_ASSIGN(const auto source, tree->open(entry->name));
    EBB_TRY_ASSIGN(const WeightIndex index, read_weight_index(*source));
    EBB_TRY_ASSIGN(const std::set<std::string> files,
                   torch_save::files_of(index, *tree, entry->name));
    for (const std::string& name : files) EBB_TRY(describer.add(name));
    EBB_TRY(describer.check(index, entry->name));
    return describer.finish();
  }
  const std::vector<std::string> files = torch_save::torch_files(*tree);
  if (!files.empty() && !torch_save::is_named_itself(*tree)) {
    EBB_TRY_ASSIGN(auto joined, torch_save::joined_ranks(tree, files));
    if (joined != nullptr) return joined;
  }
  const std::vector<std::string> names = torch_save::without_states(files);
  if (names.size() != 1) return torch_save::several(*tree, names);
  EBB_TRY(describer.add(names.front()));
  return describer.finish();
}

}  // namespace ebb::formats
