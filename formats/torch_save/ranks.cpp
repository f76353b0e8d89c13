#include "ebb/formats/torch_save/ranks.h"

#include <algorithm>
#include <set>

#include "ebb/formats/core/json_text.h"
#include "ebb/formats/core/number_text.h"
#include "ebb/formats/pickle/known_globals.h"
#include "ebb/formats/state_dict/names.h"
#include "ebb/formats/state_dict/small_tensors.h"
#include "ebb/formats/state_dict/state_dict.h"
#include "ebb/formats/torch_save/join.h"

namespace ebb::formats::torch_save {
namespace {

constexpr std::size_t kShown = 8;
constexpr std::string_view kTogetherHint =
    "each node may have kept its own ranks' files: bring them together, or use the checkpoint "
    "before this one";

// Ranks of one family's meshes whose files are not there.
struct Missing {
  std::set<std::uint32_t> ranks;
  std::vector<std::string> files;  // the first of them
  std::size_t count = 0;           // of files

  void add(const RankFamily& family, const std::set<std::uint32_t>& wanted,
           const std::map<std::uint32_t, std::string>& there) {
    for (const std::uint32_t rank : wanted) {
      if (there.contains(rank)) continue;
      ranks.insert(rank);
      if (++count <= kShown) files.push_back(family.file_of(rank));
    }
  }
  std::string sentence() const {
    std::vector<std::string> numbers;
    for (const std::uint32_t rank : ranks) {
      if (numbers.size() == kShown) break;
      numbers.push_back(std::to_string(rank));
    }
    return compose("the {} of {} {} missing: {}", count == 1 ? "file" : "files",
                   (ranks.size() == 1 ? "rank " : "ranks ") + listed(numbers, ranks.size()),
                   count == 1 ? "is" : "are", listed(files, count));
  }

 private:
  static std::string listed(const std::vector<std::string>& items, std::size_t all) {
    std::string text;
    for (const std::string& item : items) text += (text.empty() ? "" : ", ") + item;
    return all == items.size() ? text : compose("{} and {} more", text, all - items.size());
  }
};

class RankDescriber {
 public:
  explicit RankDescriber(const std::shared_ptr<const SourceTree>& tree)
      : tree_(*tree), checkpoint_(std::make_unique<FileCheckpoint>(tree)), join_(*checkpoint_) {
    catalog().format = "torch";
  }

  // `above`: where what it holds lies in the catalog.
  Result<> add(const RankFamily& family, const std::vector<PathItem>& above) {
    std::map<std::uint32_t, std::string> there;
    for (const auto& [named, name] : family.files) {
      EBB_TRY_ASSIGN(OpenFile file, OpenFile::open(tree_, name, *checkpoint_, named));
      if (catalog().producer.empty()) catalog().producer = file.producer();
      unknown_.look_at(file.graph(), name);
      join_.begin(file, name, named);
      EBB_TRY(walk_.run(file.graph(), file.where(), above, join_));
      EBB_TRY(pay(file.graph()));
      EBB_TRY_ASSIGN(const std::uint32_t rank, join_.end());
      const auto [other, fresh] = there.emplace(rank, name);
      if (!fresh)
        return Error{Code::layout, compose("{}: {} and {} both hold the parts of rank {}",
                                           tree_.root(), other->second, name, rank)};
      if (rank != named) renamed_.push_back(name);
      world_ = std::max(world_, rank + 1);
    }
    std::set<std::uint32_t> wanted = join_.take_ranks();
    for (std::uint32_t rank = 0; rank < std::min(family.name.parts, kMostRanks); ++rank)
      wanted.insert(wanted.end(), rank);
    if (!wanted.empty()) world_ = std::max(world_, *wanted.rbegin() + 1);
    missing_.add(family, wanted, there);
    return {};
  }

  bool found_shards() const { return join_.found_shards(); }
  std::uint32_t world() const { return world_; }

  Result<std::unique_ptr<Checkpoint>> finish() {
    checkpoint_->finish();
    EBB_TRY(check_whole());
    catalog().world = world_;
    catalog().partition = compose("{} over {}, a file each", cut(), plural(world_, "rank"));
    add_notes();
    const std::vector<UnreadAt> unread = join_.unread();
    EBB_TRY(name_contents(catalog(), {}, values_in_tensors(*checkpoint_)));
    leave_unread(catalog(), unread);
    unknown_.show_in(catalog());
    return std::unique_ptr<Checkpoint>(std::move(checkpoint_));
  }

 private:
  Catalog& catalog() { return checkpoint_->building(); }

  // Each pickle has a purse of its own; what small files unfold to must not add up.
  Result<> pay(const PickleGraph& graph) {
    constexpr std::uint64_t kMost = PickleLimits().unfold;
    unfolded_ += graph.unfolded();
    if (unfolded_ <= kMost) return {};
    return Error{Code::limit,
                 compose("{}: with the files of lower ranks, its values refer to each "
                         "other until they take more than {} bytes, which is the limit",
                         graph.where(), kMost)};
  }

  // A rank that is missing matters where no other has the same.
  Result<> check_whole() {
    auto whole = join_.prove_whole();
    if (whole) return {};
    Error error = std::move(whole).error();
    if (missing_.ranks.empty()) return std::move(error).within(tree_.root());
    error.message = compose("{}: {} ({})", tree_.root(), missing_.sentence(), error.message);
    error.code = Code::incomplete;
    error.hint = kTogetherHint;
    error.place.file = missing_.files.front();
    error.place.rank = *missing_.ranks.begin();
    return error;
  }

  std::string_view cut() {
    const auto is_cut = [](const TensorEntry& tensor) { return tensor.chunks.size() > 1; };
    const auto in_boxes = [](const TensorEntry& tensor) {
      return std::ranges::any_of(tensor.chunks, [&](const Chunk& chunk) {
        return !std::equal(tensor.shape.begin() + (tensor.shape.empty() ? 0 : 1),
                           tensor.shape.end(),
                           chunk.box.extent.begin() + (tensor.shape.empty() ? 0 : 1));
      });
    };
    const auto& tensors = catalog().tensors;
    if (std::ranges::any_of(tensors, in_boxes)) return "boxes";
    return std::ranges::any_of(tensors, is_cut) ? "rows" : "whole tensors";
  }

  void add_notes() {
    walk_.add_notes(catalog());
    for (std::string& note : join_.notes()) catalog().notes.push_back(std::move(note));
    if (!missing_.ranks.empty())
      catalog().notes.push_back(missing_.sentence() +
                                "; other ranks hold the same tensors, and all of them");
    if (!renamed_.empty())
      catalog().notes.push_back(
          compose("{} not what the name says: {}",
                  plural(renamed_.size(), "file") +
                      (renamed_.size() == 1 ? " is of a rank that is" : " are of ranks that are"),
                  some_of(renamed_)));
  }

  const SourceTree& tree_;
  std::unique_ptr<FileCheckpoint> checkpoint_;
  StateWalk walk_;
  RankJoin join_;
  UnknownNames unknown_;
  Missing missing_;
  std::vector<std::string> renamed_;
  std::uint32_t world_ = 1;
  std::uint64_t unfolded_ = 0;  // PickleGraph::unfolded() of all files
};

}  // namespace

bool names_shards(const SourceTree& tree, const RankFamily& family) {
  const auto source = tree.open(family.files.begin()->second);
  const auto file = source ? TorchFile::open(*source) : Result<TorchFile>(source.error());
  return file && std::ranges::any_of(file->graph().names(), [](const PickleGraph::Name& name) {
           return name.name.ends_with(".DTensor") || name.name.ends_with(".ShardedTensor");
         });
}

Result<std::unique_ptr<Checkpoint>> describe_ranks(const std::shared_ptr<const SourceTree>& tree,
                                                   std::span<const RankFamily> families) {
  RankDescriber describer(tree);
  for (const RankFamily& family : families) {
    std::vector<PathItem> above;
    if (families.size() > 1)
      above.emplace_back(std::string(family.is_of_states() ? "optimizer" : "model"));
    auto added = describer.add(family, above);
    // What does not fit together may be no parts of one thing.
    if (!added && added.error().code == Code::layout && !describer.found_shards())
      return std::unique_ptr<Checkpoint>();
    EBB_TRY(std::move(added));
  }
  const bool one_rank = families.size() > 1 && describer.world() == 1;
  if (!describer.found_shards() && !one_rank) return std::unique_ptr<Checkpoint>();
  return describer.finish();
}

}  // namespace ebb::formats::torch_save
