#include <algorithm>
#include <map>
#include <set>

#include "ebb/formats/core/json_text.h"
#include "ebb/formats/core/number_text.h"
#include "ebb/formats/core/refuse.h"
#include "ebb/formats/core/units.h"
#include "ebb/formats/dcp/dcp.h"
#include "ebb/formats/dcp/index.h"
#include "ebb/formats/dcp/item_sizes.h"
#include "ebb/formats/dcp/payload.h"
#include "ebb/formats/state_dict/names.h"
#include "ebb/formats/state_dict/small_tensors.h"

namespace ebb::formats::dcp {
namespace {

constexpr std::uint64_t kMaxIndex = 4 * GiB;  // bytes of one metadata file
constexpr std::uint32_t kMaxRanks = 1u << 20;
constexpr std::string_view kIndexName = ".metadata";
constexpr std::uint64_t kPartOfItem = 1ull << 62;  // tags of chunks from here on

// "__3_0.distcp" -> 3; Megatron can put a word before it: "optimizer.__3_1.distcp".
std::optional<std::uint32_t> rank_of_payload(std::string_view name) {
  const std::size_t at = name.rfind("__");
  if (at == std::string_view::npos || !name.ends_with(".distcp") ||
      name.find('/') != std::string_view::npos)
    return std::nullopt;
  const std::size_t end = name.find('_', at + 2);
  const auto rank = parse_number<std::uint32_t>(name.substr(at + 2, end - at - 2));
  return end != std::string_view::npos && rank && *rank < kMaxRanks ? rank : std::nullopt;
}

// "__3.metadata" -> 3
std::optional<std::uint32_t> rank_of_index(std::string_view name) {
  if (!name.starts_with("__") || !name.ends_with(".metadata")) return std::nullopt;
  const auto rank =
      parse_number<std::uint32_t>(name.substr(2, name.size() - 2 - kIndexName.size()));
  return rank && *rank < kMaxRanks ? rank : std::nullopt;
}

class DirectoryCheckpoint : public Checkpoint {
 public:
  explicit DirectoryCheckpoint(std::shared_ptr<const SourceTree> tree)
      : payloads_(std::move(tree)) {}

  const Catalog& catalog() const override { return catalog_; }

  Result<> read_chunk(const TensorEntry& tensor, const Chunk& chunk, std::uint64_t first,
                      std::span<std::byte> into) const override {
    const std::string label =
        compose("tensor {} {}", json_string(*tensor.key), to_string(chunk.box));
    return payloads_.read(place_of(chunk), chunk.box.extent, tensor.dtype, label, first, into);
  }

 private:
  friend class Describer;

  PayloadPlace place_of(const Chunk& chunk) const {
    if (chunk.tag != kRawItem && chunk.tag >= kPartOfItem) return parts_[chunk.tag - kPartOfItem];
    return {catalog_.files[chunk.file].name, chunk.offset, chunk.length, chunk.tag};
  }
  // The place of a part's chunk is the elements'; that of its item stays here.
  void remember(PayloadPlace place, Chunk& chunk) {
    chunk.tag = kPartOfItem + parts_.size();
    parts_.push_back(std::move(place));
  }

  Catalog catalog_;
  Payloads payloads_;
  std::vector<PayloadPlace> parts_;
};

// torchtitan's folders are step-<N>; the last save of a run leaves the optimizer out unless it is
// told not to (last_save_model_only).
void note_last_of_torchtitan(std::string_view root, Catalog& catalog) {
  while (root.ends_with('/')) root.remove_suffix(1);
  const std::string_view folder = root.substr(root.rfind('/') + 1);
  if (folder.starts_with("step-") && catalog.parts.optimizers.empty() &&
      !catalog.parts.models.empty())
    catalog.notes.emplace_back(
        "the model alone, without an optimizer: the last save of a torchtitan run is one unless "
        "last_save_model_only is off; a step before it can be resumed, and a new run starts from "
        "these weights with --checkpoint.initial_load_path");
}

// What a described checkpoint's tensors are called: for formats that are DCP underneath, or for
// DCP itself.
enum class Names : std::uint8_t { keys, of_parameters };

// What becomes of chunks that are not there.
enum class Holes : std::uint8_t { refused, left };

class Describer {
 public:
  explicit Describer(std::shared_ptr<const SourceTree> tree)
      : tree_(tree),
        raw_items_(tree),
        checkpoint_(std::make_unique<DirectoryCheckpoint>(std::move(tree))) {}

  Result<Opened> run(Names names) {
    EBB_TRY(read_tensors());
    EBB_TRY(check_no_overlap());
    for (const TensorEntry& tensor : catalog().tensors)
      if (auto covered = prove_coverage(tensor, catalog()); !covered)
        return std::move(covered).error().within(at_root(kIndexName));
    find_subclasses();
    for (StoredValue& value : index_.values) EBB_TRY(add_value(std::move(value)));
    if (names == Names::of_parameters) {
      EBB_TRY(name_contents(catalog(), {}, values_in_tensors(*checkpoint_)));
      note_last_of_torchtitan(tree_->root(), catalog());
    }
    leave_unread(catalog(), unread_);
    unfold(catalog(), std::move(parts_));
    note_composites(catalog());
    catalog().partition = partition();
    catalog().notes.insert(catalog().notes.end(), index_.notes.begin(), index_.notes.end());
    return Opened{std::move(checkpoint_), std::move(index_.flat_boxes_of)};
  }

  Result<std::unique_ptr<Checkpoint>> run_with_holes() {
    holes_ = Holes::left;
    EBB_TRY(read_tensors());
    EBB_TRY(name_contents(catalog()));
    catalog().partition = partition();
    return std::unique_ptr<Checkpoint>(std::move(checkpoint_));
  }

 private:
  static constexpr std::uint32_t kNoFile = ~std::uint32_t{0};

  Result<> read_tensors() {
    EBB_TRY(read_indexes());
    catalog().format = "dcp";
    catalog().producer = index_.producer;
    EBB_TRY(list_files());
    catalog().tensors.reserve(index_.tensors.size());
    for (StoredTensor& tensor : index_.tensors) EBB_TRY(add_tensor(std::move(tensor)));
    return {};
  }

  Catalog& catalog() { return checkpoint_->catalog_; }
  std::string at_root(std::string_view name) const { return compose("{}/{}", tree_->root(), name); }

  Result<Index> read_index(std::string_view name) {
    EBB_TRY_ASSIGN(const std::shared_ptr<const ByteSource> source, tree_->open(name));
    EBB_TRY_ASSIGN(ByteVector bytes, read_bytes(*source, 0, source->size(), kMaxIndex));
    EBB_TRY_ASSIGN(const PickleGraph graph,
                   PickleGraph::parse(std::move(bytes), std::string(source->name())));
    EBB_TRY(require_known_globals(graph));
    catalog().files.push_back({std::string(name), source->size(), std::nullopt});
    return parse_index(graph);
  }

  Result<> read_indexes() {
    if (tree_->find(kIndexName) != nullptr) {
      EBB_TRY_ASSIGN(index_, read_index(kIndexName));
      return {};
    }
    std::map<std::uint32_t, std::string> ranks;
    for (const SourceTree::Entry& entry : tree_->entries())
      if (const auto rank = rank_of_index(entry.name)) ranks.emplace(*rank, entry.name);
    if (ranks.empty()) return never_committed();
    std::vector<Index> parts;
    for (const auto& [rank, name] : ranks) {
      const std::string expected = std::to_string(parts.size());
      if (rank != parts.size())
        return Error{Code::incomplete,
                     compose("{}: the metadata of rank {} is missing: no file __{}.metadata",
                             at_root(name), expected, expected)};
      EBB_TRY_ASSIGN(Index part, read_index(name));
      parts.push_back(std::move(part));
    }
    EBB_TRY_ASSIGN(index_, merged_index(std::move(parts)));
    return {};
  }

  Error never_committed() const {
    if (tree_->find(".metadata.tmp") != nullptr)
      return Error{
          Code::incomplete,
          compose("{}: the checkpoint was never committed: only .metadata.tmp exists, no .metadata",
                  tree_->root()),
          "use the checkpoint before this one"};
    // Rank 0 writes the index, on its node.
    const bool of_rank0 = std::ranges::any_of(
        tree_->entries(), [](const auto& entry) { return rank_of_payload(entry.name) == 0u; });
    if (!of_rank0)
      return Error{Code::incomplete,
                   compose("{}: payload files but no .metadata, and none of rank 0, which writes "
                           "it: the save did not finish, or rank 0's files lie on another node",
                           tree_->root()),
                   "bring the files of all nodes together, or use the checkpoint before this one"};
    return Error{
        Code::incomplete,
        compose("{}: payload files but no .metadata: the save did not finish", tree_->root()),
        "use the checkpoint before this one"};
  }

  Result<> list_files() {
    const std::set<std::string> used(index_.files.begin(), index_.files.end());
    std::map<std::string, std::uint32_t> numbers;
    std::set<std::uint32_t> ranks;
    for (const SourceTree::Entry& entry : tree_->entries()) {
      const auto rank = rank_of_payload(entry.name);
      if (!rank && !used.contains(entry.name)) continue;
      const bool unused = !used.contains(entry.name);
      if (unused && entry.size != 0) {
        catalog().notes.push_back(entry.name + " is referred to by nothing: left by another save");
        continue;
      }
      if (rank) ranks.insert(*rank);
      numbers.emplace(entry.name, static_cast<std::uint32_t>(catalog().files.size()));
      catalog().files.push_back(
          {entry.name, entry.size, rank ? std::optional<Rank>(Rank{*rank}) : std::nullopt});
    }
    catalog().world =
        std::max({std::uint32_t{1}, index_.ranks, static_cast<std::uint32_t>(ranks.size())});
    for (const std::string& name : index_.files) {
      const auto found = numbers.find(name);
      if (found == numbers.end() && holes_ == Holes::refused) return missing_file(name);
      file_numbers_.push_back(found == numbers.end() ? kNoFile : found->second);
      if (found == numbers.end()) continue;
      payload_bytes_ += catalog().files[found->second].size;
    }
    return {};
  }

  // Names what lived in it: the reader decides whether the rest is of use.
  Error missing_file(const std::string& name) const {
    constexpr std::size_t kShown = 8;
    std::size_t lost = 0;
    std::string text = compose("{}: payload file {} is missing; it held", at_root(name), name);
    const auto add = [&](const std::optional<StoredItem>& item, const auto& spelled) {
      if (!item || index_.files[item->file] != name) return;
      if (lost < kShown) text += (lost == 0 ? " " : ", ") + spelled();
      ++lost;
    };
    for (const StoredTensor& tensor : index_.tensors)
      for (const StoredChunk& chunk : tensor.chunks)
        add(chunk.item, [&] { return json_string(tensor.key) + " " + to_string(chunk.box); });
    for (const StoredValue& value : index_.values)
      add(value.item, [&] { return "value " + json_string(value.key); });
    if (lost > kShown) text += compose(" and {} more", lost - kShown);
    return Error{Code::incomplete, std::move(text)};
  }

  Result<std::uint32_t> place(const StoredItem& item, std::string_view kind, std::string_view key) {
    const std::uint32_t number = file_numbers_[item.file];
    if (number == kNoFile) return missing_file(index_.files[item.file]);
    const FileEntry& file = catalog().files[number];
    const auto end = checked_add(item.offset, item.length);
    if (!end || *end > file.size)
      return refuse(
          Code::corrupt, at_root(file.name), item.offset,
          compose(
              "the item of {} {} is {} bytes long and lies past the end of its file of {} bytes",
              kind, json_string(key), item.length, file.size));
    return number;
  }

  Result<> add_tensor(StoredTensor tensor) {
    TensorEntry entry;
    entry.path = std::move(tensor.path);
    entry.name = tensor.key;
    entry.state = "tensor";
    entry.dtype = tensor.dtype;
    entry.shape = std::move(tensor.shape);
    entry.chunks.reserve(tensor.chunks.size());
    for (StoredChunk& chunk : tensor.chunks) {
      auto placed = placed_chunk(tensor, chunk);
      if (placed)
        entry.chunks.push_back(*std::move(placed));
      else if (holes_ == Holes::refused)
        return std::move(placed).error();
    }
    entry.key = std::move(tensor.key);
    catalog().tensors.push_back(std::move(entry));
    return {};
  }

  Result<Chunk> placed_chunk(const StoredTensor& tensor, StoredChunk& chunk) {
    if (!chunk.item)
      return Error{
          Code::incomplete,
          compose("{}: storage_data has no entry for the chunk of tensor {} at offset {}",
                  at_root(kIndexName), json_string(tensor.key), to_string(chunk.box.offset))};
    const StoredItem& item = *chunk.item;
    EBB_TRY_ASSIGN(const std::uint32_t file, place(item, "tensor", tensor.key));
    const std::optional<Rank> holder = catalog().files[file].rank;
    std::uint64_t offset = item.offset;
    std::uint64_t coding = item.zstd;
    if (RawItems::is_raw(item, tensor.dtype, chunk.box)) {
      coding = kRawItem;
      EBB_TRY_ASSIGN(offset, raw_items_.offset_of(catalog().files[file].name, item, tensor.key,
                                                  tensor.dtype, chunk.box));
    }
    return Chunk{std::move(chunk.box), file, offset, item.length, holder.value_or(Rank{0}), coding};
  }

  // The index says of a tensor subclass what it stands for, and not that it is one. What an archive
  // has beside the elements is about the same for all plain tensors: where those of one name differ
  // most, two are looked at, and where one is a subclass, all are. What cannot be opened stays:
  // reading it says why.
  void find_subclasses() {
    auto& tensors = catalog().tensors;
    const std::vector<const Chunk*> extremes = extreme_items(tensors);
    const bool any = std::ranges::any_of(extremes, [&](const Chunk* chunk) {
      const auto form = form_of(*chunk);
      return form && form->index() != 0;
    });
    for (std::size_t i = 0; any && i < tensors.size(); ++i) {
      if (tensors[i].chunks.empty()) continue;
      auto form = form_of(tensors[i].chunks.front());
      if (form && form->index() == 0) form = form_of(least_like_the_first(tensors[i]));
      if (!form) continue;
      if (auto* unread = std::get_if<UnreadForm>(&*form))
        unread_.push_back({i, std::move(*unread)});
      else if (form->index() != 0)
        join_pieces(i);
    }
  }

  // A tensor whose chunks are pieces of one that is made of parts.
  void join_pieces(std::size_t number) {
    TensorEntry& tensor = catalog().tensors[number];
    CompositeJoin join(tensor.shape);
    const auto leave = [&](std::string_view why) {
      unread_.push_back(
          {number,
           {compose("a tensor made of parts, in {}", why),
            "torch loads it with the package of its class", tensor.dtype, tensor.shape}});
    };
    for (const Chunk& chunk : tensor.chunks) {
      auto form = form_of(chunk);
      if (!form) return;  // reading it says why
      auto* piece = std::get_if<CompositePiece>(&*form);
      if (piece == nullptr) return leave("pieces of which some are plain and others are not");
      if (piece->box.extent != chunk.box.extent) return leave("pieces of other shapes");
      piece->box = chunk.box;
      for (std::size_t i = 0; i < piece->stored.size(); ++i) {
        Chunk& part = piece->stored[i].chunk;
        part.file = chunk.file;
        part.holder = chunk.holder;
        PayloadPlace place = checkpoint_->place_of(chunk);
        place.part = piece->made.parts[i].name;
        checkpoint_->remember(std::move(place), part);
      }
      if (const std::string why = join.add(std::move(*piece)); !why.empty()) return leave(why);
    }
    std::vector<TensorEntry> parts = join.take();
    stand_for(parts, tensor);
    parts_.emplace(tensor.part_of->whole.get(), std::move(parts));
  }

  Result<Payloads::Form> form_of(const Chunk& chunk) const {
    return checkpoint_->payloads_.form_of(checkpoint_->place_of(chunk));
  }

  // No two items may share bytes of a payload file.
  Result<> check_no_overlap() {
    struct Extent {
      std::uint64_t offset, length;
      const TensorEntry* tensor;  // one of the two
      const StoredValue* value;
      bool operator<(const Extent& other) const { return offset < other.offset; }
      std::string name() const {
        return tensor == nullptr ? "value " + json_string(value->key)
                                 : "tensor " + json_string(*tensor->key);
      }
    };
    const auto each_item = [&](const auto& visit) {
      for (const StoredValue& value : index_.values)
        if (const auto& item = value.item)
          visit(file_numbers_[item->file], Extent{item->offset, item->length, nullptr, &value});
      for (const TensorEntry& tensor : catalog().tensors)
        for (const Chunk& chunk : tensor.chunks)
          visit(chunk.file, Extent{chunk.offset, chunk.length, &tensor, nullptr});
    };
    std::vector<std::vector<Extent>> of_file(catalog().files.size());
    std::vector<std::size_t> counts(of_file.size());
    each_item([&](std::size_t file, const Extent&) { ++counts[file]; });
    for (std::size_t file = 0; file < counts.size(); ++file) of_file[file].reserve(counts[file]);
    each_item([&](std::size_t file, const Extent& extent) { of_file[file].push_back(extent); });
    for (std::size_t file = 0; file < of_file.size(); ++file) {
      std::vector<Extent>& extents = of_file[file];
      // A rank writes in the order in which its index lists, values first.
      if (!std::is_sorted(extents.begin(), extents.end()))
        std::sort(extents.begin(), extents.end());
      for (std::size_t i = 1; i < extents.size(); ++i)
        if (extents[i - 1].offset + extents[i - 1].length > extents[i].offset)
          return refuse(Code::corrupt, at_root(catalog().files[file].name), extents[i].offset,
                        compose("the items of {} and {} overlap in the file", extents[i - 1].name(),
                                extents[i].name()));
    }
    return {};
  }

  Result<> add_value(StoredValue stored) {
    if (!stored.item)
      return Error{
          Code::incomplete,
          at_root(kIndexName) + ": storage_data has no entry for value " + json_string(stored.key)};
    const StoredItem& item = *stored.item;
    EBB_TRY(place(item, "value", stored.key));
    value_bytes_ += item.length;
    if (value_bytes_ > payload_bytes_)
      return refuse(Code::corrupt, at_root(index_.files[item.file]), item.offset,
                    "value " + json_string(stored.key) +
                        " shares its bytes with others: together they are longer than all files");
    auto part = checkpoint_->payloads_.value(
        {index_.files[item.file], item.offset, item.length, item.zstd}, unfold_budget_);
    if (!part) return std::move(part).error().about("value " + json_string(stored.key));
    if (stored.path.empty()) stored.path = {stored.key};
    for (UnreadInside& inside : part->unread)
      add_unread(as_tensor(entry_of(inside, stored.path)), std::move(inside.form), catalog(),
                 unread_);
    if (part->value)
      catalog().values.push_back(
          {std::move(stored.key), std::move(stored.path), std::move(*part->value)});
    return {};
  }

  // How tensors are cut, in words; from the chunks, since the format does not say.
  std::string partition() {
    bool rows = false;
    bool boxes = false;
    for (const TensorEntry& tensor : catalog().tensors) {
      if (tensor.chunks.size() < 2) continue;
      const bool by_rows = std::ranges::all_of(tensor.chunks, [&](const Chunk& chunk) {
        return std::equal(tensor.shape.begin() + 1, tensor.shape.end(),
                          chunk.box.extent.begin() + 1);
      });
      (by_rows ? rows : boxes) = true;
    }
    const std::string over = compose(" over {} ranks", catalog().world);
    if (rows && boxes) return "rows and other boxes" + over;
    if (boxes) return "boxes" + over;
    if (rows) return "rows" + over;
    return catalog().world == 1 ? "whole tensors at one rank" : "whole tensors" + over;
  }

  std::shared_ptr<const SourceTree> tree_;
  RawItems raw_items_;
  std::unique_ptr<DirectoryCheckpoint> checkpoint_;
  Index index_;
  std::vector<UnreadAt> unread_;
  PartsOf parts_;
  std::vector<std::uint32_t> file_numbers_;  // of Index::files, in Catalog::files
  std::uint64_t payload_bytes_ = 0;          // of all payload files
  std::uint64_t value_bytes_ = 0;            // of the items of values so far
  std::uint64_t unfold_budget_ = 64 * MiB;   // for what values unfold to
  Holes holes_ = Holes::refused;
};

}  // namespace

Result<Opened> open(std::shared_ptr<const SourceTree> tree) {
  return Describer(std::move(tree)).run(Names::keys);
}

}  // namespace ebb::formats::dcp

namespace ebb::formats {

bool is_of_dcp(std::string_view name) {
  return name == dcp::kIndexName || name == ".metadata.tmp" || dcp::rank_of_payload(name) ||
         dcp::rank_of_index(name);
}

bool detect_dcp(const SourceTree& tree) {
  return std::ranges::any_of(tree.entries(),
                             [](const auto& entry) { return is_of_dcp(entry.name); });
}

Result<std::unique_ptr<Checkpoint>> describe_dcp(std::shared_ptr<const SourceTree> tree) {
  EBB_TRY_ASSIGN(dcp::Opened opened,
                 dcp::Describer(std::move(tree)).run(dcp::Names::of_parameters));
  return std::move(opened.checkpoint);
}

Result<std::unique_ptr<Checkpoint>> describe_dcp_with_holes(
    std::shared_ptr<const SourceTree> tree) {
  return dcp::Describer(std::move(tree)).run_with_holes();
}

}  // namespace ebb::formats
