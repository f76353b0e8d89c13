#include <algorithm>
#include <map>
#include <set>

#include "ebb/formats/core/json_text.h"
#include "ebb/formats/deepspeed/deepspeed.h"
#include "ebb/formats/deepspeed/model.h"
#include "ebb/formats/deepspeed/names.h"
#include "ebb/formats/deepspeed/optimizer.h"
#include "ebb/formats/deepspeed/values.h"

namespace ebb::formats {
namespace deepspeed {
namespace {

constexpr std::string_view kGlobalState = "zero/optimizer_state.pt";
constexpr std::string_view kSuffix = ".pt";
constexpr std::string_view kLatest = "latest_universal";
constexpr std::string_view kMasters = "fp32";  // what the masters' files are called

// The folders of tags, each with its '/', "" for the root.
std::set<std::string> universal_folders(const SourceTree& tree) {
  std::set<std::string> folders;
  for (const SourceTree::Entry& entry : tree.entries()) {
    const std::string_view name = entry.name;
    if (!name.ends_with(kGlobalState)) continue;
    const std::string_view folder = name.substr(0, name.size() - kGlobalState.size());
    if (folder.empty() || folder.ends_with('/')) folders.emplace(folder);
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
    EBB_TRY(find_models());
    catalog().format = "deepspeed-universal";
    EBB_TRY_ASSIGN(const File first, open_model(0));
    EBB_TRY_ASSIGN(groups_, shapes_of(first.graph(), first.where));
    EBB_TRY_ASSIGN(config_, config_of(first.graph()));
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

  // One model file for all ranks (stages 1 and 2), or one a rank (stage 3). Where both kinds are,
  // the first says everything.
  Result<> find_models() {
    for (const SourceTree::Entry& entry : tree_->entries()) {
      if (folder_of(entry.name) != folder_) continue;
      const auto name = parse_name(std::string_view(entry.name).substr(folder_.size()));
      if (!name || name->kind != FileName::Kind::model) continue;
      if (name->model_rank != 0) {
        model_parallel_ = true;
      } else if (name->data_rank) {
        models_.emplace(*name->data_rank, entry.name);
      } else {
        whole_model_ = entry.name;
      }
    }
    if (whole_model_) models_ = {{0, *whole_model_}};
    if (models_.empty() || models_.begin()->first != 0)
      return refused(*tree_, Code::incomplete,
                     tag_of(*tree_, folder_) + ": model file of rank 0 is missing");
    return {};
  }

  Result<File> open_model(std::uint32_t rank) {
    return open_archive(*tree_, *checkpoint_, models_.at(rank),
                        whole_model_ ? std::nullopt : std::optional<Rank>(Rank{rank}));
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
    EBB_TRY_ASSIGN(std::vector<ReadGroup> groups, param_groups_of(graph, list, config_, groups_));
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

  // zero/<parameter>/<state>.pt. Folders of buffers, frozen and tied parameters hold widened copies
  // of what the model file has.
  Result<> read_parameters() {
    std::map<std::string_view, std::size_t> group_of;
    std::map<std::string_view, const Shape*> shapes;
    for (std::size_t g = 0; g < groups_.size(); ++g)
      for (const Param& param : groups_[g]) {
        group_of.emplace(param.name, g);
        shapes.emplace(param.name, &param.shape);
      }
    const std::string zero = folder_ + "zero/";
    std::set<std::string> others;
    for (const SourceTree::Entry& entry : tree_->entries()) {
      const std::string_view path = entry.name;
      if (!path.starts_with(zero) || !path.ends_with(kSuffix)) continue;
      const std::string_view folder = folder_of(path).substr(zero.size());
      if (folder.empty()) continue;
      const std::string name(folder.substr(0, folder.size() - 1));
      const auto shape = shapes.find(name);
      if (shape == shapes.end()) {
        others.insert(name);
        EBB_TRY(opened(*tree_, *checkpoint_, entry.name));  // for the calls in it
        continue;
      }
      std::string state(path.substr(zero.size() + folder.size()));
      state.resize(state.size() - kSuffix.size());
      EBB_TRY(read_state(entry.name, name, state, *shape->second, group_of.at(name)));
    }
    if (!others.empty())
      catalog().notes.push_back(
          compose("{} folders repeat buffers, frozen or tied parameters of the model file, "
                  "widened: they are left out",
                  others.size()));
    return {};
  }

  Result<> read_state(const std::string& path, const std::string& name, const std::string& state,
                      const Shape& shape, std::size_t group) {
    EBB_TRY_ASSIGN(const File file, open_archive(*tree_, *checkpoint_, path, std::nullopt));
    const PickleGraph& graph = file.graph();
    if (state == "step") return read_step(file, name, group);
    PickleId tensor = graph.root();
    if (graph.is(tensor, PickleKind::dict)) tensor = graph.find(tensor, "param");
    if (tensor == kNoPickle || !is_torch_tensor(graph, tensor))
      return corrupt(file.where, "no tensor 'param'");
    EBB_TRY_ASSIGN(const TorchTensor what, torch_tensor(graph, tensor));
    EBB_TRY_ASSIGN(const Flat flat, checkpoint_->add_flat(file.archive, file.file, what));
    states_[group][name].insert(state);
    // Tensors merged over tensor-parallel ranks are larger than param_shapes says, which is of one.
    const Shape& real = model_parallel_ && what.shape.size() == shape.size() ? what.shape : shape;
    return partitions_.add_whole(name, state == kMasters ? "master" : state, real, flat,
                                 file.where);
  }

  Result<> read_step(const File& file, const std::string& name, std::size_t group) {
    EBB_TRY_ASSIGN(const Value value, value_of(file.graph(), file.graph().root(), &file.archive));
    const auto steps = number_of(value);
    if (!steps) return corrupt(file.where, "no number of steps");
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
    for (std::size_t g = 0; g < groups_.size(); ++g) {
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
    const std::int64_t stage = whole_model_ ? std::min<std::int64_t>(facts_.stage, 2) : 3;
    const auto ranks = static_cast<std::uint32_t>(models_.size());
    ModelReader models(*checkpoint_, partitions_, stage, ranks);
    if (model_parallel_) {
      EBB_TRY(models.read_facts(first));
      catalog().notes.emplace_back(
          "the weights of tensor-parallel ranks' model files are left out: the masters are whole");
    } else {
      EBB_TRY(models.read(first, Rank{0}));
      for (std::uint32_t rank = 1; rank < ranks; ++rank) {
        if (!models_.contains(rank))
          return refused(
              *tree_, Code::incomplete,
              compose("{}: model file of rank {} is missing", tag_of(*tree_, folder_), rank));
        EBB_TRY_ASSIGN(const File file, open_model(rank));
        EBB_TRY(models.read(file, Rank{rank}));
      }
    }
    checkpoint_->finish();
    const std::int64_t world = models.facts().ranks.value_or(ranks);
    catalog().world = world < (1 << 20) ? static_cast<std::uint32_t>(world) : 1;
    catalog().partition = compose(
        "whole tensors, for any stage and number of ranks; written from stage {}", facts_.stage);
    set_values(catalog(), tag(), groups_, models.facts(), std::move(facts_));
    return {};
  }

  std::shared_ptr<const SourceTree> tree_;
  std::unique_ptr<ZeroCheckpoint> checkpoint_;
  Partitions partitions_;
  std::string folder_;
  std::map<std::uint32_t, std::string> models_;
  std::optional<std::string> whole_model_;
  bool model_parallel_ = false;
  std::vector<Group> groups_;
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
