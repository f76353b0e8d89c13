// Where the tensors of all ranks' parts of a model belong in the whole one: layers counted over the
// stages of the pipeline, the words and stacks of torch_dist. Internal to formats/megatron.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ebb/formats/megatron/rank_files.h"
#include "ebb/formats/megatron/rank_names.h"

namespace ebb::formats::megatron {

// A rank's tensor in the whole model.
struct WholePlace {
  std::string name;                    // of the whole tensor
  std::optional<std::uint64_t> layer;  // of so many, which are stacked in front of its own shape
  std::uint64_t layers = 0;
  Cut cut = Cut::none;
  bool gated = false;   // the rows are two halves, of which each rank has a part
  bool shared = false;  // a tied embedding that two stages have
};

class RankModel {
 public:
  // Code::corrupt where ranks of one stage have other tensors, or stages other numbers of parts.
  static Result<RankModel> of(const RankGrid& grid);

  WholePlace place_of(RankPlace rank, std::size_t chunk, const LocalTensor& tensor) const;
  // The same for what is no tensor: a module's own state.
  WholePlace place_of_key(RankPlace rank, std::size_t chunk, std::string_view key) const;
  // What tells of the arguments: a switch or a number; nullopt: not said.
  std::optional<std::int64_t> argument(std::string_view name) const;

 private:
  struct LayerList {
    std::map<std::pair<std::uint32_t, std::size_t>, std::uint64_t> first;  // by stage and chunk
    std::uint64_t layers = 0;
    bool stacked = true;
  };

  explicit RankModel(const RankGrid& grid) : grid_(&grid) {}
  Result<> check_alike() const;
  Result<> count_layers();
  void find_stacks();
  bool said_to_differ() const;
  bool is_tied() const;

  const RankGrid* grid_;
  std::map<std::string, LayerList, std::less<>> lists_;
  // Layers whose norms are modules of their own, where torch_dist has them fused.
  bool norms_apart_ = false;
};

}  // namespace ebb::formats::megatron
