// Writing JSON by hand: strings quoted as RFC 8259 wants them.
#pragma once

#include <string>
#include <string_view>

namespace formats {

// Appends `text` in quotes; control characters, quotes and backslashes escaped, bytes that are not
// UTF-8 replaced by U+FFFD, everything else as it is.
void append_json_string(std::string& out, std::string_view text);
std::string json_string(std::string_view text);

// Length of the UTF-8 sequence at the front of `text` (1 to 4), 0 when there is none.
std::size_t utf8_length(std::string_view text);

}  // namespace formats
