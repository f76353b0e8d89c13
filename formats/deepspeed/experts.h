// Expert parallelism: of a group of experts each expert-parallel rank has its own, under names that
// number them from 0, and shares their flat buffer with those that have the same ones. Internal to
// formats/deepspeed. Sources: DeepSpeed 0.19.8 runtime/engine.py, utils/groups.py, moe/.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ebb/formats/deepspeed/model.h"
#include "ebb/formats/deepspeed/names.h"
#include "ebb/formats/deepspeed/optimizer.h"

namespace ebb::formats::deepspeed {

// A parameter of an expert: "<layer>.deepspeed_moe.experts.deepspeed_experts.<number>.<rest>".
struct ExpertName {
  std::string_view layer;
  std::uint32_t number = 0;
  std::string_view rest;  // with its dot
};
std::optional<ExpertName> expert_name(std::string_view param);

// Which experts the data-parallel ranks have.
enum class ExpertOrder : std::uint8_t { in_turn, in_blocks };
ExpertOrder expert_order(const PickleGraph& model);  // use_data_before_expert_parallelism

class ExpertGroups {
 public:
  // `counts`: ranks that share each group; `state` gets places for them.
  Result<> open(FlatState& state, const std::vector<std::uint32_t>& counts, ExpertOrder order,
                std::uint32_t world, std::string_view where);
  bool any() const { return !groups_.empty(); }
  // Before and after the rank's optimizer file is read: `state` is what this rank has.
  void enter(FlatState& state, Rank rank);
  void leave(FlatState& state, Rank rank);
  // The experts of all ranks, in the groups of rank 0's and in the shapes.
  void complete(FlatState& state, std::vector<GroupEntry>& groups) const;

 private:
  struct OfRank {  // an expert-parallel one
    Group params;
    std::uint64_t start = 0;
    std::uint64_t partition = 0;
  };
  struct OneGroup {
    std::size_t number = 0;
    std::uint32_t ranks = 1;  // that share it
    std::vector<OfRank> of_ranks;
  };
  GroupPlace place_in(const OneGroup& group, Rank rank) const;
  std::uint32_t expert_rank(const OneGroup& group, Rank rank) const;
  void exchange(FlatState& state, Rank rank);

  std::vector<OneGroup> groups_;
  ExpertOrder order_ = ExpertOrder::in_turn;
};

// num_experts of a model file: a number for each layer that has any.
std::vector<std::uint32_t> experts_in_all(const PickleGraph& model);

// Adds the weights of experts, which have files of their own. `experts`: of each layer that has
// any; `listed`: the parameters that the optimizer has.
Result<> read_expert_files(const SourceTree& tree, const Files& files,
                           const std::vector<std::uint32_t>& experts,
                           const std::vector<Group>& listed, ZeroCheckpoint& checkpoint,
                           Partitions& partitions);

}  // namespace ebb::formats::deepspeed
