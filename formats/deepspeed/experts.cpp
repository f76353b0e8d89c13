#include "ebb/formats/deepspeed/experts.h"

#include <algorithm>
#include <charconv>
#include <set>

#include "ebb/formats/core/json_text.h"

namespace ebb::formats::deepspeed {
namespace {

constexpr std::string_view kExperts = ".deepspeed_moe.experts.deepspeed_experts.";
constexpr std::uint32_t kMaxExperts = 1 << 20;  // of one layer

std::string name_among_all(const ExpertName& name, std::uint64_t number) {
  return compose("{}{}{}{}", name.layer, kExperts, number, name.rest);
}

// How many experts each layer has in these names.
std::map<std::string, std::uint32_t, std::less<>> experts_of_layers(const Group& params) {
  std::map<std::string, std::uint32_t, std::less<>> counts;
  for (const Param& param : params)
    if (const auto name = expert_name(param.name)) {
      std::uint32_t& count = counts.emplace(std::string(name->layer), 0).first->second;
      count = std::max(count, name->number + 1);
    }
  return counts;
}

}  // namespace

std::optional<ExpertName> expert_name(std::string_view param) {
  const std::size_t at = param.find(kExperts);
  if (at == std::string_view::npos) return std::nullopt;
  ExpertName name;
  name.layer = param.substr(0, at);
  const std::string_view rest = param.substr(at + kExperts.size());
  const auto [stop, error] = std::from_chars(rest.data(), rest.data() + rest.size(), name.number);
  if (error != std::errc{} || stop == rest.data() || name.number >= kMaxExperts)
    return std::nullopt;
  name.rest = rest.substr(static_cast<std::size_t>(stop - rest.data()));
  if (!name.rest.empty() && !name.rest.starts_with('.')) return std::nullopt;
  return name;
}

std::vector<std::uint32_t> experts_in_all(const PickleGraph& model) {
  std::vector<std::uint32_t> counts;
  const PickleId list = model.find(model.root(), "num_experts");
  if (list == kNoPickle || !model.is(list, PickleKind::list)) return counts;
  for (const PickleId item : model.items(list)) {
    const bool number = model.is(item, PickleKind::integer) && model.integer(item) >= 0 &&
                        model.integer(item) <= kMaxExperts;
    counts.push_back(number ? static_cast<std::uint32_t>(model.integer(item)) : 0);
  }
  return counts;
}

ExpertOrder expert_order(const PickleGraph& model) {
  const PickleId config = model.find(model.root(), "ds_config");
  const PickleId first = model.find(config, "use_data_before_expert_parallelism");
  const bool blocks =
      first != kNoPickle && model.is(first, PickleKind::boolean) && model.integer(first) != 0;
  return blocks ? ExpertOrder::in_blocks : ExpertOrder::in_turn;
}

Result<> ExpertGroups::open(FlatState& state, const std::vector<std::uint32_t>& counts,
                            ExpertOrder order, std::uint32_t world, std::string_view where) {
  order_ = order;
  if (counts.size() != state.groups.size())
    return Error{Code::unsupported,
                 compose("{}: parameter groups cut over different numbers of ranks", where)};
  for (std::size_t g = 0; g < counts.size(); ++g) {
    if (counts[g] == world) continue;
    const Group& params = state.groups[g];
    const auto stranger = std::ranges::find_if(
        params, [](const Param& param) { return !expert_name(param.name).has_value(); });
    if (world % counts[g] != 0 || stranger != params.end())
      return Error{
          Code::unsupported,
          compose("{}: parameter group {} is cut over {} of {} ranks{}", where, g, counts[g], world,
                  stranger == params.end()
                      ? std::string()
                      : compose(", and nothing records which parameter of each rank {} is",
                                json_string(stranger->name)))};
    OneGroup group{g, counts[g], {}};
    const auto local = experts_of_layers(params);
    for (std::uint32_t e = 0; e < world / counts[g]; ++e) {
      OfRank& mine = group.of_ranks.emplace_back();
      for (const Param& param : params) {
        const ExpertName name = *expert_name(param.name);
        const std::uint64_t first = std::uint64_t{e} * local.find(name.layer)->second;
        mine.params.push_back({name_among_all(name, first + name.number), param.shape});
      }
    }
    groups_.push_back(std::move(group));
  }
  return {};
}

std::uint32_t ExpertGroups::expert_rank(const OneGroup& group, Rank rank) const {
  return order_ == ExpertOrder::in_blocks
             ? index_of(rank) / group.ranks
             : index_of(rank) % static_cast<std::uint32_t>(group.of_ranks.size());
}

GroupPlace ExpertGroups::place_in(const OneGroup& group, Rank rank) const {
  const std::uint32_t place =
      order_ == ExpertOrder::in_blocks
          ? index_of(rank) % group.ranks
          : index_of(rank) / static_cast<std::uint32_t>(group.of_ranks.size());
  return {Rank{place}, group.ranks};
}

void ExpertGroups::exchange(FlatState& state, Rank rank) {
  for (OneGroup& group : groups_) {
    OfRank& mine = group.of_ranks[expert_rank(group, rank)];
    std::swap(state.groups[group.number], mine.params);
    std::swap(state.starts[group.number], mine.start);
    std::swap(state.partition[group.number], mine.partition);
  }
}

void ExpertGroups::enter(FlatState& state, Rank rank) {
  exchange(state, rank);
  for (const OneGroup& group : groups_) state.places[group.number] = place_in(group, rank);
}

void ExpertGroups::leave(FlatState& state, Rank rank) { exchange(state, rank); }

void ExpertGroups::complete(FlatState& state, std::vector<GroupEntry>& groups) const {
  for (const OneGroup& group : groups_) {
    Group all;
    for (const OfRank& mine : group.of_ranks)
      all.insert(all.end(), mine.params.begin(), mine.params.end());
    const auto first = [&](const GroupEntry& entry) {
      return !entry.params.empty() && !all.empty() && entry.params.front() == all.front().name;
    };
    if (const auto entry = std::ranges::find_if(groups, first); entry != groups.end()) {
      entry->params.clear();
      for (const Param& param : all) entry->params.push_back(param.name);
    }
    state.groups[group.number] = std::move(all);
  }
}

namespace {

class ExpertFiles {
 public:
  ExpertFiles(const SourceTree& tree, const Files& files, ZeroCheckpoint& checkpoint,
              Partitions& partitions)
      : tree_(tree), files_(files), checkpoint_(checkpoint), partitions_(partitions) {}

  Result<> read() {
    for (const auto& [place, name] : files_.experts) EBB_TRY(read_file(name));
    return {};
  }

  // Layers are numbered by the order of the model; a file says which it is by what it holds.
  Result<> check(const std::vector<std::uint32_t>& experts, const std::vector<Group>& listed) {
    // A checkpoint that no such job wrote may have their parameters among its other weights.
    if (experts.empty() && files_.experts.empty()) return {};
    for (std::uint32_t layer = 0; layer < experts.size(); ++layer)
      for (std::uint32_t expert = 0; expert < experts[layer]; ++expert)
        if (!files_.experts.contains({layer, expert})) return missing(layer, expert);
    for (const Group& group : listed)
      for (const Param& param : group)
        if (expert_name(param.name) && !names_.contains(param.name))
          return refused(
              tree_, Code::incomplete,
              compose("{}: no file layer_*_expert_{}_mp_rank_00_model_states.pt holds {}",
                      files_.tag, expert_name(param.name)->number, json_string(param.name)));
    return {};
  }

 private:
  Error missing(std::uint32_t layer, std::uint32_t expert) const {
    const std::string name =
        compose("{}layer_{}_expert_{}_mp_rank_00_model_states.pt", files_.folder, layer, expert);
    return missing_file(
        tree_, compose("{}: the weights of expert {} are missing: {}", files_.tag, expert, name),
        name);
  }

  Result<> read_file(const std::string& name) {
    EBB_TRY_ASSIGN(const File file, open_archive(tree_, checkpoint_, name, std::nullopt));
    EBB_TRY_ASSIGN(const auto tensors, tensors_at_the_top(file));
    for (const auto& [param, id] : tensors) {
      if (!names_.insert(param).second)
        return Error{Code::layout, compose("{}: {} is in a file of another expert, too", file.where,
                                           json_string(param))};
      if (leave_unread(checkpoint_, file.graph(), id, param, "param")) continue;
      EBB_TRY_ASSIGN(const TorchTensor tensor, torch_tensor(file.graph(), id));
      EBB_TRY_ASSIGN(const Flat flat, checkpoint_.add_flat(file.archive, file.file, tensor));
      EBB_TRY(partitions_.add_module(param, "param", flat, file.where));
    }
    return {};
  }

  const SourceTree& tree_;
  const Files& files_;
  ZeroCheckpoint& checkpoint_;
  Partitions& partitions_;
  std::set<std::string, std::less<>> names_;
};

}  // namespace

Result<> read_expert_files(const SourceTree& tree, const Files& files,
                           const std::vector<std::uint32_t>& experts,
                           const std::vector<Group>& listed, ZeroCheckpoint& checkpoint,
                           Partitions& partitions) {
  ExpertFiles of_experts(tree, files, checkpoint, partitions);
  EBB_TRY(of_experts.read());
  return of_experts.check(experts, listed);
}

}  // namespace ebb::formats::deepspeed
