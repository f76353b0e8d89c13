// What of a configuration no engine can be made of, by name.
#pragma once

#include "ebb/libmuon/step/config.h"

namespace ebb::libmuon {

// Before anything is planned.
Result<> check_config(const EngineConfig& config);
// What goes together, of states that are kept so.
Result<> check_with(const EngineConfig& config, const Columns& columns);

}  // namespace ebb::libmuon
