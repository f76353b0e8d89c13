#include <algorithm>
#include <map>

#include "ebb/formats/core/number_text.h"
#include "ebb/formats/deepspeed/deepspeed.h"
#include "ebb/formats/deepspeed/experts.h"
#include "ebb/formats/deepspeed/join.h"
#include "ebb/formats/deepspeed/layers.h"
#include "ebb/formats/deepspeed/model.h"
#include "ebb/formats/deepspeed/model_rank.h"
#include "ebb/formats/deepspeed/names.h"
#include "ebb/formats/deepspeed/unsharded.h"
#include "ebb/formats/deepspeed/values.h"
#include "ebb/formats/deepspeed/without_zero.h"

namespace ebb::formats {
namespace deepspeed {
namespace {

class Describer {
 public:
  explicit Describer(std::shared_ptr<const SourceTree> tree)
      : tree_(tree),
        checkpoint_(std::make_unique<ZeroCheckpoint>(std::move(tree))),
        partitions_(*checkpoint_),
        archives_(*tree_, *checkpoint_) {}

  Result<std::unique_ptr<Checkpoint>> run() {
    const auto done = read();
    return end_of_description(std::move(checkpoint_), done);
  }

 private:
  Result<> read() {
    EBB_TRY_ASSIGN(files_, find_files(*tree_));
    catalog().format = "deepspeed";
    const auto has_optimizer = [](const RankFiles& rank) { return !rank.optimizer.empty(); };
    if (std::ranges::none_of(files_.of_model_ranks, has_optimizer)) return read_without_zero();
    std::vector<ModelRankReader> ranks;
    for (std::uint32_t i = 0; i < files_.of_model_ranks.size(); ++i) {
      ranks.emplace_back(ModelRankReader::Place{*tree_, files_, i}, archives_, *checkpoint_,
                         partitions_);
      EBB_TRY(ranks.back().check());
      if (i == 0) EBB_TRY(find_degrees());
      if (ranks[i].world() != ranks[0].world())
        return of_tag(Code::layout,
                      compose("partition_count is {} in the files of mp_rank_00 and {} in those of "
                              "mp_rank_{}",
                              ranks[0].world(), ranks[i].world(), zero_padded(i, 2)));
    }
    world_ = ranks[0].world();
    catalog().world = world_ * degrees_.ranks();
    return read_ranks(ranks);
  }

  Result<> read_ranks(std::vector<ModelRankReader>& ranks) {
    const bool stage3 = ranks[0].is_stage3();
    ModelReader models(*checkpoint_, partitions_, stage3 ? 3 : 2, world_);
    Join join(*checkpoint_, degrees_);
    for (std::uint32_t i = 0; i < ranks.size(); ++i) {
      EBB_TRY_ASSIGN(ModelRankContent content, ranks[i].read(models, degrees_));
      EBB_TRY(join.add(i, std::move(content)));
    }
    const std::vector<Group> buffers = join.take_buffers();
    EBB_TRY(read_other_weights(models, buffers, join));
    EBB_TRY(join_all(models, join));
    facts_ = join.take_facts();
    finish(models.facts(), buffers, join.padded_between());
    return {};
  }

  // Those that lie in no model file.
  Result<> read_other_weights(const ModelReader& models, const std::vector<Group>& buffers,
                              Join& join) {
    if (!files_.layers.empty() || layered_) {
      LayerFiles layers(*tree_, files_, *checkpoint_, partitions_);
      EBB_TRY(layers.check(buffers, models.buffers(), degrees_.tensor));
      for (std::uint32_t rank = 0; rank < degrees_.tensor; ++rank) {
        EBB_TRY_ASSIGN(std::vector<TensorEntry> weights, layers.weights_of(rank, join));
        EBB_TRY(join.add_tensors(rank, std::move(weights)));
      }
    }
    EBB_TRY(read_expert_files(*tree_, files_, experts_, buffers, *checkpoint_, partitions_));
    return join.add_tensors(0, partitions_.take());
  }

  const std::string& first_model() const { return files_.of_model_ranks[0].model.begin()->second; }

  // How many ranks of each kind there are, and whether there are all.
  Result<> find_degrees() {
    EBB_TRY_ASSIGN(const TorchArchive* archive, archives_.look(first_model()));
    const PickleGraph& graph = archive->graph();
    layered_ = has_no_module(graph);
    experts_ = experts_in_all(graph);
    const auto found = static_cast<std::uint32_t>(files_.of_model_ranks.size());
    const std::int64_t all = integer_at(graph, graph.root(), "mp_world_size").value_or(found);
    if (all > found) return no_files_of(found, all);
    const PickleId dims = graph.find(graph.root(), "checkpoint_parallel_dimensions");
    const auto stages = integer_at(graph, dims, "pp_degree").value_or(0);
    const auto tensor = integer_at(graph, dims, "tp_degree").value_or(0);
    if (stages > 0 && tensor > 0 && stages <= found && stages * tensor == found) {
      degrees_ = {static_cast<std::uint32_t>(stages), static_cast<std::uint32_t>(tensor)};
      return {};
    }
    // Releases before 0.19 do not record it: a pipeline's layers have a file for each part.
    std::uint32_t parts = files_.layers.empty() ? found : 1;
    for (const auto& [place, name] : files_.layers) parts = std::max(parts, place.second + 1);
    if (found % parts != 0)
      return of_tag(Code::layout,
                    compose("{} ranks of model parallelism, and layers in {} parts", found, parts));
    degrees_ = {found / parts, parts};
    return {};
  }

  Error no_files_of(std::uint32_t model_rank, std::int64_t all) const {
    const std::string model = file_of_model_rank(first_model(), model_rank);
    return missing_file(
        *tree_,
        compose("{}: the files of mp_rank_{} are missing ({} ranks of tensor or pipeline "
                "parallelism have saved, mp_world_size): {}, ...",
                files_.tag, zero_padded(model_rank, 2), all, model),
        model);
  }

  Error cannot_join(Error error) const {
    if (error.code != Code::unsupported) return error;
    error = of_tag(Code::unsupported,
                   compose("parameters are cut over {} ranks of tensor parallelism, and how is not "
                           "recorded: {}",
                           degrees_.tensor, error.message));
    error.hint =
        "AutoTP of DeepSpeed 0.18 and newer records it: load it there with as many ranks and save "
        "it again; another job gives save_checkpoint a client_state with "
        "universal_checkpoint_info, "
        "which ds_to_universal.py needs as well";
    return error;
  }

  // Each rank loads the one file.
  Result<> read_without_zero() {
    const std::map<std::uint32_t, std::string>& model = files_.of_model_ranks[0].model;
    if (model.empty()) return no_optimizer(*tree_, files_);
    EBB_TRY_ASSIGN(const TorchArchive* archive, archives_.look(first_model()));
    if (model.size() > 1 || !is_unsharded(archive->graph())) return no_optimizer(*tree_, files_);
    EBB_TRY(find_degrees());
    if (degrees_.ranks() > 1 || !files_.layers.empty() || !files_.experts.empty())
      return read_parallel_without_zero();
    EBB_TRY_ASSIGN(const File stored, archives_.open(first_model(), Rank{0}));
    ModelReader models(*checkpoint_, partitions_, 0, 1);
    EBB_TRY(models.read(stored, Rank{0}));
    catalog().world =
        static_cast<std::uint32_t>(std::min(models.facts().ranks.value_or(1), kMostRanks));
    UnshardedOptimizer optimizer(stored, stored.graph(), *checkpoint_, partitions_);
    EBB_TRY(optimizer.read(*tree_));
    facts_ = optimizer.take_facts();
    finish(models.facts(), optimizer.numbers(), false);
    return {};
  }

  Result<> read_parallel_without_zero() {
    ModelReader models(*checkpoint_, partitions_, 0, 1);
    Join join(*checkpoint_, degrees_);
    ReaderWithoutZero reader(*tree_, files_, archives_, *checkpoint_, partitions_);
    EBB_TRY(reader.read(degrees_, experts_, models, join));
    EBB_TRY(join_all(models, join));
    world_ = static_cast<std::uint32_t>(
        std::clamp<std::int64_t>(models.facts().ranks.value_or(1), 1, kMostRanks));
    catalog().world = world_ * degrees_.ranks();
    const std::vector<Group> numbers = join.take_buffers();
    facts_ = join.take_facts();
    finish(models.facts(), numbers, false);
    return {};
  }

  Result<> join_all(const ModelReader& models, Join& join) {
    const auto info = std::ranges::find(models.facts().engine, kUniversalInfo, &ValueEntry::key);
    const bool recorded = info != models.facts().engine.end();
    auto joined = join.finish(recorded ? &info->value : nullptr, models.facts().tied);
    if (!joined) return cannot_join(std::move(joined).error());
    return {};
  }

  Catalog& catalog() { return checkpoint_->building(); }

  Error of_tag(Code code, const std::string& why) const {
    return refused(*tree_, code, compose("{}: {}", files_.tag, why));
  }

  std::string partition_text(bool padded_between) const {
    const std::int64_t stage = facts_.stage;
    const bool in_parts = degrees_.ranks() > 1 || !files_.experts.empty();
    if (stage == 0 && !in_parts) return std::string(kWithoutZero);
    const std::string policy = stage == 3 ? "zero3" : padded_between ? "zero12-boundary" : "zero12";
    std::string text(kWithoutZeroInParts);
    if (stage != 0)
      text = compose("{} over {}{}{}", policy, world_, world_ == 1 ? " rank" : " ranks",
                     (stage == 3 ? "" : compose(" (stage {})", stage)));
    if (degrees_.stages > 1) text += compose(", {}{}", degrees_.stages, kStages);
    if (degrees_.tensor > 1) text += compose(", {}{}", degrees_.tensor, kTensorRanks);
    if (!files_.experts.empty()) text += kWithExperts;
    return text;
  }

  void finish(const ModelFacts& model, const std::vector<Group>& buffers, bool padded_between) {
    checkpoint_->finish();
    const std::int64_t stage = facts_.stage;
    catalog().partition = partition_text(padded_between);
    set_values(catalog(), files_.tag, buffers, model, std::move(facts_));
    if (!files_.folder.empty() && tree_->find("latest") == nullptr)
      catalog().notes.emplace_back(kNoLatest);
    if (stage == 3)
      catalog().notes.emplace_back(
          "stage 3 keeps no 16-bit weights: they are the master weights, rounded");
  }

  static constexpr std::int64_t kMostRanks = 1 << 20;
  std::shared_ptr<const SourceTree> tree_;
  std::unique_ptr<ZeroCheckpoint> checkpoint_;
  Partitions partitions_;
  Archives archives_;
  Files files_;
  Degrees degrees_;
  bool layered_ = false;                // the model file holds no weights
  std::vector<std::uint32_t> experts_;  // how many each layer has that has any
  std::uint32_t world_ = 1;
  OptimizerFacts facts_;
};

}  // namespace
}  // namespace deepspeed

// A model file that is named itself is no checkpoint of this format, but torch.save reads it.
bool detect_deepspeed(const SourceTree& tree) {
  const bool alone = tree.entries().size() == 1 && tree.root().ends_with(tree.entries()[0].name);
  return std::ranges::any_of(tree.entries(), [&](const auto& entry) {
    const auto name = deepspeed::file_of_checkpoint(entry.name);
    using Kind = deepspeed::FileName::Kind;
    return name && !(alone && (name->kind == Kind::model || name->kind == Kind::layer ||
                               name->kind == Kind::expert));
  });
}

Result<std::unique_ptr<Checkpoint>> describe_deepspeed(std::shared_ptr<const SourceTree> tree) {
  return deepspeed::Describer(std::move(tree)).run();
}

}  // namespace ebb::formats
