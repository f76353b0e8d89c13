// What the lengths of items tell that the index does not say: which of them may hold a tensor of
// another class than the index knows. Internal to formats/dcp.
#pragma once

#include <vector>

#include "ebb/formats/catalog/catalog.h"

namespace ebb::formats::dcp {

// Of the tensors whose keys have the same last word - "weight", "exp_avg" - the items with the
// fewest and the most bytes beside the elements; of those that are not compressed.
std::vector<const Chunk*> extreme_items(const std::vector<TensorEntry>& tensors);

// The chunk whose item differs most from the first one's. REQUIRES: the tensor has chunks.
const Chunk& least_like_the_first(const TensorEntry& tensor);

}  // namespace ebb::formats::dcp
