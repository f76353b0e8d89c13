// A whole run of gpt-train, from its command line to its results: what is the same whether ranks
// are threads or processes.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "examples/gpt/settings.h"
#include "examples/gpt/team.h"
#include "tools/cli/console.h"

namespace ebb::gpt {

using MakeTeam = std::function<Result<std::unique_ptr<Team>>(const Settings&)>;

// Collective. `world`: see settings_from(). What is said and written is said and written by the
// process that leads, an error by every process that has one.
Result<tools::Exit> run_job(tools::Console& console, const tools::Arguments& arguments,
                            std::optional<std::uint32_t> world, const MakeTeam& make_team);

}  // namespace ebb::gpt
