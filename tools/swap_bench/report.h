// What swap-bench found, in words and as JSON.
#pragma once

#include <optional>
#include <string>

#include "tools/swap_bench/advice.h"

namespace ebb::tools::swap_bench {

std::string report_text(const std::string& directory, const Sweep& sweep,
                        const std::optional<Step>& step);
// What the measurements say of reading and writing at once, as a line.
std::string verdict_text(const Sweep& sweep, const Advice& advice);

struct PictureWritten {
  std::string file;
  std::uint64_t bytes = 0;
};
std::string report_json(const std::string& directory, const Sweep& sweep,
                        const std::optional<Step>& step,
                        const std::optional<PictureWritten>& picture = std::nullopt);

}  // namespace ebb::tools::swap_bench
