// The flags that change content on its way: --rename, --dtype, --momentum.
#pragma once

#include "ebb/formats/conversion/edits.h"
#include "tools/cli/arguments.h"

namespace ebb::tools::convert {

// Reads the files that --rename @FILE names. Code::usage for what is no rule.
Result<formats::Edits> edits_of(const Arguments& arguments);

}  // namespace ebb::tools::convert
