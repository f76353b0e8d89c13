// The command line of ckpt-inspect, and which of its flags go together.
#pragma once

#include <string_view>

#include "ebb/formats/core/result.h"
#include "tools/cli/arguments.h"
#include "tools/cli/program.h"

namespace ebb::tools::inspect {

const Program& command_line();

// The mode that is asked for by its flag's name, "" for the summary. Code::usage for two modes at
// once and for a filter that says nothing in that mode.
Result<std::string_view> mode_of(const Arguments& arguments);

}  // namespace ebb::tools::inspect
