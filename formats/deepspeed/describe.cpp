#include <algorithm>
#include <cmath>
#include <map>

#include "ebb/formats/deepspeed/deepspeed.h"
#include "ebb/formats/deepspeed/model.h"
#include "ebb/formats/deepspeed/names.h"
#include "ebb/formats/deepspeed/optimizer.h"
#include "ebb/formats/deepspeed/unsharded.h"
#include "ebb/formats/deepspeed/values.h"

namespace ebb::formats {
namespace deepspeed {
namespace {

// The files of ranks that are not there.
struct Missing {
  std::uint32_t world = 1;
  std::uint64_t count = 0;
  std::optional<std::uint32_t> first;  // rank
  std::vector<std::string> kinds;      // "optimizer files of ranks 1, 2"
  std::vector<std::string> names;      // of the files, the first of them

  void look(std::string_view kind, const std::map<std::uint32_t, std::string>& files,
            std::uint32_t ranks) {
    std::vector<std::string> numbers;
    std::uint64_t of_kind = 0;
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      if (files.contains(rank)) continue;
      if (!first) first = rank;
      if (++of_kind > kShown) continue;
      numbers.push_back(std::to_string(rank));
      names.push_back(file_of_rank(files.begin()->second, rank));
    }
    if (of_kind == 0) return;
    count += of_kind;
    kinds.push_back(std::string(kind) + (of_kind == 1 ? " file of rank " : " files of ranks ") +
                    listed(numbers, of_kind));
  }

  std::string sentence() const {
    return compose("{}{} missing (partition_count is {}): {}", listed(kinds, kinds.size()),
                   (count == 1 ? " is" : " are"), world, listed(names, count));
  }

 private:
  static constexpr std::size_t kShown = 8;

  static std::string listed(const std::vector<std::string>& items, std::uint64_t all) {
    std::string out;
    const std::size_t shown = std::min(items.size(), kShown);
    for (std::size_t i = 0; i < shown; ++i) out.append(i == 0 ? "" : ", ").append(items[i]);
    return shown == all ? out : compose("{} and {} more", out, all - shown);
  }
};

std::string number_text(double number) {
  return number == std::floor(number) && std::abs(number) < 9e15
             ? std::to_string(static_cast<std::int64_t>(number))
             : to_json(Value::of_real(number));
}

class Describer {
 public:
  explicit Describer(std::shared_ptr<const SourceTree> tree)
      : tree_(tree),
        checkpoint_(std::make_unique<ZeroCheckpoint>(std::move(tree))),
        partitions_(*checkpoint_) {}

  Result<std::unique_ptr<Checkpoint>> run() {
    const auto done = read();
    return end_of_description(std::move(checkpoint_), done);
  }

 private:
  Result<> read() {
    EBB_TRY_ASSIGN(files_, find_files(*tree_));
    catalog().format = "deepspeed";
    if (files_.optimizer.empty()) return read_without_zero();
    EBB_TRY(check_ranks());
    for (const auto& [rank, name] : files_.optimizer) EBB_TRY(read_optimizer(Rank{rank}, name));
    ModelReader models(*checkpoint_, partitions_, facts_.stage, world_);
    for (const auto& [rank, name] : files_.model) EBB_TRY(read_model(models, Rank{rank}, name));
    finish(models.facts());
    return {};
  }

  // Each rank loads the one file.
  Result<> read_without_zero() {
    const std::string& name = files_.model.begin()->second;
    EBB_TRY_ASSIGN(const TorchArchive* archive, open_early(name));
    if (files_.model.size() > 1 || !is_unsharded(archive->graph()))
      return no_optimizer(*tree_, files_);
    EBB_TRY_ASSIGN(const File stored, open_file(name, Rank{0}));
    ModelReader models(*checkpoint_, partitions_, 0, 1);
    EBB_TRY(models.read(stored, Rank{0}));
    constexpr std::int64_t kMostRanks = 1 << 20;
    catalog().world =
        static_cast<std::uint32_t>(std::min(models.facts().ranks.value_or(1), kMostRanks));
    UnshardedOptimizer optimizer(stored, *checkpoint_, partitions_);
    EBB_TRY_ASSIGN(const auto source, tree_->open(name));
    EBB_TRY(optimizer.read(source));
    facts_ = optimizer.take_facts();
    state_.groups = optimizer.numbers();
    finish(models.facts());
    return {};
  }

  Catalog& catalog() { return checkpoint_->building(); }

  Error of_tag(Code code, const std::string& why) const {
    return refused(*tree_, code, compose("{}: {}", files_.tag, why));
  }

  // Kept until the file's turn comes.
  Result<const TorchArchive*> open_early(const std::string& name) {
    EBB_TRY_ASSIGN(TorchArchive archive, opened(*tree_, *checkpoint_, name));
    return &early_.emplace(name, std::move(archive)).first->second;
  }

  Result<File> open_file(const std::string& name, std::optional<Rank> rank) {
    auto early = early_.extract(name);
    if (early.empty()) return open_archive(*tree_, *checkpoint_, name, rank);
    return add_archive(std::move(early.mapped()), *checkpoint_, name, rank);
  }

  // Before anything else: are all ranks there? The first optimizer file knows how many there were.
  Result<> check_ranks() {
    EBB_TRY_ASSIGN(const TorchArchive* archive, open_early(files_.optimizer.begin()->second));
    EBB_TRY_ASSIGN(world_, partition_count(archive->graph()));
    Missing missing{world_};
    missing.look("optimizer", files_.optimizer, world_);
    missing.look("model", files_.model, is_stage3(archive->graph()) ? world_ : 1);
    if (missing.count > 0) {
      Error error = of_tag(Code::incomplete, missing.sentence());
      error.hint =
          "each node may have kept its own ranks' files: bring them together, or use the "
          "checkpoint before this one";
      error.place.file = missing.names.front();
      error.place.rank = missing.first;
      return error;
    }
    if (files_.optimizer.size() > world_)
      return of_tag(Code::layout, compose("partition_count is {} but {} rank files exist", world_,
                                          files_.optimizer.size()));
    catalog().world = world_;
    return read_shapes();
  }

  Result<> read_shapes() {
    EBB_TRY_ASSIGN(const TorchArchive* archive, open_early(files_.model.at(0)));
    EBB_TRY_ASSIGN(state_.groups, shapes_of(archive->graph(), archive->zip().source().name()));
    state_.starts.assign(state_.groups.size(), 0);
    state_.partition.assign(state_.groups.size(), 0);
    return {};
  }

  Result<> read_optimizer(Rank rank, const std::string& name) {
    EBB_TRY_ASSIGN(const File stored, open_file(name, rank));
    const RankFile file{*tree_,        stored.archive, stored.file, stored.where,
                        files_.folder, rank,           world_};
    OptimizerReader optimizer(file, state_, *checkpoint_, partitions_);
    EBB_TRY(optimizer.read());
    OptimizerFacts facts = optimizer.take_facts();
    if (rank == Rank{0}) {
      facts_ = std::move(facts);
      return {};
    }
    auto same = check_same_save(facts, stored.where);
    if (same) return same;
    Error error = std::move(same).error();
    error.place.file = name;
    error.place.rank = index_of(rank);
    return error;
  }

  // Files of one save agree about everything that is not a partition.
  Result<> check_same_save(const OptimizerFacts& facts, const std::string& where) const {
    const auto differs = [&](std::string_view what, double here, double first) {
      return Error{Code::layout,
                   compose("{}: {} {}, in the file of rank 0 it is {} (file of another save)",
                           where, what, number_text(here), number_text(first))};
    };
    const auto count = [](const auto& items) { return static_cast<double>(items.size()); };
    if (facts.stage != facts_.stage)
      return differs("zero_stage is", static_cast<double>(facts.stage),
                     static_cast<double>(facts_.stage));
    for (std::size_t i = 0; i < facts.steps.size(); ++i)
      if (facts.steps[i] && facts_.steps[i] && *facts.steps[i] != *facts_.steps[i]) {
        Error error = differs("the optimizer's step is", *facts.steps[i], *facts_.steps[i]);
        error.place.step = static_cast<std::int64_t>(std::clamp(*facts.steps[i], 0.0, 9e15));
        return error;
      }
    if (facts.groups.size() != facts_.groups.size())
      return differs("the number of param_groups is", count(facts.groups), count(facts_.groups));
    for (std::size_t i = 0; i < facts.groups.size(); ++i) {
      const auto& mine = facts.groups[i].settings;
      const auto& first = facts_.groups[i].settings;
      if (!std::equal(mine.begin(), mine.end(), first.begin(), first.end(),
                      [](const auto& a, const auto& b) {
                        return a.first == b.first && to_json(a.second) == to_json(b.second);
                      }))
        return Error{Code::layout, compose("{}: param_groups {} has other settings than in the "
                                           "file of rank 0 (file of another save)",
                                           where, i)};
    }
    return {};
  }

  Result<> read_model(ModelReader& models, Rank rank, const std::string& name) {
    EBB_TRY_ASSIGN(const File stored,
                   open_file(name, files_.model.size() > 1 ? std::optional(rank) : std::nullopt));
    EBB_TRY(models.read(stored, rank));
    const auto ranks = models.facts().ranks;
    if (rank == Rank{0} && ranks && *ranks != static_cast<std::int64_t>(world_))
      return Error{Code::layout, compose("{}: dp_world_size is {}, but partition_count is {}",
                                         stored.where, *ranks, world_)};
    return {};
  }

  void finish(const ModelFacts& model) {
    checkpoint_->finish();
    const std::int64_t stage = facts_.stage;
    const std::string policy = stage == 3              ? "zero3"
                               : state_.padded_between ? "zero12-boundary"
                                                       : "zero12";
    catalog().partition =
        stage == 0 ? std::string(kWithoutZero)
                   : compose("{} over {}{}{}", policy, world_, world_ == 1 ? " rank" : " ranks",
                             (stage == 3 ? "" : compose(" (stage {})", stage)));
    set_values(catalog(), files_.tag, state_.groups, model, std::move(facts_));
    if (!files_.folder.empty() && tree_->find("latest") == nullptr)
      catalog().notes.emplace_back(kNoLatest);
    if (stage == 3)
      catalog().notes.emplace_back(
          "stage 3 keeps no 16-bit weights: they are the master weights, rounded");
  }

  std::shared_ptr<const SourceTree> tree_;
  std::unique_ptr<ZeroCheckpoint> checkpoint_;
  Partitions partitions_;
  Files files_;
  std::map<std::string, TorchArchive> early_;  // those that were opened before their turn
  std::uint32_t world_ = 1;
  FlatState state_;
  OptimizerFacts facts_;  // rank 0's
};

}  // namespace
}  // namespace deepspeed

// A model file that is named itself is no checkpoint of this format, but torch.save reads it.
bool detect_deepspeed(const SourceTree& tree) {
  const bool alone = tree.entries().size() == 1 && tree.root().ends_with(tree.entries()[0].name);
  return std::ranges::any_of(tree.entries(), [&](const auto& entry) {
    const auto name = deepspeed::file_of_checkpoint(entry.name);
    return name && !(alone && name->kind == deepspeed::FileName::Kind::model);
  });
}

Result<std::unique_ptr<Checkpoint>> describe_deepspeed(std::shared_ptr<const SourceTree> tree) {
  return deepspeed::Describer(std::move(tree)).run();
}

}  // namespace ebb::formats
