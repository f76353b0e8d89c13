// Text for people and programs: JSON strings as RFC 8259 wants them, names made safe to print.
#pragma once

#include <string>
#include <string_view>

namespace ebb::formats {

// Appends `text` in quotes; control characters, quotes and backslashes escaped, bytes that are not
// UTF-8 replaced by U+FFFD, everything else as it is.
void append_json_string(std::string& out, std::string_view text);
std::string json_string(std::string_view text);

// For messages and terminals: control characters and bytes that are not UTF-8 become \xNN; cut,
// with "..." at the end, after about `limit` bytes.
std::string printable(std::string_view text, std::size_t limit = 200);

// Length of the UTF-8 sequence at the front of `text` (1 to 4), 0 when there is none.
std::size_t utf8_length(std::string_view text);

// How many bytes at the front are ASCII, in steps of eight: names mostly are, to the end.
std::size_t ascii_length(std::string_view text);

}  // namespace ebb::formats

namespace ebb {
using formats::json_string;
using formats::printable;
}  // namespace ebb
