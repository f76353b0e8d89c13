// The flags that change content on its way: --rename, --dtype, --momentum; and --names, which says
// what a name is.
#pragma once

#include "ebb/formats/conversion/edits.h"
#include "tools/cli/arguments.h"

namespace ebb::tools::convert {

// Reads the files that --rename @FILE names. Code::usage for what is no rule.
Result<formats::Edits> edits_of(const Arguments& arguments);

// The lines of the file that --names FILE names, those between empty lines in a group.
Result<std::vector<std::vector<std::string>>> names_in_file(const std::string& path);

}  // namespace ebb::tools::convert
