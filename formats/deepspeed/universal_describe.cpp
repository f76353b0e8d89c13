#include <algorithm>
#include <map>
#include <set>

#include "ebb/formats/core/json_text.h"
#include "ebb/formats/deepspeed/deepspeed.h"
#include "ebb/formats/deepspeed/model.h"
#include "ebb/formats/deepspeed/names.h"
#include "ebb/formats/deepspeed/optimizer.h"
#include "ebb/formats/deepspeed/universal_models.h"
#include "ebb/formats/deepspeed/values.h"
#include "ebb/formats/torch/unread.h"

namespace ebb::formats {
namespace deepspeed {
namespace {

constexpr std::string_view kGlobalState = "zero/optimizer_state.pt";
constexpr std::string_view kSuffix = ".pt";
constexpr std::string_view kLatest = "latest_universal";

// The folders of tags, each with its '/', "" for the root.
std::set<std::string> universal_folders(const SourceTree& tree) {
  std::set<std::string> folders;
  for (const SourceTree::Entry& entry : tree.entries()) {
    const std::string_view name = entry.name;
    if (!name.ends_with(kGlobalState)) continue;
    const std::string_view folder = name.substr(0, name.size() - kGlobalState.size());
    const bool of_a_tag = folder.ends_with('/') && std::ranges::count(folder, '/') == 1;
    if (folder.empty() || of_a_tag) folders.emplace(folder);
  }
  return folders;
}

class UniversalDescriber {
 public:
  explicit UniversalDescriber(std::shared_ptr<const SourceTree> tree)
      : tree_(tree),
        checkpoint_(std::make_unique<ZeroCheckpoint>(std::move(tree))),
        partitions_(*checkpoint_) {}

  Result<std::unique_ptr<Checkpoint>> run() {
    const auto done = read();
    return end_of_description(std::move(checkpoint_), done);
  }

 private:
  Result<> read() {
    EBB_TRY(find_folder());
    EBB_TRY_ASSIGN(models_, find_universal_models(*tree_, folder_));
    catalog().format = "deepspeed-universal";
    EBB_TRY_ASSIGN(const File first, open_model(0));
    EBB_TRY(check_model_ranks(models_, first, *tree_, folder_));
    EBB_TRY_ASSIGN(groups_, shapes_of(first.graph(), first.where));
    EBB_TRY_ASSIGN(config_, config_of(first.graph()));
    for (const std::string& name : models_.others) EBB_TRY(join(name));
    EBB_TRY(read_global_state());
    EBB_TRY(read_parameters());
    EBB_TRY(check_states());
    return read_models(first);
  }

  Catalog& catalog() { return checkpoint_->building(); }

  // Of the checkpoint it was made from: converters add a suffix.
  std::string tag() const {
    std::string tag = tag_of(*tree_, folder_);
    if (tag.ends_with(kUniversalSuffix) && tag.size() > kUniversalSuffix.size())
      tag.resize(tag.size() - kUniversalSuffix.size());
    return tag;
  }

  Result<> find_folder() {
    const std::set<std::string> folders = universal_folders(*tree_);
    if (tree_->find(kLatest) != nullptr) {
      EBB_TRY_ASSIGN(const std::string tag, read_latest(*tree_, kLatest));
      if (!folders.contains(tag + "/"))
        return refused(
            *tree_, Code::incomplete,
            compose("latest_universal names {}, which has no {}", json_string(tag), kGlobalState));
      folder_ = tag + "/";
    } else if (folders.size() == 1) {
      folder_ = *folders.begin();
    } else {
      return no_latest(*tree_, kLatest, folders);
    }
    return {};
  }

  Result<File> open_model(std::uint32_t rank) {
    return open_archive(*tree_, *checkpoint_, models_.first.at(rank),
                        models_.one_for_all ? std::nullopt : std::optional<Rank>(Rank{rank}));
  }

  // The shapes that another model-parallel rank lists. optimizer_state.pt has the groups of rank 0.
  Result<> join(const std::string& name) {
    EBB_TRY_ASSIGN(File file, open_archive(*tree_, *checkpoint_, name, std::nullopt));
    EBB_TRY_ASSIGN(std::vector<Group> shapes, shapes_of(file.graph(), file.where));
    if (others_.empty()) of_rank_0_ = groups_.size();
    if (shapes.size() != of_rank_0_)
      catalog().notes.push_back(compose(
          "{} has {} parameter groups, the model file of rank 0 has {}: which of them are the same "
          "is recorded nowhere, so they are taken by their numbers",
          name, shapes.size(), of_rank_0_));
    join_shapes(groups_, std::move(shapes));
    others_.push_back(std::move(file));
    return {};
  }

  // The part of the optimizer's state that belongs to no parameter.
  Result<> read_global_state() {
    EBB_TRY_ASSIGN(
        const File file,
        open_archive(*tree_, *checkpoint_, folder_ + std::string(kGlobalState), std::nullopt));
    const PickleGraph& graph = file.graph();
    const PickleId root = graph.root();
    const PickleId stage = graph.find(root, "zero_stage");
    const PickleId inner = graph.find(root, "optimizer_state_dict");
    facts_.stage = stage_number(graph, stage);
    facts_.zero_optimizer =
        facts_.stage == 3 ? "DeepSpeedZeroOptimizer_Stage3" : zero12_class(stage);
    facts_.steps.assign(groups_.size(), std::nullopt);
    PickleId list = graph.find(root, "param_groups");
    if (list == kNoPickle) list = graph.find(inner, "param_groups");
    EBB_TRY_ASSIGN(std::vector<ReadGroup> groups,
                   param_groups_of(file.archive, list, config_, groups_));
    for (ReadGroup& group : groups) facts_.groups.push_back(std::move(group.entry));
    facts_.optimizer = optimizer_class(config_, facts_.groups);
    for (const auto& [buffer, state] : states_by_buffer(graph, inner)) {
      const PickleId step = graph.find(state, "step");
      if (step == kNoPickle || buffer < 0 || std::size_t(buffer) >= groups_.size()) continue;
      EBB_TRY_ASSIGN(const Value value, value_of(graph, step, &file.archive));
      facts_.steps[std::size_t(buffer)] = number_of(value);
    }
    EBB_TRY_ASSIGN(facts_.loss_scaler, loss_scaler_of(graph, graph.find(root, "loss_scaler")));
    EBB_TRY_ASSIGN(facts_.values, engine_values_of(graph, root));
    return {};
  }

  // zero/<parameter>/<state>.pt, in the order of the files.
  struct Folder {
    std::string name;
    std::vector<std::pair<std::string, std::string>> states;  // and their files
    // Buffers, frozen and tied parameters have nothing but a widened copy of what the model file
    // has.
    bool holds_state() const {
      return std::ranges::any_of(states, [](const auto& state) { return state.first != kMasters; });
    }
  };
  std::vector<Folder> parameter_folders() const {
    const std::string zero = folder_ + "zero/";
    std::vector<Folder> folders;
    std::map<std::string, std::size_t, std::less<>> known;
    for (const SourceTree::Entry& entry : tree_->entries()) {
      const std::string_view path = entry.name;
      if (!path.starts_with(zero) || !path.ends_with(kSuffix)) continue;
      const std::string_view folder = folder_of(path).substr(zero.size());
      if (folder.empty()) continue;
      std::string name(folder.substr(0, folder.size() - 1));
      const auto [at, fresh] = known.emplace(name, folders.size());
      if (fresh) folders.push_back({std::move(name), {}});
      std::string state(path.substr(zero.size() + folder.size()));
      state.resize(state.size() - kSuffix.size());
      folders[at->second].states.emplace_back(std::move(state), entry.name);
    }
    return folders;
  }

  // A parameter that has state is one, whether or not a model file lists it; then nothing tells its
  // group.
  Result<> read_parameters() {
    std::map<std::string_view, std::pair<std::size_t, const Shape*>> listed;
    for (std::size_t g = 0; g < groups_.size(); ++g)
      for (const Param& param : groups_[g]) listed.emplace(param.name, std::pair(g, &param.shape));
    listed_ = groups_.size();
    Group unlisted;
    std::size_t others = 0;
    for (const Folder& folder : parameter_folders()) {
      const auto known = listed.find(folder.name);
      if (known == listed.end() && !folder.holds_state()) {
        ++others;
        for (const auto& [state, file] : folder.states)
          EBB_TRY(opened(*tree_, *checkpoint_, file));  // for the calls in it
        continue;
      }
      if (known == listed.end()) unlisted.push_back({folder.name, {}});
      const auto [group, shape] =
          known == listed.end() ? std::pair<std::size_t, const Shape*>(groups_.size(), nullptr)
                                : known->second;
      for (const auto& [state, file] : folder.states)
        EBB_TRY(read_state(file, folder.name, state, shape, group));
    }
    add_notes(unlisted, others);
    if (!unlisted.empty()) groups_.push_back(std::move(unlisted));
    return {};
  }

  void add_notes(const Group& unlisted, std::size_t others) {
    if (others > 0)
      catalog().notes.push_back(
          compose("{} folders repeat buffers, frozen or tied parameters of the model file, "
                  "widened: they are left out",
                  others));
    if (!unlisted.empty())
      catalog().notes.push_back(compose(
          "{} parameters, {} among them, have optimizer state and are in no model file's list: "
          "their parameter group is not recorded",
          unlisted.size(), json_string(unlisted.front().name)));
  }

  // `shape`: as the model files list it; nullptr: they do not.
  Result<> read_state(const std::string& path, const std::string& name, const std::string& state,
                      const Shape* shape, std::size_t group) {
    EBB_TRY_ASSIGN(const File file, open_archive(*tree_, *checkpoint_, path, std::nullopt));
    const PickleGraph& graph = file.graph();
    states_[group][name].insert(state);
    if (state == "step") return read_step(file, name, group);
    PickleId tensor = graph.root();
    const bool merged = is_merged(graph);
    if (graph.is(tensor, PickleKind::dict)) tensor = graph.find(tensor, "param");
    if (tensor == kNoPickle || !is_torch_tensor(graph, tensor))
      return corrupt(file.where, "no tensor 'param'");
    const std::string called(state == kMasters ? "master" : state);
    if (const auto form = unread_form(graph, tensor)) {
      catalog().unread.push_back(
          {compose("{}.{}", name, state), {}, name, called, form->what, form->hint});
      return {};
    }
    EBB_TRY_ASSIGN(const TorchTensor what, torch_tensor(graph, tensor));
    EBB_TRY_ASSIGN(const Flat flat, checkpoint_->add_flat(file.archive, file.file, what));
    const bool own = shape == nullptr || (merged && what.shape.size() == shape->size());
    return partitions_.add_whole(name, called, own ? what.shape : *shape, flat, file.where);
  }

  // What tensor- or expert-parallel ranks have parts of is larger than param_shapes says, which is
  // of one part.
  bool is_merged(const PickleGraph& graph) const {
    const PickleId expert = graph.find(graph.root(), "is_expert_param");
    return !others_.empty() || (expert != kNoPickle && graph.is(expert, PickleKind::boolean) &&
                                graph.integer(expert) != 0);
  }

  Result<> read_step(const File& file, const std::string& name, std::size_t group) {
    EBB_TRY_ASSIGN(const Value value, value_of(file.graph(), file.graph().root(), &file.archive));
    const auto steps = number_of(value);
    if (!steps) return corrupt(file.where, "no number of steps");
    facts_.steps.resize(std::max(facts_.steps.size(), group + 1));
    if (facts_.steps[group] && *facts_.steps[group] != *steps)
      return Error{Code::layout,
                   compose("{}: parameter {} has taken {} steps, others of its group {}",
                           file.where, json_string(name), to_json(Value::of_real(*steps)),
                           to_json(Value::of_real(*facts_.steps[group])))};
    facts_.steps[group] = steps;
    return {};
  }

  // A loader takes the states of a group's first parameter for those of all.
  Result<> check_states() const {
    for (std::size_t g = 0; g < listed_; ++g) {
      std::set<std::string> all = {std::string(kMasters)};
      const auto of_group = states_.find(g);
      if (of_group != states_.end())
        for (const auto& [name, states] : of_group->second)
          all.insert(states.begin(), states.end());
      for (const Param& param : groups_[g])
        for (const std::string& state : all)
          if (of_group == states_.end() || !of_group->second.contains(param.name) ||
              !of_group->second.at(param.name).contains(state))
            return refused(*tree_, Code::incomplete,
                           compose("{}zero/{}/{}.pt is missing", folder_, param.name, state));
    }
    return {};
  }

  Result<> read_models(const File& first) {
    const std::int64_t stage = models_.one_for_all ? std::min<std::int64_t>(facts_.stage, 2) : 3;
    const auto ranks = static_cast<std::uint32_t>(models_.first.size());
    ModelReader models(*checkpoint_, partitions_, stage, ranks);
    if (others_.empty()) {
      EBB_TRY(read_all(models, first, ranks));
    } else {
      EBB_TRY(read_parts(models, first));
    }
    checkpoint_->finish();
    const std::int64_t world = models.facts().ranks.value_or(ranks);
    catalog().world = world < (1 << 20) ? static_cast<std::uint32_t>(world) : 1;
    catalog().partition = compose(
        "whole tensors, for any stage and number of ranks; written from stage {}", facts_.stage);
    undo_dealing(models.facts(), catalog().world, facts_);
    set_values(catalog(), tag(), groups_, models.facts(), std::move(facts_));
    return {};
  }

  Result<> read_all(ModelReader& models, const File& first, std::uint32_t ranks) {
    EBB_TRY(models.read(first, Rank{0}));
    for (std::uint32_t rank = 1; rank < ranks; ++rank) {
      if (!models_.first.contains(rank))
        return refused(
            *tree_, Code::incomplete,
            compose("{}: model file of rank {} is missing", tag_of(*tree_, folder_), rank));
      EBB_TRY_ASSIGN(const File file, open_model(rank));
      EBB_TRY(models.read(file, Rank{rank}));
    }
    return {};
  }

  Result<> read_parts(ModelReader& models, const File& first) {
    EBB_TRY(models.read_facts(first));
    for (const File& file : others_) EBB_TRY(models.read_other_part(file));
    std::set<std::string> known;
    for (const Group& group : groups_)
      for (const Param& param : group) known.insert(param.name);
    for (const auto& [alias, owner] : models.facts().tied) known.insert(alias);
    add_unread_parts(first.graph(), known, catalog());
    for (const File& file : others_) add_unread_parts(file.graph(), known, catalog());
    const PickleId module = first.graph().find(first.graph().root(), "module");
    if (module != kNoPickle && first.graph().is(module, PickleKind::dict))
      catalog().notes.emplace_back(
          "the weights in the model files of model-parallel ranks are left out: the masters are "
          "complete");
    return {};
  }

  std::shared_ptr<const SourceTree> tree_;
  std::unique_ptr<ZeroCheckpoint> checkpoint_;
  Partitions partitions_;
  std::string folder_;
  UniversalModels models_;
  std::vector<File> others_;   // of the other model-parallel ranks
  std::size_t of_rank_0_ = 0;  // groups that the model file of model-parallel rank 0 lists
  std::vector<Group> groups_;  // of all; behind `listed_`: parameters that no model file lists
  std::size_t listed_ = 0;
  Config config_;
  OptimizerFacts facts_;
  std::map<std::size_t, std::map<std::string, std::set<std::string>>> states_;  // per group
};

}  // namespace
}  // namespace deepspeed

bool detect_deepspeed_universal(const SourceTree& tree) {
  if (deepspeed::universal_folders(tree).empty() && tree.find(deepspeed::kLatest) == nullptr)
    return false;
  // A folder that holds both kinds is read as what `latest` names.
  return std::none_of(tree.entries().begin(), tree.entries().end(), [](const auto& entry) {
    const auto name = deepspeed::parse_name(
        std::string_view(entry.name).substr(deepspeed::folder_of(entry.name).size()));
    return name && name->kind == deepspeed::FileName::Kind::optimizer;
  });
}

Result<std::unique_ptr<Checkpoint>> describe_deepspeed_universal(
    std::shared_ptr<const SourceTree> tree) {
  return deepspeed::UniversalDescriber(std::move(tree)).run();
}

}  // namespace ebb::formats
