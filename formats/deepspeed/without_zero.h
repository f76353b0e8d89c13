// Checkpoints of stage 0 with tensor, pipeline or expert parallelism: each model-parallel rank's
// model file has its own optimizer, each expert-parallel rank has a file for its. Internal to
// formats/deepspeed.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "ebb/formats/deepspeed/join.h"
#include "ebb/formats/deepspeed/model_rank.h"

namespace ebb::formats::deepspeed {

class ReaderWithoutZero {
 public:
  ReaderWithoutZero(const SourceTree& tree, const Files& files, Archives& archives,
                    ZeroCheckpoint& checkpoint, Partitions& partitions)
      : tree_(tree),
        files_(files),
        archives_(archives),
        checkpoint_(checkpoint),
        partitions_(partitions) {}

  // Adds everything to `join`. `experts`: of each layer that has any.
  Result<> read(const Degrees& degrees, const std::vector<std::uint32_t>& experts,
                ModelReader& models, Join& join);

 private:
  Result<> read_rank(std::uint32_t model_rank, const std::vector<TensorEntry>& layers,
                     ModelReader& models, Join& join);
  Result<> read_experts(const PickleGraph& model, const std::vector<TensorEntry>& weights,
                        Join& join);
  // `weights`: those among which its parameters are.
  Result<> read_optimizer(std::uint32_t model_rank, const File& file, const PickleGraph& model,
                          const std::vector<TensorEntry>& weights, Join& join);
  Result<> check_experts(const std::vector<TensorEntry>& weights);
  std::string optimizer_of_experts(std::uint32_t rank) const;
  Error missing(const std::string& name) const;

  const SourceTree& tree_;
  const Files& files_;
  Archives& archives_;
  ZeroCheckpoint& checkpoint_;
  Partitions& partitions_;
  Degrees degrees_;
  std::vector<std::uint32_t> experts_;
  // Names of parameters, by tensor-parallel rank.
  std::map<std::uint32_t, std::set<std::string, std::less<>>> with_states_;
};

}  // namespace ebb::formats::deepspeed
