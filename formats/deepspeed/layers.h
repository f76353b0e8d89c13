// The weights of a pipeline, which lie in a file for each layer, under names inside the layer.
// Internal to formats/deepspeed. Source: DeepSpeed 0.19.8 runtime/pipe/module.py.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "ebb/formats/deepspeed/join.h"

namespace ebb::formats::deepspeed {

class LayerFiles {
 public:
  // `listed`: what param_shapes of all stages list; `buffers`: what their buffer_names do.
  LayerFiles(const SourceTree& tree, const Files& files, ZeroCheckpoint& checkpoint,
             Partitions& partitions)
      : tree_(tree), files_(files), checkpoint_(checkpoint), partitions_(partitions) {}

  // Every layer of which a parameter or a buffer is known has a file.
  Result<> check(const std::vector<Group>& listed,
                 const std::set<std::string, std::less<>>& buffers, std::uint32_t tensor_ranks);
  // The weights of all layers; `join` has the masters.
  Result<std::vector<TensorEntry>> weights_of(std::uint32_t tensor_rank, const Join& join);

 private:
  struct Entry {
    std::string key;  // in the layer
    Flat flat;
  };

  Result<> read_layer(std::uint32_t layer, const std::string& name, std::uint32_t tensor_rank,
                      const Join& join);
  Result<std::string> prefix_of(std::uint32_t layer, const std::vector<Entry>& entries,
                                std::uint32_t tensor_rank, const Join& join) const;
  Result<bool> is_tied(const std::string& prefix, const std::vector<Entry>& entries,
                       std::uint32_t tensor_rank, const Join& join) const;
  Result<bool> begins_like(const TensorEntry& master, const Flat& weights) const;
  void note_gaps();

  const SourceTree& tree_;
  const Files& files_;
  ZeroCheckpoint& checkpoint_;
  Partitions& partitions_;
  std::set<std::string, std::less<>> params_;
  std::set<std::string, std::less<>> buffers_;
  std::set<std::string> tied_;               // "tied_modules.<name>."
  std::set<std::uint32_t> layers_;           // that have parameters or buffers by their number
  std::set<std::string, std::less<>> read_;  // names of this tensor-parallel rank's
};

}  // namespace ebb::formats::deepspeed
