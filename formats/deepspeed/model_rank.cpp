#include "ebb/formats/deepspeed/model_rank.h"

#include <algorithm>
#include <cmath>

#include "ebb/formats/core/number_text.h"
#include "ebb/formats/deepspeed/values.h"

namespace ebb::formats::deepspeed {
namespace {

// The files of ranks that are not there.
struct Missing {
  std::uint32_t world = 1;
  std::string whose;  // "" or " of mp_rank_01"
  std::uint64_t count = 0;
  std::optional<std::uint32_t> first;  // rank
  std::vector<std::string> kinds;      // "optimizer files of ranks 1, 2"
  std::vector<std::string> names;      // of the files, the first of them

  // `like`: a file of the kind.
  void look(std::string_view kind, const std::map<std::uint32_t, std::string>& files,
            const std::string& like, std::uint32_t ranks) {
    std::vector<std::string> numbers;
    std::uint64_t of_kind = 0;
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      if (files.contains(rank)) continue;
      if (!first) first = rank;
      if (++of_kind > kShown) continue;
      numbers.push_back(std::to_string(rank));
      names.push_back(file_of_rank(like, rank));
    }
    if (of_kind == 0) return;
    count += of_kind;
    kinds.push_back(std::string(kind) + (of_kind == 1 ? " file of rank " : " files of ranks ") +
                    listed(numbers, of_kind));
  }

  std::string sentence() const {
    return compose("{}{}{} missing (partition_count is {}): {}", listed(kinds, kinds.size()), whose,
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

// The first file of that kind that any model-parallel rank has.
using Kind = std::map<std::uint32_t, std::string> RankFiles::*;
std::string first_of(const Files& files, Kind kind) {
  for (const RankFiles& rank : files.of_model_ranks)
    if (!(rank.*kind).empty()) return (rank.*kind).begin()->second;
  return {};
}

// What that one is called of this model-parallel rank.
std::string like(const Files& files, std::uint32_t model_rank, Kind kind) {
  const std::string name = first_of(files, kind);
  return name.empty() ? name : file_of_model_rank(name, model_rank);
}

}  // namespace

Result<const TorchArchive*> Archives::look(const std::string& name) {
  if (const auto known = early_.find(name); known != early_.end()) return &known->second;
  EBB_TRY_ASSIGN(TorchArchive archive, opened(tree_, checkpoint_, name));
  return &early_.emplace(name, std::move(archive)).first->second;
}

Result<File> Archives::open(const std::string& name, std::optional<Rank> rank) {
  auto early = early_.extract(name);
  if (early.empty()) return open_archive(tree_, checkpoint_, name, rank);
  return add_archive(std::move(early.mapped()), checkpoint_, name, rank);
}

Error ModelRankReader::of_tag(Code code, const std::string& why) const {
  return refused(place_.tree, code, compose("{}: {}", place_.files.tag, why));
}

Result<> ModelRankReader::check() {
  const std::string first = files_.optimizer.empty() ? first_of(place_.files, &RankFiles::optimizer)
                                                     : files_.optimizer.begin()->second;
  EBB_TRY_ASSIGN(const TorchArchive* archive, archives_.look(first));
  EBB_TRY_ASSIGN(const std::vector<std::uint32_t> counts, partition_counts(archive->graph()));
  world_ = std::ranges::max(counts);
  stage3_ = deepspeed::is_stage3(archive->graph());
  Missing missing;
  missing.world = world_;
  if (place_.files.of_model_ranks.size() > 1)
    missing.whose = " of mp_rank_" + zero_padded(place_.number, 2);
  missing.look("optimizer", files_.optimizer,
               like(place_.files, place_.number, &RankFiles::optimizer), world_);
  missing.look("model", files_.model, like(place_.files, place_.number, &RankFiles::model),
               stage3_ ? world_ : 1);
  if (missing.count > 0) {
    Error error = missing_file(place_.tree, compose("{}: {}", place_.files.tag, missing.sentence()),
                               missing.names.front());
    error.place.rank = missing.first;
    return error;
  }
  if (files_.optimizer.size() > world_)
    return of_tag(Code::layout, compose("partition_count is {} but {} rank files exist", world_,
                                        files_.optimizer.size()));
  EBB_TRY(read_shapes());
  return find_experts(counts);
}

Result<> ModelRankReader::read_shapes() {
  EBB_TRY_ASSIGN(const TorchArchive* archive, archives_.look(files_.model.at(0)));
  EBB_TRY_ASSIGN(state_.groups, shapes_of(archive->graph(), archive->zip().source().name()));
  state_.starts.assign(state_.groups.size(), 0);
  state_.partition.assign(state_.groups.size(), 0);
  state_.places.assign(state_.groups.size(), {Rank{0}, world_});
  return {};
}

Result<> ModelRankReader::find_experts(const std::vector<std::uint32_t>& counts) {
  if (counts.size() < 2) return {};
  EBB_TRY_ASSIGN(const TorchArchive* archive, archives_.look(files_.model.at(0)));
  return experts_.open(state_, counts, expert_order(archive->graph()), world_,
                       archive->zip().source().name());
}

Result<ModelRankContent> ModelRankReader::read(ModelReader& models, const Degrees& degrees) {
  for (const auto& [rank, name] : files_.optimizer)
    EBB_TRY(read_optimizer(Rank{rank}, name, degrees));
  experts_.complete(state_, facts_.groups);
  for (const auto& [rank, name] : files_.model)
    EBB_TRY(read_model(models, Rank{rank}, name, degrees));
  undo_dealing(models.facts(), world_, facts_);
  return ModelRankContent{partitions_.take(), std::move(state_.groups), std::move(facts_),
                          state_.padded_between};
}

Result<> ModelRankReader::read_optimizer(Rank rank, const std::string& name,
                                         const Degrees& degrees) {
  const Rank holder = degrees.rank_of(place_.number, rank, world_);
  EBB_TRY_ASSIGN(const File stored, archives_.open(name, holder));
  for (GroupPlace& place : state_.places) place = {rank, world_};
  experts_.enter(state_, rank);
  const RankFile file{place_.tree,         stored.archive, stored.file, stored.where,
                      place_.files.folder, rank,           holder};
  OptimizerReader optimizer(file, state_, checkpoint_, partitions_);
  EBB_TRY(optimizer.read());
  experts_.leave(state_, rank);
  OptimizerFacts facts = optimizer.take_facts();
  if (rank == Rank{0}) {
    facts_ = std::move(facts);
    return {};
  }
  auto same = check_same_save(facts, stored.where);
  if (same) return same;
  Error error = std::move(same).error();
  error.place.file = name;
  error.place.rank = index_of(holder);
  return error;
}

// Files of one save agree about everything that is not a partition.
Result<> ModelRankReader::check_same_save(const OptimizerFacts& facts,
                                          const std::string& where) const {
  const auto differs = [&](std::string_view what, double here, double first) {
    return Error{Code::layout,
                 compose("{}: {} {}, in the file of rank 0 it is {} (file of another save)", where,
                         what, number_text(here), number_text(first))};
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
  for (std::size_t i = 0; i < facts.groups.size(); ++i)
    if (!same_settings(facts.groups[i], facts_.groups[i]))
      return Error{Code::layout, compose("{}: param_groups {} has other settings than in the "
                                         "file of rank 0 (file of another save)",
                                         where, i)};
  return {};
}

Result<> ModelRankReader::read_model(ModelReader& models, Rank rank, const std::string& name,
                                     const Degrees& degrees) {
  const bool several = files_.model.size() > 1 || degrees.ranks() > 1;
  EBB_TRY_ASSIGN(
      const File stored,
      archives_.open(name, several ? std::optional(degrees.rank_of(place_.number, rank, world_))
                                   : std::nullopt));
  if (place_.number > 0) return models.read_of_model_rank(stored, rank);
  EBB_TRY(models.read(stored, rank));
  const auto ranks = models.facts().ranks;
  if (rank == Rank{0} && ranks && *ranks != static_cast<std::int64_t>(world_))
    return Error{Code::layout, compose("{}: dp_world_size is {}, but partition_count is {}",
                                       stored.where, *ranks, world_)};
  return {};
}

}  // namespace ebb::formats::deepspeed
