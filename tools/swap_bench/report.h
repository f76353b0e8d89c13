// What swap-bench found, in words and as JSON.
#pragma once

#include <optional>
#include <string>

#include "tools/swap_bench/advice.h"

namespace ebb::tools::swap_bench {

std::string report_text(const std::string& directory, const Sweep& sweep,
                        const std::optional<Step>& step);
std::string report_json(const std::string& directory, const Sweep& sweep,
                        const std::optional<Step>& step);

}  // namespace ebb::tools::swap_bench
