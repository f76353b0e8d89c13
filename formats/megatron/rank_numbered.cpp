// Optimizers that number their parameters: torch's own state dict, {"state": {number: {word:
// tensor}}, "param_groups": [{"params": [numbers], ...}]}, with "fp32_from_fp16_params" beside it
// where the model is of 16 bits. One, or a list of them: in the model's own file, or, of the
// layer-wise optimizer, in a file for each data-parallel rank.
#include <algorithm>
#include <set>

#include "ebb/formats/catalog/resume.h"
#include "ebb/formats/core/json_text.h"
#include "ebb/formats/core/number_text.h"
#include "ebb/formats/megatron/optimizers.h"
#include "ebb/formats/megatron/rank_states.h"
#include "ebb/formats/state_dict/groups.h"

namespace ebb::formats::megatron {
namespace {

constexpr std::string_view kMasters = "fp32_from_fp16_params";
constexpr std::string_view kMaster = "fp32_param";

struct NumberedParam {
  std::vector<std::pair<std::string, TorchTensor>> states;
  std::optional<std::int64_t> steps;
};

struct NumberedGroup {
  GroupEntry settings;
  std::vector<NumberedParam> params;
  std::vector<TorchTensor> masters;  // of those of its parameters that are of 16 bits

  bool has_states() const {
    return !masters.empty() || std::ranges::any_of(params, [](const NumberedParam& param) {
      return !param.states.empty();
    });
  }
};

// All groups of the optimizers of one file, in order.
class NumberedFile {
 public:
  explicit NumberedFile(const torch_save::OpenFile& file) : file_(file), graph_(file.graph()) {}

  // `optimizers`: one or a list of them. False: in a form that is not read.
  Result<bool> read(PickleId optimizers) {
    const bool listed = graph_.is(optimizers, PickleKind::list);
    for (const PickleId one : listed ? graph_.items(optimizers) : std::span(&optimizers, 1)) {
      EBB_TRY_ASSIGN(const bool known, add_optimizer(one));
      if (!known) return false;
    }
    return true;
  }
  const std::vector<NumberedGroup>& groups() const { return groups_; }
  bool has_states() const { return std::ranges::any_of(groups_, &NumberedGroup::has_states); }

 private:
  using ById = std::map<std::int64_t, PickleId>;

  Result<bool> add_optimizer(PickleId optimizer) {
    const PickleId wrapped = graph_.find(optimizer, kOptimizer);
    const PickleId inner = wrapped == kNoPickle ? optimizer : wrapped;
    const PickleId groups = graph_.find(inner, kParamGroups);
    if (groups == kNoPickle || !graph_.is(groups, PickleKind::list)) return false;
    ById states;
    if (const PickleId state = graph_.find(inner, kState);
        state != kNoPickle && graph_.is(state, PickleKind::dict)) {
      const std::span<const PickleId> items = graph_.items(state);
      for (std::size_t i = 0; i + 1 < items.size(); i += 2)
        if (graph_.is(items[i], PickleKind::integer))
          states[graph_.integer(items[i])] = items[i + 1];
    }
    const PickleId masters = graph_.find(optimizer, kMasters);
    for (std::size_t i = 0; i < graph_.items(groups).size(); ++i) {
      EBB_TRY_ASSIGN(const bool known,
                     add_group(graph_.items(groups)[i], states, items_at(masters, i)));
      if (!known) return false;
    }
    return true;
  }

  // The list at a place of a list; empty where there is none.
  std::span<const PickleId> items_at(PickleId list, std::size_t place) const {
    if (list == kNoPickle || !graph_.is(list, PickleKind::list) ||
        place >= graph_.items(list).size() ||
        !graph_.is(graph_.items(list)[place], PickleKind::list))
      return {};
    return graph_.items(graph_.items(list)[place]);
  }

  Result<bool> add_group(PickleId id, const ById& states, std::span<const PickleId> masters) {
    const PickleId params = graph_.find(id, "params");
    if (params == kNoPickle || !graph_.is(params, PickleKind::list)) return false;
    NumberedGroup group;
    const std::span<const PickleId> settings = graph_.items(id);
    for (std::size_t i = 0; i + 1 < settings.size(); i += 2) {
      if (!graph_.is(settings[i], PickleKind::string) || settings[i + 1] == params) continue;
      EBB_TRY_ASSIGN(ReadablePart part, file_.value_at(settings[i + 1]));
      group.settings.settings.emplace_back(graph_.text(settings[i]), part.value.value_or(Value()));
    }
    group.settings.optimizer = optimizer_name(group.settings);
    for (const PickleId number : graph_.items(params)) {
      if (!graph_.is(number, PickleKind::integer)) return false;
      NumberedParam& param = group.params.emplace_back();
      const auto state = states.find(graph_.integer(number));
      if (state == states.end()) continue;
      EBB_TRY_ASSIGN(const bool known, add_states(param, state->second));
      if (!known) return false;
    }
    EBB_TRY_ASSIGN(const bool known, add_masters(group, masters));
    groups_.push_back(std::move(group));
    return known;
  }

  Result<bool> add_states(NumberedParam& param, PickleId states) {
    if (!graph_.is(states, PickleKind::dict)) return false;
    const std::span<const PickleId> items = graph_.items(states);
    for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
      if (!graph_.is(items[i], PickleKind::string)) return false;
      const std::string_view word = graph_.text(items[i]);
      if (word == kStep) {
        EBB_TRY_ASSIGN(const ReadablePart part, file_.value_at(items[i + 1]));
        if (part.value) param.steps = counted(*part.value);
        continue;
      }
      if (!is_torch_tensor(graph_, items[i + 1]) || unread_form(graph_, items[i + 1])) return false;
      auto tensor = torch_tensor(graph_, items[i + 1]);
      if (!tensor) return std::move(tensor).error().about(json_string(word));
      param.states.emplace_back(word, *std::move(tensor));
    }
    return true;
  }

  Result<bool> add_masters(NumberedGroup& group, std::span<const PickleId> masters) {
    for (const PickleId master : masters) {
      if (!is_torch_tensor(graph_, master) || unread_form(graph_, master)) return false;
      EBB_TRY_ASSIGN(TorchTensor tensor, torch_tensor(graph_, master));
      group.masters.push_back(std::move(tensor));
    }
    return true;
  }

  const torch_save::OpenFile& file_;
  const PickleGraph& graph_;
  std::vector<NumberedGroup> groups_;
};

// Which of the parameters each group has, by Megatron's default rule: biases and vectors have no
// weight decay, Muon's are matrices other than the embedding and the output layer. nullopt: some
// fit none, or several.
class GroupRule {
 public:
  explicit GroupRule(const std::vector<NumberedGroup>& groups) : groups_(groups) {
    for (const NumberedGroup& group : groups_) muon_ = muon_ || group.settings.optimizer == "muon";
  }

  std::optional<std::vector<Members>> members(const std::vector<LocalParam>& params) const {
    std::vector<Members> members(groups_.size());
    for (const LocalParam& param : params) {
      std::optional<std::size_t> found;
      for (std::size_t i = 0; i < groups_.size(); ++i) {
        if (!fits(param, i)) continue;
        if (found) return std::nullopt;
        found = i;
      }
      if (!found) return std::nullopt;
      members[*found].push_back(&param);
    }
    return members;
  }

 private:
  static bool is_vector(const LocalParam& param) {
    return param.weight().shape.size() < 2 || param.tensor->key.ends_with(".bias");
  }
  static bool is_matrix_of_muon(const LocalParam& param) {
    const std::string& key = param.tensor->key;
    return param.weight().shape.size() == 2 && !key.ends_with("word_embeddings.weight") &&
           !key.ends_with("output_layer.weight");
  }
  bool is_of_kind(const LocalParam& param, const NumberedGroup& group) const {
    return !muon_ || is_matrix_of_muon(param) == (group.settings.optimizer == "muon");
  }
  // A group that is alone with its optimizer has all of its parameters.
  bool fits(const LocalParam& param, std::size_t number) const {
    const NumberedGroup& group = groups_[number];
    if (!is_of_kind(param, group)) return false;
    const bool alone = std::ranges::none_of(groups_, [&](const NumberedGroup& other) {
      return &other != &group && is_of_kind(param, other);
    });
    const auto decay = number_in(setting_of(group.settings, "wd_mult"));
    return alone || (decay && (*decay == 0) == is_vector(param));
  }

  const std::vector<NumberedGroup>& groups_;
  bool muon_ = false;
};

// Of each data-parallel rank, by group: the layer-wise optimizer deals them out by their sizes, to
// and fro.
std::vector<std::vector<Members>> dealt(const std::vector<Members>& members, std::size_t ranks) {
  struct One {
    const LocalParam* param;
    std::size_t group;
  };
  std::vector<std::vector<Members>> of_ranks(ranks, std::vector<Members>(members.size()));
  if (ranks == 1) return {members};
  std::vector<One> all;
  for (std::size_t group = 0; group < members.size(); ++group)
    for (const LocalParam* param : members[group]) all.push_back({param, group});
  std::ranges::stable_sort(all, {}, [](const One& one) { return one.param->weight().elems(); });
  for (std::size_t i = 0; i < all.size(); ++i) {
    const std::size_t turn = i % (2 * ranks);
    of_ranks[turn < ranks ? turn : 2 * ranks - 1 - turn][all[i].group].push_back(all[i].param);
  }
  return of_ranks;
}

// The master of each of a group's parameters; nullptr: it is one itself. nullopt: there are others.
std::optional<std::vector<const TorchTensor*>> masters_of(const NumberedGroup& group,
                                                          const Members& members) {
  std::vector<const TorchTensor*> masters;
  std::size_t next = 0;
  for (const LocalParam* param : members) {
    const bool has = !group.masters.empty() && param->weight().dtype != DType::f32;
    if (has && next == group.masters.size()) return std::nullopt;
    masters.push_back(has ? &group.masters[next++] : nullptr);
  }
  return next == group.masters.size() ? std::optional(std::move(masters)) : std::nullopt;
}

class RankNumbers {
 public:
  RankNumbers(const RankSource& source, RankFile& rank, NumberedFound& found)
      : source_(source), rank_(rank), found_(found), params_(params_of(source.model, rank)) {}

  // False: there are none.
  Result<bool> run() {
    EBB_TRY_ASSIGN(const std::vector<std::string> names, layer_wise_files());
    std::vector<torch_save::OpenFile> opened;
    for (const std::string& name : names) {
      EBB_TRY_ASSIGN(auto file, source_.open(rank_, name));
      opened.push_back(std::move(file));
    }
    std::vector<Source> files;
    for (torch_save::OpenFile& file : opened)
      files.push_back({&file, NumberedFile(file), file.graph().root()});
    if (opened.empty()) {
      const PickleId own = rank_.find(kOptimizer);
      if (own == kNoPickle) return false;
      files.push_back({&rank_.file, NumberedFile(rank_.file), own});
    }
    if (!opened.empty() && rank_.at == RankPlace()) {
      const torch_save::OpenFile& file = opened.front();
      EBB_TRY_ASSIGN(found_.optimizer, optimizer_value(file, file.graph().root()));
    }
    bool known = true;
    for (Source& file : files) {
      EBB_TRY_ASSIGN(const bool read, file.numbered.read(file.optimizers));
      known = known && read;
    }
    if (!known && names.empty()) return false;  // no optimizer with states of its own
    const bool states =
        std::ranges::any_of(files, [](const Source& file) { return file.numbered.has_states(); });
    if (known && !states) return false;
    EBB_TRY_ASSIGN(const bool placed, known ? place(files) : Result<bool>(false));
    if (!placed) leave(files);
    return true;
  }

 private:
  struct Source {
    torch_save::OpenFile* file;
    NumberedFile numbered;
    PickleId optimizers;
  };

  Result<std::vector<std::string>> layer_wise_files() const {
    std::set<std::uint32_t> numbers;
    const std::string prefix = rank_.file_beside(kLayerWise);
    for (const SourceTree::Entry& entry : source_.tree.entries()) {
      std::string_view name = entry.name;
      if (!name.starts_with(prefix) || !name.ends_with(".pt")) continue;
      name.remove_prefix(prefix.size());
      if (const auto number = parse_number<std::uint32_t>(name.substr(0, name.size() - 3)))
        if (*number < kMostRanks) numbers.insert(*number);
    }
    std::vector<std::string> names;
    MissingFiles missing;
    if (numbers.empty()) return names;
    std::uint32_t ranks = *numbers.rbegin() + 1;
    const auto said = source_.model.argument("data_parallel_size");
    if (said && *said > ranks && *said <= kMostRanks) ranks = static_cast<std::uint32_t>(*said);
    for (std::uint32_t i = 0; i < ranks; ++i) {
      names.push_back(compose("{}{}.pt", kLayerWise, i));
      if (!numbers.contains(i)) missing.add(rank_.file_beside(names.back()));
    }
    if (!missing.none()) return missing.error(source_.tree, ranks);
    return names;
  }

  // False: whose they are does not follow.
  Result<bool> place(std::vector<Source>& files) {
    const auto members = GroupRule(files.front().numbered.groups()).members(params_);
    if (!members) return false;
    const auto of_ranks = dealt(*members, files.size());
    for (std::size_t i = 0; i < files.size(); ++i) {
      EBB_TRY_ASSIGN(const bool agree, fits(files[i], of_ranks[i]));
      if (!agree) return false;
    }
    for (std::size_t i = 0; i < files.size(); ++i)
      for (std::size_t group = 0; group < of_ranks[i].size(); ++group)
        for (std::size_t k = 0; k < of_ranks[i][group].size(); ++k)
          EBB_TRY(add_states(files[i], files[i].numbered.groups()[group].params[k],
                             *of_ranks[i][group][k]));
    for (std::size_t i = 0; i < files.size(); ++i)
      for (std::size_t group = 0; group < of_ranks[i].size(); ++group)
        EBB_TRY(add_masters(files[i], files[i].numbered.groups()[group], of_ranks[i][group]));
    return true;
  }

  // As many, of the same shapes, and the masters are the weights.
  Result<bool> fits(const Source& file, const std::vector<Members>& members) const {
    const std::vector<NumberedGroup>& groups = file.numbered.groups();
    if (groups.size() != members.size()) return false;
    for (std::size_t group = 0; group < groups.size(); ++group) {
      if (groups[group].params.size() != members[group].size()) return false;
      const auto masters = masters_of(groups[group], members[group]);
      if (!masters) return false;
      for (std::size_t k = 0; k < members[group].size(); ++k) {
        const NumberedParam& param = groups[group].params[k];
        const TorchTensor& weight = members[group][k]->weight();
        for (const auto& [word, state] : param.states)
          if (state.shape != weight.shape) return false;
        if ((*masters)[k] == nullptr) continue;
        EBB_TRY_ASSIGN(const bool rounded,
                       are_rounded(*file.file, *(*masters)[k], rank_.file, weight));
        if (!rounded) return false;
      }
    }
    return true;
  }

  Result<> add_masters(Source& file, const NumberedGroup& group, const Members& members) {
    const auto masters = *masters_of(group, members);
    for (std::size_t k = 0; k < members.size(); ++k)
      if (masters[k] != nullptr)
        EBB_TRY(source_.tensors.add(members[k]->place, kMaster, *file.file, rank_.at, *masters[k]));
    return {};
  }

  Result<> add_states(Source& file, const NumberedParam& param, const LocalParam& of) {
    for (const auto& [word, state] : param.states)
      EBB_TRY(source_.tensors.add(of.place, word, *file.file, rank_.at, state));
    if (param.steps) found_.steps[of.place.name] = *param.steps;
    return {};
  }

  void leave(const std::vector<Source>& files) {
    std::set<std::string> words;
    for (const Source& file : files)
      for (const NumberedGroup& group : file.numbered.groups()) {
        if (!group.masters.empty()) words.emplace(kMaster);
        for (const NumberedParam& param : group.params)
          for (const auto& [word, state] : param.states) words.insert(word);
      }
    if (words.empty()) words.emplace(kMaster);
    leave_states(source_, params_, {words.begin(), words.end()},
                 "a numbered state, and whose it is does not follow from Megatron's order of "
                 "parameters");
  }

  const RankSource& source_;
  RankFile& rank_;
  NumberedFound& found_;
  std::vector<LocalParam> params_;
};

}  // namespace

Result<NumberedFound> read_numbered(const RankSource& source) {
  NumberedFound found;
  for (RankFile& rank : source.grid.files) {
    EBB_TRY_ASSIGN(const bool here, RankNumbers(source, rank, found).run());
    found.any = found.any || here;
  }
  return found;
}

}  // namespace ebb::formats::megatron
