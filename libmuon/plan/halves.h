// Masters in halves: the trainer's weights are the high ones.
#pragma once

#include "ebb/libmuon/plan/columns.h"
#include "ebb/libmuon/plan/model.h"

namespace ebb::libmuon {

// Code::unsupported names the first parameter that has no high half, or whose master is wanted
// whole when that is not there.
Result<> check_halves(const ModelSpec& model, const Columns& columns);

}  // namespace ebb::libmuon
