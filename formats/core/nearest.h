// What somebody may have meant.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ebb::formats {

// The candidate with the smallest edit distance, if it is near enough to be what was meant.
std::optional<std::string> nearest(std::string_view text,
                                   const std::vector<std::string>& candidates);

}  // namespace ebb::formats
