// The files of one model-parallel rank, of tensor and pipeline parallelism, joined over its
// data-parallel ranks. Most checkpoints have one such rank alone. Internal to formats/deepspeed.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "ebb/formats/deepspeed/experts.h"
#include "ebb/formats/deepspeed/model.h"
#include "ebb/formats/deepspeed/names.h"
#include "ebb/formats/deepspeed/optimizer.h"

namespace ebb::formats::deepspeed {

// Files that are opened before their turn comes, to be looked at.
class Archives {
 public:
  Archives(const SourceTree& tree, ZeroCheckpoint& checkpoint)
      : tree_(tree), checkpoint_(checkpoint) {}

  Result<const TorchArchive*> look(const std::string& name);
  Result<File> open(const std::string& name, std::optional<Rank> rank);

 private:
  const SourceTree& tree_;
  ZeroCheckpoint& checkpoint_;
  std::map<std::string, TorchArchive> early_;
};

// How many ranks there are of each kind of model parallelism. The last varies fastest: of tensor
// parallelism in the files' numbers, of tensor, then data parallelism in those of all ranks.
struct Degrees {
  std::uint32_t stages = 1;  // of the pipeline
  std::uint32_t tensor = 1;

  std::uint32_t ranks() const { return stages * tensor; }
  std::uint32_t tensor_rank(std::uint32_t model_rank) const { return model_rank % tensor; }
  Rank rank_of(std::uint32_t model_rank, Rank data_rank, std::uint32_t data_ranks) const {
    return Rank{((model_rank / tensor) * data_ranks + index_of(data_rank)) * tensor +
                tensor_rank(model_rank)};
  }
};

// What a model-parallel rank has: parameters of its own, or parts of parameters.
struct ModelRankContent {
  std::vector<TensorEntry> tensors;
  std::vector<Group> buffers;  // as param_shapes lists them, of all expert-parallel ranks
  OptimizerFacts facts;        // the steps belong to the buffers
  bool padded_between = false;
};

class ModelRankReader {
 public:
  struct Place {
    const SourceTree& tree;
    const Files& files;
    std::uint32_t number = 0;  // in the names of files
  };
  ModelRankReader(const Place& place, Archives& archives, ZeroCheckpoint& checkpoint,
                  Partitions& partitions)
      : place_(place),
        files_(place.files.of_model_ranks[place.number]),
        archives_(archives),
        checkpoint_(checkpoint),
        partitions_(partitions) {}

  // Before anything else: are all ranks there? The first optimizer file knows how many there were.
  Result<> check();
  // Data-parallel ranks. REQUIRES: checked.
  std::uint32_t world() const { return world_; }
  bool is_stage3() const { return stage3_; }
  // Facts of the model are those of model rank 0. REQUIRES: checked.
  Result<ModelRankContent> read(ModelReader& models, const Degrees& degrees);

 private:
  Error of_tag(Code code, const std::string& why) const;
  Result<> read_shapes();
  Result<> find_experts(const std::vector<std::uint32_t>& counts);
  Result<> read_optimizer(Rank rank, const std::string& name, const Degrees& degrees);
  Result<> check_same_save(const OptimizerFacts& facts, const std::string& where) const;
  Result<> read_model(ModelReader& models, Rank rank, const std::string& name,
                      const Degrees& degrees);

  Place place_;
  const RankFiles& files_;
  Archives& archives_;
  ZeroCheckpoint& checkpoint_;
  Partitions& partitions_;
  std::uint32_t world_ = 1;
  bool stage3_ = false;
  FlatState state_;
  ExpertGroups experts_;
  OptimizerFacts facts_;  // rank 0's
};

}  // namespace ebb::formats::deepspeed
