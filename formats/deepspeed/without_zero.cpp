#include "ebb/formats/deepspeed/without_zero.h"

#include <algorithm>
#include <map>

#include "ebb/formats/deepspeed/experts.h"
#include "ebb/formats/deepspeed/layers.h"
#include "ebb/formats/deepspeed/unsharded.h"

namespace ebb::formats::deepspeed {

Error ReaderWithoutZero::missing(const std::string& name) const {
  return missing_file(tree_, compose("{}: {} is missing", files_.tag, name), name);
}

Result<> ReaderWithoutZero::read(const Degrees& degrees, const std::vector<std::uint32_t>& experts,
                                 ModelReader& models, Join& join) {
  degrees_ = degrees;
  experts_ = experts;
  if (degrees.ranks() > 1 && !files_.experts.empty())
    return refused(tree_, Code::unsupported,
                   files_.tag +
                       ": experts beside tensor or pipeline parallelism without ZeRO are "
                       "not read by this version",
                   "name one file: torch.save reads it");
  std::vector<std::vector<TensorEntry>> layers(degrees.tensor);
  if (!files_.layers.empty()) {
    LayerFiles of_layers(tree_, files_, checkpoint_, partitions_);
    EBB_TRY(of_layers.check({}, {}, degrees.tensor));
    for (std::uint32_t rank = 0; rank < degrees.tensor; ++rank) {
      EBB_TRY_ASSIGN(layers[rank], of_layers.weights_of(rank, join));
    }
  }
  for (std::uint32_t rank = 0; rank < degrees.ranks(); ++rank) {
    if (!files_.of_model_ranks[rank].model.contains(0))
      return missing(file_of_model_rank(files_.of_model_ranks[0].model.begin()->second, rank));
    EBB_TRY(read_rank(rank, layers[degrees.tensor_rank(rank)], models, join));
  }
  for (std::uint32_t rank = 0; rank < degrees.tensor; ++rank)
    EBB_TRY(join.add_tensors(rank, std::move(layers[rank])));
  checkpoint_.building().parts = {};  // of one state dict, and there were several
  return {};
}

Result<> ReaderWithoutZero::read_rank(std::uint32_t model_rank,
                                      const std::vector<TensorEntry>& layers, ModelReader& models,
                                      Join& join) {
  const std::string& name = files_.of_model_ranks[model_rank].model.at(0);
  EBB_TRY_ASSIGN(const File stored, archives_.open(name, degrees_.rank_of(model_rank, Rank{0}, 1)));
  EBB_TRY(model_rank == 0 ? models.read(stored, Rank{0})
                          : models.read_of_model_rank(stored, Rank{0}));
  if (!files_.experts.empty())
    EBB_TRY(read_expert_files(tree_, files_, experts_, {}, checkpoint_, partitions_));
  std::vector<TensorEntry> weights = partitions_.take();
  if (files_.experts.empty()) {
    // What a stage before has states of is none of this one's, however alike it looks.
    std::vector<TensorEntry> all = weights;
    const auto& taken = with_states_[degrees_.tensor_rank(model_rank)];
    std::ranges::copy_if(layers, std::back_inserter(all),
                         [&](const TensorEntry& layer) { return !taken.contains(layer.name); });
    EBB_TRY(read_optimizer(model_rank, stored, stored.graph(), all, join));
  } else {
    EBB_TRY(read_experts(stored.graph(), weights, join));
  }
  return join.add_tensors(degrees_.tensor_rank(model_rank), std::move(weights));
}

std::string ReaderWithoutZero::optimizer_of_experts(std::uint32_t rank) const {
  return compose("{}expp_rank_{}_mp_rank_00_optim_states.pt", files_.folder, rank);
}

// Each expert-parallel rank has experts one behind the other, and all other parameters again.
Result<> ReaderWithoutZero::read_experts(const PickleGraph& model,
                                         const std::vector<TensorEntry>& weights, Join& join) {
  const auto ranks = static_cast<std::uint32_t>(files_.expert_optimizers.size());
  std::map<std::string_view, std::uint32_t> of_layers;
  for (const TensorEntry& weight : weights)
    if (const auto name = expert_name(weight.name)) {
      std::uint32_t& count = of_layers[name->layer];
      count = std::max(count, name->number + 1);
    }
  for (std::uint32_t rank = 0; rank < std::max(ranks, 1U); ++rank) {
    const auto file = files_.expert_optimizers.find(rank);
    if (file == files_.expert_optimizers.end()) return missing(optimizer_of_experts(rank));
    std::vector<TensorEntry> mine;
    std::ranges::copy_if(weights, std::back_inserter(mine), [&](const TensorEntry& weight) {
      const auto name = expert_name(weight.name);
      return !name || std::uint64_t{name->number} * ranks / of_layers[name->layer] == rank;
    });
    EBB_TRY_ASSIGN(const File stored, archives_.open(file->second, Rank{rank}));
    EBB_TRY(read_optimizer(0, stored, model, mine, join));
  }
  return check_experts(weights);
}

// Where one expert of a layer has states, all have.
Result<> ReaderWithoutZero::check_experts(const std::vector<TensorEntry>& weights) {
  std::set<std::pair<std::string_view, std::string_view>> trained;
  const std::set<std::string, std::less<>>& with_states =
      with_states_.at(0);  // no tensor parallelism beside
  for (const std::string& param : with_states)
    if (const auto name = expert_name(param)) trained.emplace(name->layer, name->rest);
  for (const TensorEntry& weight : weights) {
    const auto name = expert_name(weight.name);
    if (name && trained.contains({name->layer, name->rest}) && !with_states.contains(weight.name))
      return missing(
          optimizer_of_experts(static_cast<std::uint32_t>(files_.expert_optimizers.size())));
  }
  return {};
}

Result<> ReaderWithoutZero::read_optimizer(std::uint32_t model_rank, const File& file,
                                           const PickleGraph& model,
                                           const std::vector<TensorEntry>& weights, Join& join) {
  checkpoint_.building().tensors = weights;
  UnshardedOptimizer optimizer(file, model, checkpoint_, partitions_);
  EBB_TRY(optimizer.read(tree_));
  if (degrees_.stages > 1 && !optimizer.has_masters())
    return refused(tree_, Code::unsupported,
                   compose("{}: a pipeline in full precision without ZeRO: nothing records which "
                           "parameters the numbers of each stage's optimizer are",
                           files_.tag),
                   "load it in a job that is cut the same way and save it with "
                   "zero_optimization.stage 1; --weights of single layers: name their files");
  ModelRankContent content{partitions_.take(), optimizer.numbers(), optimizer.take_facts(), false};
  content.tensors.erase(content.tensors.begin(),
                        content.tensors.begin() + static_cast<std::ptrdiff_t>(weights.size()));
  for (const TensorEntry& tensor : content.tensors)
    with_states_[degrees_.tensor_rank(model_rank)].insert(tensor.name);
  return join.add(model_rank, std::move(content));
}

}  // namespace ebb::formats::deepspeed
