// What all model-parallel ranks have, as one checkpoint: pipeline stages have parameters of their
// own, tensor-parallel ranks parts of the same ones. Internal to formats/deepspeed.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ebb/formats/deepspeed/model_rank.h"
#include "ebb/formats/deepspeed/tensor_parts.h"

namespace ebb::formats::deepspeed {

class Join {
 public:
  Join(ZeroCheckpoint& checkpoint, const Degrees& degrees)
      : checkpoint_(checkpoint), degrees_(degrees) {}

  // In the order of their numbers; without ZeRO several of one, of its expert-parallel ranks.
  Result<> add(std::uint32_t model_rank, ModelRankContent content);
  Result<> add_tensors(std::uint32_t tensor_rank, std::vector<TensorEntry> tensors);
  // nullptr: no such tensor.
  const TensorEntry* find(const std::string& name, const std::string& state,
                          std::uint32_t tensor_rank) const;

  // Puts the tensors into the catalog. `info`: universal_checkpoint_info of model rank 0.
  Result<> finish(const Value* info, const std::map<std::string, std::string>& tied);

  std::vector<Group> take_buffers() { return std::move(buffers_); }
  OptimizerFacts take_facts() { return std::move(facts_); }
  bool padded_between() const { return padded_between_; }

 private:
  struct OfName {
    std::string name;
    std::string state;
    std::vector<std::optional<TensorEntry>> parts;  // by tensor-parallel rank
  };

  Result<> join_facts(std::uint32_t model_rank, OptimizerFacts facts);
  void join_groups(std::vector<GroupEntry> groups);
  Result<> join_parts(OfName& tensor, const TensorParts& parts);
  void add_mean(OfName& tensor);
  void leave_unread(const OfName& tensor, const Error& why);
  void note_all();

  ZeroCheckpoint& checkpoint_;
  Degrees degrees_;
  std::vector<OfName> tensors_;
  std::map<std::pair<std::string, std::string>, std::size_t> places_;
  std::vector<Group> buffers_;
  OptimizerFacts facts_;
  bool padded_between_ = false;
  bool any_ = false;
  std::vector<std::string> in_stages_;  // names of parameters that several stages have
  std::vector<std::string> shortened_;  // what was cut off of a vocabulary
  std::vector<std::string> averaged_;   // names of parameters that are a mean
};

}  // namespace ebb::formats::deepspeed
