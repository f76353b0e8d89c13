// Files that ranks wrote side by side as one checkpoint. Internal to formats/torch_save.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "ebb/formats/catalog/catalog.h"
#include "ebb/formats/torch_save/rank_files.h"

namespace ebb::formats::torch_save {

// Whether the first file's pickle speaks of tensors of which each rank has a part.
bool names_shards(const SourceTree& tree, const RankFamily& family);

// nullptr: their pickles do not say how what they hold belongs together, or one rank wrote one file
// of whole tensors, which any reader reads. Missing ranks are Code::incomplete, unless others have
// all that they had.
Result<std::unique_ptr<Checkpoint>> describe_ranks(const std::shared_ptr<const SourceTree>& tree,
                                                   std::span<const RankFamily> families);

}  // namespace ebb::formats::torch_save
