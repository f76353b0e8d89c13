// Blocks of momentum in int8 belong to whole matrices: what cuts momentum over ranks cuts it
// between blocks, or not at all.
#pragma once

#include "ebb/libmuon/plan/columns.h"
#include "ebb/libmuon/plan/model.h"
#include "ebb/libmuon/plan/model_layout.h"

namespace ebb::libmuon {

// Whether momentum that lies as `shards` has it can be kept as `columns` say. Code::layout names
// the first parameter with a border inside a block, and both. Pure; O(parameters x shards), and of
// slices O(runs).
Result<> check_block_borders(const ModelSpec& model, const Columns& columns,
                             const ModelLayout& shards);

}  // namespace ebb::libmuon
