#include "ebb/formats/torch_save/rank_describer.h"

#include <algorithm>

#include "ebb/formats/catalog/part_of_save.h"
#include "ebb/formats/core/json_text.h"
#include "ebb/formats/core/number_text.h"
#include "ebb/formats/state_dict/names.h"
#include "ebb/formats/state_dict/small_tensors.h"
#include "ebb/formats/state_dict/state_dict.h"

namespace ebb::formats::torch_save {
namespace {

constexpr std::size_t kShown = 8;

std::string listed(const std::vector<std::string>& items, std::size_t all) {
  std::string text;
  for (const std::string& item : items) text += (text.empty() ? "" : ", ") + item;
  return all == items.size() ? text : compose("{} and {} more", text, all - items.size());
}

}  // namespace

void MissingRanks::add(const RankFamily& family, const std::set<std::uint32_t>& wanted,
                       const std::map<std::uint32_t, std::string>& there) {
  for (const std::uint32_t rank : wanted) {
    if (there.contains(rank)) continue;
    ranks.insert(rank);
    if (++count <= kShown) files.push_back(family.file_of(rank));
  }
}

std::string MissingRanks::sentence() const {
  std::vector<std::string> numbers;
  for (const std::uint32_t rank : ranks) {
    if (numbers.size() == kShown) break;
    numbers.push_back(std::to_string(rank));
  }
  return compose("the {} of {} {} missing: {}", count == 1 ? "file" : "files",
                 (ranks.size() == 1 ? "rank " : "ranks ") + listed(numbers, ranks.size()),
                 count == 1 ? "is" : "are", listed(files, count));
}

RankDescriber::RankDescriber(const std::shared_ptr<const SourceTree>& tree, std::string format)
    : tree_(*tree), checkpoint_(std::make_unique<FileCheckpoint>(tree)), join_(*checkpoint_) {
  building().format = std::move(format);
}

Result<> RankDescriber::add(const RankFamily& family, const std::vector<PathItem>& above,
                            SaidOfParts* said) {
  std::map<std::uint32_t, std::string> there;
  for (const auto& [named, name] : family.files) {
    EBB_TRY_ASSIGN(OpenFile file, OpenFile::open(tree_, name, *checkpoint_, named));
    if (catalog().producer.empty()) building().producer = file.producer();
    unknown_.look_at(file.graph(), name);
    const std::size_t before = catalog().tensors.size();
    join_.begin(file, name, named, said);
    EBB_TRY(walk_.run(file.graph(), file.where(), above, join_));
    EBB_TRY(pay(file.graph()));
    EBB_TRY_ASSIGN(const std::uint32_t rank, join_.end());
    if (!there.empty() && catalog().tensors.size() > before) in_order_ = false;
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

Result<> RankDescriber::add_file(const std::string& name) {
  EBB_TRY_ASSIGN(std::shared_ptr<const ByteSource> source, tree_.open(name));
  checkpoint_->add_file(name, std::move(source), ByteOrder::little);
  return {};
}

Result<std::unique_ptr<Checkpoint>> RankDescriber::finish() {
  checkpoint_->finish();
  EBB_TRY(check_whole());
  building().world = world_;
  building().partition = compose("{} over {}, a file each", cut(), plural(world_, "rank"));
  if (in_order_) building().listed = ListOrder::of_the_model;
  add_notes();
  const std::vector<UnreadAt> unread = join_.unread();
  PartsOf parts = join_.take_parts();
  EBB_TRY(name_contents(building(), {}, values_in_tensors(*checkpoint_)));
  leave_unread(building(), unread);
  unfold(building(), std::move(parts));
  note_composites(building());
  unknown_.show_in(building());
  return std::unique_ptr<Checkpoint>(std::move(checkpoint_));
}

// Each pickle has a budget of its own; what small files unfold to must not add up.
Result<> RankDescriber::pay(const PickleGraph& graph) {
  constexpr std::uint64_t kMost = PickleLimits().unfold;
  unfolded_ += graph.unfolded();
  if (unfolded_ <= kMost) return {};
  return Error{Code::limit, compose("{}: with the files of lower ranks, its values refer to each "
                                    "other until they take more than {} bytes, which is the limit",
                                    graph.where(), kMost)};
}

Result<> RankDescriber::prove_whole() {
  EBB_TRY(join_.prove_whole());
  if (missed_.empty()) return {};
  return Error{Code::layout,
               compose("{} in none of the files: {}",
                       missed_.size() == 1 ? "a tensor is" : "tensors are", some_of(missed_))};
}

// A rank that is missing matters where no other has the same.
Result<> RankDescriber::check_whole() {
  auto whole = prove_whole();
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

std::string_view RankDescriber::cut() const {
  const auto is_cut = [](const TensorEntry& tensor) { return tensor.chunks.size() > 1; };
  const auto in_boxes = [](const TensorEntry& tensor) {
    return std::ranges::any_of(tensor.chunks, [&](const Chunk& chunk) {
      return !std::equal(tensor.shape.begin() + (tensor.shape.empty() ? 0 : 1), tensor.shape.end(),
                         chunk.box.extent.begin() + (tensor.shape.empty() ? 0 : 1));
    });
  };
  const auto& tensors = catalog().tensors;
  if (std::ranges::any_of(tensors, in_boxes)) return "boxes";
  return std::ranges::any_of(tensors, is_cut) ? "rows" : "whole tensors";
}

void RankDescriber::add_notes() {
  std::vector<std::string>& notes = building().notes;
  walk_.add_notes(building());
  for (std::string& note : join_.notes()) notes.push_back(std::move(note));
  for (std::string& note : notes_) notes.push_back(std::move(note));
  if (!missing_.ranks.empty())
    notes.push_back(missing_.sentence() + "; other ranks hold the same tensors, and all of them");
  if (!renamed_.empty())
    notes.push_back(
        compose("{} not what the name says: {}",
                plural(renamed_.size(), "file") +
                    (renamed_.size() == 1 ? " is of a rank that is" : " are of ranks that are"),
                some_of(renamed_)));
}

}  // namespace ebb::formats::torch_save
