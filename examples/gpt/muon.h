// Which Muon gpt-train trains with: a preset, and what the command line changes of it.
#pragma once

#include <string>

#include "ebb/libmuon/spec/spec.h"
#include "tools/cli/arguments.h"

namespace ebb::gpt {

// Of --preset, --lr and --set. Code::usage names the flag.
Result<libmuon::MuonSpec> muon_from(const tools::Arguments& arguments);
// For people: each preset's source and settings.
std::string preset_list();

}  // namespace ebb::gpt
