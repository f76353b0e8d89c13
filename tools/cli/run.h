// The frame of every program's main(): command line, help, errors and exit code in one way.
#pragma once

#include <functional>

#include "tools/cli/arguments.h"
#include "tools/cli/console.h"
#include "tools/cli/program.h"

namespace ebb::tools {

using Work = std::function<Result<Exit>(Console&, const Arguments&)>;

// The same work, begun anew (five times at most) when a trainer replaced the checkpoint while it
// was read. REQUIRES: it prints nothing before everything is read.
Work looking_again(Work work);

// Returns what main() returns.
int run_program(const Program& program, int argc, char** argv, const Work& work);

}  // namespace ebb::tools
