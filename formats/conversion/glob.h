// Patterns with '*' (any run of characters) and '?' (one), for whole texts.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

namespace ebb::formats {

bool glob_match(std::string_view pattern, std::string_view text);

// What each '*' stands for when the whole text matches, nullopt when it does not. Every run but the
// last is as short as it can be. The views are of `text`.
std::optional<std::vector<std::string_view>> glob_captures(std::string_view pattern,
                                                           std::string_view text);

}  // namespace ebb::formats
