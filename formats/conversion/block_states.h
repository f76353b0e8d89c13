// States that bitsandbytes keeps in 8 bits: for each one codes, a table and a scale for each block,
// three plain tensors of a parameter (state1, qmap1, absmax1). What does not know them would take
// each for a state of its own. Source: bitsandbytes 0.50, optim/optimizer.py.
#pragma once

#include "ebb/formats/catalog/catalog.h"
#include "ebb/formats/catalog/format.h"
#include "ebb/formats/core/result.h"

namespace ebb::formats {

// Code::unsupported where content has such states and no job that resumes from `to` does.
Result<> check_block_states(const Format& to, const Catalog& content);

}  // namespace ebb::formats
