// A whole run of gpt-train, from settings to results.
#pragma once

#include "examples/gpt/settings.h"
#include "examples/gpt/team.h"
#include "tools/cli/console.h"

namespace ebb::gpt {

// Collective. What is said and written is said and written by the process that leads, an error by
// every process that has one.
Result<tools::Exit> run_job(tools::Console& console, const Settings& settings, Team& team);

}  // namespace ebb::gpt
