#include "ebb/formats/core/json_text.h"

#include <cstdint>
#include <cstring>

namespace ebb::formats {
namespace {

constexpr std::string_view kHex = "0123456789abcdef";

// The bytes at the front that both functions below copy as they are.
std::size_t plain_length(std::string_view text) {
  std::size_t length = 0;
  while (length < text.size() && text[length] >= 0x20 && text[length] < 0x7f &&
         text[length] != '"' && text[length] != '\\')
    ++length;
  return length;
}

// Characters that move the cursor or turn the direction in which a terminal writes: C1 controls,
// bidirectional marks, embeddings, overrides and isolates, line and paragraph separators.
// `sequence` is one of UTF-8.
bool steers(std::string_view sequence) {
  if (sequence.size() == 2)
    return (sequence[0] == '\xc2' && static_cast<std::uint8_t>(sequence[1]) < 0xa0) ||
           sequence == "\xd8\x9c";
  if (sequence.size() != 3 || sequence[0] != '\xe2') return false;
  const auto last = static_cast<std::uint8_t>(sequence[2]);
  if (sequence[1] == '\x80') return last == 0x8e || last == 0x8f || (last >= 0xa8 && last <= 0xae);
  return sequence[1] == '\x81' && last >= 0xa6 && last <= 0xa9;
}

void append_hex(std::string& out, unsigned value, int digits) {
  for (int shift = 4 * (digits - 1); shift >= 0; shift -= 4) out += kHex[(value >> shift) & 15u];
}

}  // namespace

std::size_t utf8_length(std::string_view text) {
  if (text.empty()) return 0;
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return 1;
  const std::size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() < length) return 0;
  for (std::size_t i = 1; i < length; ++i)
    if ((byte(i) & 0xc0) != 0x80) return 0;
  // Overlong forms, surrogates and code points beyond U+10FFFF.
  if ((first == 0xe0 && byte(1) < 0xa0) || (first == 0xed && byte(1) > 0x9f) ||
      (first == 0xf0 && byte(1) < 0x90) || (first == 0xf4 && byte(1) > 0x8f))
    return 0;
  return length;
}

std::size_t ascii_length(std::string_view text) {
  std::size_t length = 0;
  for (std::uint64_t eight = 0; length + 8 <= text.size(); length += 8) {
    std::memcpy(&eight, text.data() + length, 8);
    if ((eight & 0x8080'8080'8080'8080u) != 0) break;
  }
  return length;
}

void append_json_string(std::string& out, std::string_view text) {
  out += '"';
  while (!text.empty()) {
    if (const std::size_t plain = plain_length(text); plain != 0) {
      out += text.substr(0, plain);
      text.remove_prefix(plain);
      continue;
    }
    const std::size_t length = utf8_length(text);
    const char c = text.front();
    if (length == 0) {
      out += "\xef\xbf\xbd";
    } else if (c == '"' || c == '\\') {
      (out += '\\') += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (const auto code = static_cast<std::uint8_t>(c); code < 0x20 || code == 0x7f) {
      append_hex(out += "\\u", code, 4);
    } else if (const std::string_view one = text.substr(0, length); steers(one)) {
      unsigned point = static_cast<std::uint8_t>(c) & (length == 2 ? 0x1fu : 0x0fu);
      for (const char next : one.substr(1))
        point = point << 6 | (static_cast<unsigned>(next) & 0x3fu);
      append_hex(out += "\\u", point, 4);
    } else {
      out += one;
    }
    text.remove_prefix(length == 0 ? 1 : length);
  }
  out += '"';
}

std::string printable(std::string_view text, std::size_t limit) {
  std::string out;
  while (!text.empty()) {
    if (out.size() >= limit) return out + "...";
    if (const std::size_t plain = plain_length(text.substr(0, limit - out.size())); plain != 0) {
      out += text.substr(0, plain);
      text.remove_prefix(plain);
      continue;
    }
    const std::size_t length = utf8_length(text);
    const auto code = static_cast<std::uint8_t>(text.front());
    if (length == 0 || code < 0x20 || code == 0x7f || steers(text.substr(0, length))) {
      append_hex(out += "\\x", code, 2);  // what is left of a sequence is none
      text.remove_prefix(1);
    } else {
      out += text.substr(0, length);
      text.remove_prefix(length);
    }
  }
  return out;
}

std::string json_string(std::string_view text) {
  std::string out;
  append_json_string(out, text);
  return out;
}

}  // namespace ebb::formats
