// Masters, or their high halves, that are the weights that a trainer has bound.
#pragma once

#include "ebb/libmuon/plan/columns.h"
#include "ebb/libmuon/plan/model.h"

namespace ebb::libmuon {

// Code::unsupported names the first parameter whose weights cannot be that, or whose master is
// wanted when they are not there.
Result<> check_bound_masters(const ModelSpec& model, const Columns& columns);

}  // namespace ebb::libmuon
