// What gpt-train steps the matrices of its blocks with: Muon as a preset has it, or AdamW, and what
// the command line changes of it.
#pragma once

#include <string>

#include "ebb/libmuon/plan/model.h"
#include "tools/cli/arguments.h"

namespace ebb::gpt {

// Of --optimizer, --preset, --lr and --set. Code::usage names the flag.
Result<libmuon::GroupSpec> matrices_from(const tools::Arguments& arguments);
// For people: each preset's source and settings.
std::string preset_list();

}  // namespace ebb::gpt
