// What a checkpoint's pickle asks to have called. Nothing is ever called here, whatever it says;
// but a file that asks for functions of Python's own library is not a checkpoint to go on with.
#pragma once

#include "ebb/formats/core/result.h"
#include "ebb/formats/pickle/pickle.h"

namespace ebb::formats {

// Code::corrupt, with the first such name, when the pickle calls a function that neither torch nor
// a usual data class needs. Instances of unknown classes are let through: they stay inert.
Result<> refuse_calls(const PickleGraph& graph);

}  // namespace ebb::formats
