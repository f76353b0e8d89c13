#include <algorithm>
#include <set>
#include <unordered_map>

#include "ebb/formats/catalog/key_path.h"
#include "ebb/formats/core/json_text.h"
#include "ebb/formats/core/name_table.h"
#include "ebb/formats/core/refuse.h"
#include "ebb/formats/pickle/calls.h"
#include "ebb/formats/state_dict/names.h"
#include "ebb/formats/torch_save/checkpoint.h"
#include "ebb/formats/torch_save/torch_save.h"

namespace ebb::formats {
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

// The files that could be meant: the only one there is, or those on top that look like it.
std::vector<std::string> candidates(const SourceTree& tree) {
  std::vector<std::string> names;
  const bool alone = tree.entries().size() == 1;
  for (const SourceTree::Entry& entry : tree.entries()) {
    if (entry.name.find('/') != std::string::npos) continue;
    const bool named = has_suffix(entry.name);
    if (alone ? named || begins_like_torch(tree, entry) : named && begins_like_torch(tree, entry))
      names.push_back(entry.name);
  }
  return names;
}

bool is_container(const PickleGraph& graph, PickleId id) {
  return graph.is(id, PickleKind::dict) || graph.is(id, PickleKind::list) ||
         graph.is(id, PickleKind::tuple);
}

// Whole numbers and words lead somewhere; other keys have no place in a path.
bool is_step(const PickleGraph& graph, PickleId key) {
  return graph.is(key, PickleKind::string) || graph.is(key, PickleKind::integer);
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
  Describer(const TorchFile& file, std::string name, std::shared_ptr<const SourceTree> tree,
            std::shared_ptr<const ByteSource> source)
      : file_(file),
        graph_(file.graph()),
        where_(source->name()),
        checkpoint_(std::make_unique<TorchCheckpoint>(std::move(tree), source, file.order())) {
    catalog().format = "torch";
    catalog().producer = file.producer();
    catalog().partition = "whole tensors in one file";
    catalog().files.push_back({std::move(name), source->size(), std::nullopt});
    checkpoint_->expect(file.records());
    records_.reserve(file.records());
  }

  Result<std::unique_ptr<Checkpoint>> run() {
    EBB_TRY(refuse_calls(graph_));
    EBB_TRY(walk(graph_.root()));
    checkpoint_->finish();
    add_notes();
    EBB_TRY(name_contents(catalog()));
    return std::unique_ptr<Checkpoint>(std::move(checkpoint_));
  }

 private:
  Catalog& catalog() { return checkpoint_->building(); }
  Error bad(Code code, std::string_view why) const {
    std::string message = where_ + ": ";
    if (!path_.empty()) message += json_string(joined(path_)) + ": ";
    return Error{code, message + std::string(why), {}};
  }

  Result<> walk(PickleId id) {
    if (++leaves_ > kMaxLeaves)
      return bad(Code::limit, "more than 16777216 parts in one object, which is the limit");
    if (path_.size() >= kMaxDepth)
      return bad(Code::limit, "nested deeper than 256 levels, or inside itself");
    EBB_TRY(graph_.charge(kPartBytes + 2 * path_bytes_ + path_.size() * sizeof(PathItem)));
    if (graph_.is(id, PickleKind::dict)) return walk_dict(id);
    const bool sequence = graph_.is(id, PickleKind::list) || graph_.is(id, PickleKind::tuple);
    if (sequence && holds_more(id)) return walk_sequence(id);
    if (is_torch_tensor(graph_, id)) return add_tensor(id);
    return add_value(id);
  }

  // A list is entered when something in it could hold tensors; [0.9, 0.95] is a value.
  bool holds_more(PickleId id) const {
    const std::span<const PickleId> items = graph_.items(id);
    return std::any_of(items.begin(), items.end(), [&](PickleId item) {
      return is_container(graph_, item) || is_torch_tensor(graph_, item);
    });
  }

  Result<> walk_dict(PickleId id) {
    const std::span<const PickleId> entries = graph_.items(id);
    SeenItems seen;
    bool numbers = entries.empty();
    for (std::size_t i = 0; i + 1 < entries.size(); i += 2) {
      if (!is_step(graph_, entries[i])) return add_odd_dict(id);
      const bool word = graph_.is(entries[i], PickleKind::string);
      if (!(word ? seen.insert(graph_.text(entries[i])) : seen.insert(graph_.integer(entries[i]))))
        return bad(Code::corrupt,
                   "a dict holds the key " + json_string(joined({item_of(entries[i])})) + " twice");
      numbers |= !word;
    }
    if (numbers) catalog().containers.push_back({path_, Value::Kind::dict});
    for (std::size_t i = 0; i + 1 < entries.size(); i += 2)
      EBB_TRY(enter(item_of(entries[i]), entries[i + 1]));
    return {};
  }

  PathItem item_of(PickleId key) const {
    if (graph_.is(key, PickleKind::string)) return std::string(graph_.text(key));
    return graph_.integer(key);
  }

  // Keyed by tuples, None, ...: a value as a whole, as long as no tensor is in it.
  Result<> add_odd_dict(PickleId id) {
    const std::span<const PickleId> entries = graph_.items(id);
    for (std::size_t i = 1; i < entries.size(); i += 2)
      if (is_torch_tensor(graph_, entries[i]))
        return bad(Code::unsupported, "a tensor in a dict with a key of type " + odd_key(entries));
    return add_value(id);
  }

  std::string odd_key(std::span<const PickleId> entries) const {
    std::size_t i = 0;
    while (is_step(graph_, entries[i])) i += 2;
    return std::string(name_of(graph_.kind(entries[i])));
  }

  Result<> walk_sequence(PickleId id) {
    if (graph_.is(id, PickleKind::tuple))
      catalog().containers.push_back({path_, Value::Kind::tuple});
    const std::span<const PickleId> items = graph_.items(id);
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
    auto value = value_of(graph_, id, nullptr);
    if (!value) return std::move(value).error().about(json_string(joined(path_)));
    if (value->kind == Value::Kind::object) inert_.push_back(value->text);
    catalog().values.push_back({joined(path_), path_, std::move(*value)});
    return {};
  }

  Result<> add_tensor(PickleId id) {
    auto tensor = torch_tensor(graph_, id);
    if (!tensor) return std::move(tensor).error().about(json_string(joined(path_)));
    EBB_TRY_ASSIGN(const std::uint32_t record, record_of(*tensor));
    TensorEntry entry;
    entry.key = joined(path_);
    entry.path = path_;
    entry.name = *entry.key;
    entry.state = "tensor";
    entry.dtype = tensor->dtype;
    entry.shape = tensor->shape;
    checkpoint_->add_tensor(std::move(entry), std::move(*tensor), record);
    return {};
  }

  Result<std::uint32_t> record_of(const TorchTensor& tensor) {
    const auto known = records_.find(tensor.storage.key);
    if (known != records_.end() && known->second.bytes >= tensor.storage.bytes) {
      ++sharing_;
      return known->second.number;
    }
    auto record = file_.record_of(tensor);
    if (!record) return std::move(record).error().about(json_string(joined(path_)));
    const Known fresh{checkpoint_->add_record(std::move(*record)), tensor.storage.bytes};
    records_.insert_or_assign(tensor.storage.key, fresh);
    return fresh.number;
  }

  void add_notes() {
    if (sharing_ > 0)
      catalog().notes.push_back(std::to_string(sharing_) +
                                (sharing_ == 1 ? " tensor shares its storage with another"
                                               : " tensors share their storage with others") +
                                ": each is shown whole");
    if (inert_.empty()) return;
    catalog().notes.push_back(std::to_string(inert_.size()) +
                              (inert_.size() == 1 ? " value is an object" : " values are objects") +
                              " (" + printable(inert_.front()) +
                              (inert_.size() == 1 ? "" : ", ...") +
                              "): known by the name of their class only; nothing was executed");
  }

  struct Known {
    std::uint32_t number = 0;
    std::uint64_t bytes = 0;  // as far as it was checked to reach
  };
  const TorchFile& file_;
  const PickleGraph& graph_;
  std::string where_;
  std::unique_ptr<TorchCheckpoint> checkpoint_;
  std::vector<PathItem> path_;
  std::uint64_t path_bytes_ = 0;
  std::unordered_map<std::string, Known> records_;
  std::vector<std::string> inert_;
  std::size_t sharing_ = 0;
  std::uint64_t leaves_ = 0;
};

}  // namespace

bool detect_torch(const SourceTree& tree) { return !candidates(tree).empty(); }

Result<std::unique_ptr<Checkpoint>> describe_torch(std::shared_ptr<const SourceTree> tree) {
  const std::vector<std::string> names = candidates(*tree);
  if (names.size() != 1)
    return Error{Code::unsupported,
                 std::string(tree->root()) + ": " + std::to_string(names.size()) +
                     " torch.save files, " + printable(names.front()) + " and " +
                     printable(names.back()) + " among them: which one is meant?",
                 "name one of the files"};
  EBB_TRY_ASSIGN(std::shared_ptr<const ByteSource> source, tree->open(names.front()));
  EBB_TRY_ASSIGN(const TorchFile file, TorchFile::open(source));
  return Describer(file, names.front(), std::move(tree), std::move(source)).run();
}

}  // namespace ebb::formats
