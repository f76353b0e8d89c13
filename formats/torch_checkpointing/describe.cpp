#include <algorithm>
#include <set>

#include "ebb/formats/catalog/key_path.h"
#include "ebb/formats/catalog/known_files.h"
#include "ebb/formats/core/json_text.h"
#include "ebb/formats/core/number_text.h"
#include "ebb/formats/core/units.h"
#include "ebb/formats/torch_checkpointing/items.h"
#include "ebb/formats/torch_checkpointing/metadata.h"
#include "ebb/formats/torch_checkpointing/torch_checkpointing.h"
#include "ebb/formats/torch_save/rank_describer.h"

namespace ebb::formats {
namespace torch_checkpointing {
namespace {

std::string said_of(std::string_view what, const std::optional<DType>& dtype, const Shape& shape) {
  return compose("{} {} {}", what, dtype ? name_of(*dtype) : std::string_view("of some dtype"),
                 to_string(shape));
}

// The metadata of one item, and what its files have shown of it so far.
class SaidOfItem final : public torch_save::SaidOfParts {
 public:
  // nullptr: there is none, as of items that are not dealt to other ranks.
  SaidOfItem(const std::string& item, const ItemMetadata* said) : item_(item), said_(said) {}

  Result<std::optional<ShardedPart>> part_of(const std::vector<PathItem>& path, std::uint32_t rank,
                                             const TorchTensor& tensor) override {
    const SaidParts* const parts = find(path, rank);
    if (parts == nullptr) return std::optional<ShardedPart>();
    if (parts->dtype && *parts->dtype != tensor.dtype)
      return differs(tensor.dtype, tensor.shape, *parts);
    if (!parts->is_cut()) {
      if (parts->shape != tensor.shape) return differs(tensor.dtype, tensor.shape, *parts);
      return std::optional<ShardedPart>();
    }
    EBB_TRY_ASSIGN(const PlacedPart placed, parts->part_of(rank));
    ShardedPart part{.kind = "tensor",
                     .dtype = tensor.dtype,
                     .shape = parts->shape,
                     .ranks = ranks_of(*parts),
                     .rank = rank,
                     .shards = {}};
    for (const PlacedBox& box : placed.boxes) {
      if (!inside({box.at, box.box.extent}, tensor.shape))
        return differs(tensor.dtype, tensor.shape, *parts);
      part.shards.push_back({box.box, tensor.part(box.at, box.box.extent)});
    }
    return std::optional(std::move(part));
  }

  Result<> check(const std::vector<PathItem>& path, std::uint32_t rank,
                 const ShardedPart& part) override {
    const SaidParts* const parts = find(path, rank);
    if (parts == nullptr) return {};
    if (parts->shape != part.shape || (parts->dtype && *parts->dtype != part.dtype))
      return differs(part.dtype, part.shape, *parts);
    const auto placed = parts->part_of(rank);
    const bool same = placed && std::ranges::equal(placed->boxes, part.shards, {}, &PlacedBox::box,
                                                   &TensorShard::box);
    if (!same) otherwise_cut_.insert(joined(path));
    return {};
  }

  bool each_has_its_own() const override {
    return said_ == nullptr && holds_nothing_trained(item_ + "_0.pt");
  }

  // Tensors that are cut in another way than is said.
  const std::set<std::string>& otherwise_cut() const { return otherwise_cut_; }

 private:
  const SaidParts* find(std::span<const PathItem> path, std::uint32_t rank) const {
    if (said_ == nullptr) return nullptr;
    const auto known = said_->tensors.find(path_text(path.subspan(1)));
    if (known == said_->tensors.end()) return nullptr;
    const auto its = std::ranges::find_if(
        known->second, [&](const SaidParts& parts) { return parts.holds(rank); });
    return its == known->second.end() ? nullptr : &*its;
  }

  Error differs(DType dtype, const Shape& shape, const SaidParts& parts) const {
    return {Code::layout, compose("{}, {}", said_of("it is", dtype, shape),
                                  said_of("in metadata.pkl", parts.dtype, parts.shape))};
  }

  // Parts of one tensor have one list.
  std::shared_ptr<const RankList> ranks_of(const SaidParts& parts) {
    if (parts.mesh == nullptr) return all_;
    std::shared_ptr<const RankList>& known = of_mesh_[parts.mesh.get()];
    if (known == nullptr) {
      RankList ranks;
      for (const auto& [rank, place] : parts.mesh->places) ranks.push_back(rank);
      known = std::make_shared<const RankList>(std::move(ranks));
    }
    return known;
  }

  const std::string& item_;
  const ItemMetadata* said_;
  std::map<const SaidMesh*, std::shared_ptr<const RankList>> of_mesh_;
  std::shared_ptr<const RankList> all_ = std::make_shared<const RankList>();
  std::set<std::string> otherwise_cut_;
};

class Describer {
 public:
  Describer(const std::shared_ptr<const SourceTree>& tree, const Metadata& metadata)
      : tree_(*tree), metadata_(metadata), describer_(tree, "torch-checkpointing") {}

  Result<std::unique_ptr<Checkpoint>> run() {
    for (const Item& item : items_in(tree_, metadata_)) EBB_TRY(add(item));
    if (describer_.world() > metadata_.world)
      return Error{Code::layout,
                   compose("{}: the files hold parts of rank {}, and metadata.pkl says that {} "
                           "wrote them: files of two saves",
                           tree_.root(), describer_.world() - 1, plural(metadata_.world, "rank")),
                   "bring together the files that one save wrote"};
    if (tree_.find(kMetadataFile) != nullptr)
      EBB_TRY(describer_.add_file(std::string(kMetadataFile)));
    add_notes();
    return describer_.finish();
  }

 private:
  Result<> add(const Item& item) {
    const auto known = metadata_.items.find(item.name);
    const ItemMetadata* const said = known == metadata_.items.end() ? nullptr : &known->second;
    const std::size_t first = describer_.catalog().tensors.size();
    SaidOfItem of_item(item.name, said);
    EBB_TRY(describer_.add(item.family, {item.name}, &of_item));
    otherwise_cut_.insert(otherwise_cut_.end(), of_item.otherwise_cut().begin(),
                          of_item.otherwise_cut().end());
    if (said != nullptr) return find_all(item, *said, first), Result<>();
    undealt_.push_back(item.name);
    const auto& tensors = describer_.catalog().tensors;
    const bool in_parts =
        std::any_of(tensors.begin() + static_cast<std::ptrdiff_t>(first), tensors.end(),
                    [](const TensorEntry& tensor) { return tensor.chunks.size() > 1; });
    if (in_parts) in_parts_.push_back(item.name);
    for (std::uint32_t rank = 0; rank < metadata_.world; ++rank)
      if (!item.family.files.contains(rank)) lacking_.push_back(item.family.file_of(rank));
    return {};
  }

  // What is said to be in the item's files has to be there.
  void find_all(const Item& item, const ItemMetadata& said, std::size_t first) {
    std::set<std::string> found;
    const auto& tensors = describer_.catalog().tensors;
    for (std::size_t i = first; i < tensors.size(); ++i)
      found.insert(path_text(std::span(tensors[i].path).subspan(1)));
    for (const auto& [path, parts] : said.tensors)
      if (!found.contains(path)) describer_.miss(item.name + path);
  }

  void add_notes() {
    if (!undealt_.empty()) describer_.note(std::string(kUndealt) + some_of(undealt_));
    if (!in_parts_.empty()) describer_.note(std::string(kUndealtParts) + some_of(in_parts_));
    if (tree_.root().substr(tree_.root().rfind('/') + 1).starts_with("tmp_"))
      describer_.note(
          "a save that was not finished: torch_checkpointing takes tmp_ off the name of "
          "a folder that is whole");
    if (!lacking_.empty())
      describer_.note(
          compose("there is no {}: the job had nothing of the kind at that rank, or the "
                  "file is missing",
                  some_of(lacking_)));
    if (!otherwise_cut_.empty())
      describer_.note(
          compose("metadata.pkl says of {} that ranks have other parts of it than the "
                  "files say, which are right: on other ranks torch_checkpointing would "
                  "put them elsewhere",
                  some_of(otherwise_cut_)));
  }

  const SourceTree& tree_;
  const Metadata& metadata_;
  torch_save::RankDescriber describer_;
  std::vector<std::string> undealt_;   // items without metadata
  std::vector<std::string> in_parts_;  // those with parts of tensors
  std::vector<std::string> lacking_;   // files of theirs
  std::vector<std::string> otherwise_cut_;
};

// A few words of the first dict in it.
bool is_metadata(const SourceTree& tree) {
  constexpr std::uint64_t kLook = 4 * KiB;
  if (tree.find(kMetadataFile) == nullptr) return false;
  const auto source = tree.open(kMetadataFile);
  if (!source) return false;
  const auto head = read_bytes(**source, 0, std::min((*source)->size(), kLook), kLook);
  const auto speaks_of = [&](std::string_view word) {
    return text_of(*head).find(word) != std::string_view::npos;
  };
  return head && speaks_of("metadata") &&
         (speaks_of("nested_path_to_metadata") || speaks_of("sharding_metadata") ||
          speaks_of("world_size"));
}

Result<Metadata> metadata_in(const SourceTree& tree) {
  if (tree.find(kMetadataFile) == nullptr) return metadata_of_files(tree);
  EBB_TRY_ASSIGN(const auto source, tree.open(kMetadataFile));
  return read_metadata(*source);
}

bool is_folder(const SourceTree& tree) {
  return (is_metadata(tree) && may_have_items(tree)) || are_items(tree);
}

}  // namespace
}  // namespace torch_checkpointing

bool detect_torch_checkpointing(const SourceTree& tree) {
  return torch_checkpointing::is_folder(tree);
}

Result<std::unique_ptr<Checkpoint>> describe_torch_checkpointing(
    std::shared_ptr<const SourceTree> tree) {
  EBB_TRY_ASSIGN(const torch_checkpointing::Metadata metadata,
                 torch_checkpointing::metadata_in(*tree));
  return torch_checkpointing::Describer(tree, metadata).run();
}

}  // namespace ebb::formats
