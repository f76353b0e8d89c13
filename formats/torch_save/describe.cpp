#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <unordered_map>

#include "ebb/formats/catalog/key_path.h"
#include "ebb/formats/catalog/known_files.h"
#include "ebb/formats/catalog/part_of_save.h"
#include "ebb/formats/catalog/value_alike.h"
#include "ebb/formats/core/json_text.h"
#include "ebb/formats/core/name_table.h"
#include "ebb/formats/json/weight_index.h"
#include "ebb/formats/pickle/known_globals.h"
#include "ebb/formats/state_dict/names.h"
#include "ebb/formats/state_dict/small_tensors.h"
#include "ebb/formats/torch/unread.h"
#include "ebb/formats/torch_save/checkpoint.h"
#include "ebb/formats/torch_save/torch_save.h"

namespace ebb::formats {
namespace torch_save {
namespace {

constexpr std::size_t kMaxDepth = 256;
constexpr std::uint64_t kMaxLeaves = 1u << 24;
constexpr std::uint64_t kPartBytes = 128;  // about what an entry takes beside its path
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
// job keeps of its own is not meant; an optimizer's states are, where no model lies beside them.
std::vector<std::string> candidates(const SourceTree& tree) {
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

// The package torch_checkpointing: <item>_<rank>.pt, and how their tensors are cut in metadata.pkl.
bool is_torch_checkpointing(const SourceTree& tree) {
  constexpr std::uint64_t kLook = 1 << 20;
  if (tree.find("metadata.pkl") == nullptr) return false;
  const auto source = tree.open("metadata.pkl");
  if (!source) return false;
  const std::uint64_t count = std::min((*source)->size(), kLook);
  const auto head = read_bytes(**source, 0, count, kLook);
  return head && text_of(*head).find("nested_path_to_metadata") != std::string_view::npos;
}

// Files of which each rank wrote one are no choice: none of them is the model.
Error several(const SourceTree& tree, const std::vector<std::string>& names) {
  if (is_torch_checkpointing(tree))
    return Error{Code::unsupported,
                 compose("{}: saved by torch_checkpointing, a file <item>_<rank>.pt for each item "
                         "and rank: this version does not read that",
                         tree.root()),
                 "load it with torch_checkpointing and save it with torch.distributed.checkpoint"};
  std::map<std::string, std::pair<PartName, std::size_t>> families;
  for (const std::string& name : names)
    if (const auto part = part_name(name))
      ++families.try_emplace(part->family, *part, 0).first->second.second;
  const auto of_ranks =
      std::ranges::find_if(families, [](const auto& family) { return family.second.second > 1; });
  if (of_ranks == families.end())
    return Error{
        Code::unsupported,
        compose("{}: {} torch.save files, {} and {} among them: which one is meant?", tree.root(),
                names.size(), printable(names.front()), printable(names.back())),
        "name one of the files"};
  const auto& [name, files] = of_ranks->second;
  return Error{Code::unsupported,
               compose("{}: a torch.save file for each rank ({}), with its part of the tensors: "
                       "this version does not join them",
                       tree.root(), family_text(name, files)),
               "save with torch.distributed.checkpoint, or gather the tensors first "
               "(full_tensor(), FULL_STATE_DICT); one file named itself shows one rank's part"};
}

bool is_container(const PickleGraph& graph, PickleId id) {
  return graph.is(id, PickleKind::dict) || graph.is(id, PickleKind::list) ||
         graph.is(id, PickleKind::tuple);
}

// Keys of one dict; false: it was there.
class SeenItems {
 public:
  bool insert(std::string_view word) { return words_.insert(word); }
  bool insert(std::int64_t number) {
    const std::size_t before = numbers_.size();
    numbers_.insert(numbers_.end(), number);  // mostly they ascend
    return numbers_.size() > before;
  }

 private:
  SeenKeys words_;
  std::set<std::int64_t> numbers_;  // no hash table: integers that collide in one are easily found
};

class Describer {
 public:
  explicit Describer(const std::shared_ptr<const SourceTree>& tree)
      : tree_(*tree), checkpoint_(std::make_unique<FileCheckpoint>(tree)) {
    catalog().format = "torch";
  }

  Result<> add(const std::string& name) {
    EBB_TRY_ASSIGN(std::shared_ptr<const ByteSource> source, tree_.open(name));
    EBB_TRY_ASSIGN(const TorchFile file, TorchFile::open(source));
    file_ = &file;
    graph_ = &file.graph();
    where_ = source->name();
    records_.clear();
    if (catalog().producer.empty()) catalog().producer = file.producer();
    checkpoint_->expect(file.records());
    checkpoint_->add_file(name, std::move(source), file.order());
    unknown_.look_at(*graph_, name);
    return walk(graph_->root());
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
    add_notes();
    EBB_TRY(name_contents(catalog(), {}, values_in_tensors(*checkpoint_)));
    leave_unread(catalog(), unread_);
    unknown_.show_in(catalog());
    return std::unique_ptr<Checkpoint>(std::move(checkpoint_));
  }

 private:
  Catalog& catalog() { return checkpoint_->building(); }
  Error bad(Code code, std::string_view why) const {
    std::string message = where_ + ": ";
    if (!path_.empty()) message += json_string(joined(path_)) + ": ";
    return Error{code, message + std::string(why)};
  }

  Result<> walk(PickleId id) {
    if (++leaves_ > kMaxLeaves)
      return bad(Code::limit, "more than 16777216 parts in one object, which is the limit");
    if (path_.size() >= kMaxDepth)
      return bad(Code::limit, "nested deeper than 256 levels, or inside itself");
    EBB_TRY(graph_->charge(kPartBytes + 2 * path_bytes_ + path_.size() * sizeof(PathItem)));
    if (graph_->is(id, PickleKind::dict)) return walk_dict(id);
    const bool sequence = graph_->is(id, PickleKind::list) || graph_->is(id, PickleKind::tuple);
    if (sequence && holds_more(id)) return walk_sequence(id);
    if (is_torch_tensor(*graph_, id)) return add_tensor(id);
    return add_value(id);
  }

  // A list is entered when something in it could hold tensors; [0.9, 0.95] is a value.
  bool holds_more(PickleId id) const {
    const std::span<const PickleId> items = graph_->items(id);
    return std::any_of(items.begin(), items.end(), [&](PickleId item) {
      return is_container(*graph_, item) || is_torch_tensor(*graph_, item);
    });
  }

  Result<> walk_dict(PickleId id) {
    const std::span<const PickleId> entries = graph_->items(id);
    SeenItems seen;
    std::vector<PathItem> items;
    items.reserve(entries.size() / 2);  // `seen` has views of them
    bool numbers = entries.empty();
    for (std::size_t i = 0; i + 1 < entries.size(); i += 2) {
      EBB_TRY_ASSIGN(PathItem item, item_of(entries[i]));
      items.push_back(std::move(item));
      const auto* word = std::get_if<std::string>(&items.back());
      if (!(word ? seen.insert(*word) : seen.insert(std::get<std::int64_t>(items.back()))))
        return bad(Code::corrupt,
                   "a dict holds the key " + json_string(joined({items.back()})) + " twice");
      numbers |= word == nullptr;
    }
    if (numbers) catalog().containers.push_back({path_, Value::Kind::dict});
    for (std::size_t i = 0; i < items.size(); ++i)
      EBB_TRY(enter(std::move(items[i]), entries[2 * i + 1]));
    return {};
  }

  // A key that is neither text nor a whole number is spelled as Python does.
  Result<PathItem> item_of(PickleId key) {
    if (graph_->is(key, PickleKind::string)) return PathItem(std::string(graph_->text(key)));
    if (graph_->is(key, PickleKind::integer)) return PathItem(graph_->integer(key));
    auto value = value_of(*graph_, key, nullptr);
    if (!value) return std::move(value).error().about(json_string(joined(path_)));
    if (first_odd_key_.empty()) first_odd_key_ = key_text(*value);
    ++odd_key_count_;
    return PathItem(key_text(*value));
  }

  Result<> walk_sequence(PickleId id) {
    if (graph_->is(id, PickleKind::tuple))
      catalog().containers.push_back({path_, Value::Kind::tuple});
    const std::span<const PickleId> items = graph_->items(id);
    for (std::size_t i = 0; i < items.size(); ++i)
      EBB_TRY(enter(static_cast<std::int64_t>(i), items[i]));
    return {};
  }

  Result<> enter(PathItem item, PickleId id) {
    const auto* text = std::get_if<std::string>(&item);
    const std::uint64_t bytes = text == nullptr ? sizeof(std::int64_t) : text->size() + 1;
    path_bytes_ += bytes;
    path_.push_back(std::move(item));
    EBB_TRY(walk(id));
    path_.pop_back();
    path_bytes_ -= bytes;
    return {};
  }

  Result<> add_value(PickleId id) {
    auto value = value_of(*graph_, id, nullptr);
    if (!value) return std::move(value).error().about(json_string(joined(path_)));
    if (value->kind == Value::Kind::object) inert_.push_back(value->text);
    catalog().values.push_back({joined(path_), path_, std::move(*value)});
    return {};
  }

  Result<> add_tensor(PickleId id) {
    TensorEntry entry;
    entry.key = joined(path_);
    entry.path = path_;
    entry.name = *entry.key;
    entry.state = "tensor";
    if (auto form = unread_form(*graph_, id)) return add_unread(std::move(entry), std::move(*form));
    auto tensor = torch_tensor(*graph_, id);
    if (!tensor) return std::move(tensor).error().about(json_string(joined(path_)));
    EBB_TRY_ASSIGN(const std::uint32_t record, record_of(*tensor));
    EBB_TRY(take_key(*entry.key));
    entry.dtype = tensor->dtype;
    entry.shape = tensor->shape;
    checkpoint_->add_tensor(std::move(entry), std::move(*tensor), record);
    return {};
  }

  Result<> add_unread(TensorEntry entry, UnreadForm form) {
    EBB_TRY(take_key(*entry.key));
    formats::add_unread(std::move(entry), std::move(form), catalog(), unread_);
    return {};
  }

  Result<> take_key(const std::string& key) {
    const auto [known, fresh] = file_of_key_.emplace(key, catalog().files.back().name);
    if (!fresh && known->second != catalog().files.back().name)
      return bad(Code::corrupt, "is already in " + known->second);
    return {};
  }

  Result<std::uint32_t> record_of(const TorchTensor& tensor) {
    const auto known = records_.find(tensor.storage.key);
    if (known != records_.end() && known->second.bytes >= tensor.storage.bytes) {
      ++sharing_;
      return known->second.number;
    }
    auto record = file_->record_of(tensor);
    if (!record) return std::move(record).error().about(json_string(joined(path_)));
    const Known fresh{checkpoint_->add(std::move(*record)), tensor.storage.bytes};
    records_.insert_or_assign(tensor.storage.key, fresh);
    return fresh.number;
  }

  void add_notes() {
    if (sharing_ > 0)
      catalog().notes.push_back(
          compose("{}{}: each is shown whole", sharing_,
                  (sharing_ == 1 ? " tensor shares its storage with another"
                                 : " tensors share their storage with others")));
    if (odd_key_count_ > 0)
      catalog().notes.push_back(compose(
          "{} keys of dicts are neither text nor whole numbers: they are read as text, {}{}",
          odd_key_count_, json_string(first_odd_key_), odd_key_count_ == 1 ? "" : " and others"));
    if (inert_.empty()) return;
    catalog().notes.push_back(
        inert_.size() == 1
            ? compose("1 value is an object ({}): known by the name of its class only; nothing was "
                      "executed",
                      printable(inert_.front()))
            : compose("{} values are objects ({}, ...): known by the names of their classes only; "
                      "nothing was executed",
                      inert_.size(), printable(inert_.front())));
  }

  struct Known {
    std::uint32_t number = 0;
    std::uint64_t bytes = 0;  // as far as it was checked to reach
  };
  const SourceTree& tree_;
  const TorchFile* file_ = nullptr;     // being read
  const PickleGraph* graph_ = nullptr;  // its
  std::string where_;
  std::unique_ptr<FileCheckpoint> checkpoint_;
  UnknownNames unknown_;
  std::vector<PathItem> path_;
  std::uint64_t path_bytes_ = 0;
  std::unordered_map<std::string, Known> records_;            // of this file, by the storage's key
  std::unordered_map<std::string, std::string> file_of_key_;  // of tensors
  std::vector<UnreadAt> unread_;
  std::vector<std::string> inert_;
  std::string first_odd_key_;  // the first
  std::size_t odd_key_count_ = 0;
  std::size_t sharing_ = 0;
  std::uint64_t leaves_ = 0;
};

}  // namespace
}  // namespace torch_save

bool detect_torch(const SourceTree& tree) {
  return torch_save::index_in(tree) != nullptr || !torch_save::candidates(tree).empty();
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
  const std::vector<std::string> names = torch_save::candidates(*tree);
  if (names.size() != 1) return torch_save::several(*tree, names);
  EBB_TRY(describer.add(names.front()));
  return describer.finish();
}

}  // namespace ebb::formats
