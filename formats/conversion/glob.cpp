#include "ebb/formats/conversion/glob.h"

#include <algorithm>

namespace ebb::formats {

namespace {

bool literal_at(std::string_view literal, std::string_view text) {
  return literal.size() <= text.size() &&
         std::equal(literal.begin(), literal.end(), text.begin(),
                    [](char wanted, char found) { return wanted == '?' || wanted == found; });
}

}  // namespace

std::optional<std::vector<std::string_view>> glob_captures(std::string_view pattern,
                                                           std::string_view text) {
  std::vector<std::string_view> captures;
  std::size_t star = pattern.find('*');
  const std::string_view head = pattern.substr(0, star);
  if (!literal_at(head, text)) return std::nullopt;
  text.remove_prefix(head.size());
  while (star != std::string_view::npos) {
    pattern.remove_prefix(star + 1);
    star = pattern.find('*', 0);
    const std::string_view literal = pattern.substr(0, star);
    if (text.size() < literal.size()) return std::nullopt;
    // After the last star the rest of the pattern is the end of the text.
    std::size_t run = star == std::string_view::npos ? text.size() - literal.size() : 0;
    while (run + literal.size() <= text.size() && !literal_at(literal, text.substr(run))) ++run;
    if (run + literal.size() > text.size()) return std::nullopt;
    captures.push_back(text.substr(0, run));
    text.remove_prefix(run + literal.size());
  }
  if (!text.empty()) return std::nullopt;
  return captures;
}

}  // namespace ebb::formats
