// One optimizer of which each rank kept a slice of the states in a file of its own. Internal to
// formats/folders.
#pragma once

#include <cstddef>
#include <span>

#include "ebb/formats/folders/joined.h"

namespace ebb::formats::folders {

// Where in the catalog a rank's begin.
struct RankBegin {
  std::size_t tensors = 0;
  std::size_t values = 0;
  std::size_t containers = 0;
};
inline RankBegin end_of(const Catalog& catalog) {
  return {catalog.tensors.size(), catalog.values.size(), catalog.containers.size()};
}

// Makes one of what was added for each rank under the same keys, the model's tensors before them:
// slices along the first dimension, or the same on all. nanochat cuts matrices of AdamW that way,
// keeps its small parameters' whole, and deals the matrices of a group of Muon, stacked.
// Code::incomplete where neither is a state of a parameter of the model.
Result<> join_slices(JoinedCheckpoint& whole, std::span<const RankBegin> ranks);

}  // namespace ebb::formats::folders
