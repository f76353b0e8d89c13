#include "ebb/formats/conversion/glob.h"

#include <algorithm>
#include <utility>

namespace ebb::formats {

namespace {

bool literal_at(std::string_view literal, std::string_view text) {
  return literal.size() <= text.size() &&
         std::equal(literal.begin(), literal.end(), text.begin(),
                    [](char wanted, char found) { return wanted == '?' || wanted == found; });
}

// Calls take(run) for what each '*' stands for; false when the text does not match.
template <typename Take>
bool match(std::string_view pattern, std::string_view text, Take take) {
  std::size_t star = pattern.find('*');
  const std::string_view head = pattern.substr(0, star);
  if (!literal_at(head, text)) return false;
  text.remove_prefix(head.size());
  while (star != std::string_view::npos) {
    pattern.remove_prefix(star + 1);
    star = pattern.find('*', 0);
    const std::string_view literal = pattern.substr(0, star);
    if (text.size() < literal.size()) return false;
    // After the last star the rest of the pattern is the end of the text.
    std::size_t run = star == std::string_view::npos ? text.size() - literal.size() : 0;
    while (run + literal.size() <= text.size() && !literal_at(literal, text.substr(run))) ++run;
    if (run + literal.size() > text.size()) return false;
    take(text.substr(0, run));
    text.remove_prefix(run + literal.size());
  }
  return text.empty();
}

}  // namespace

bool glob_match(std::string_view pattern, std::string_view text) {
  return match(pattern, text, [](std::string_view) {});
}

std::optional<std::vector<std::string_view>> glob_captures(std::string_view pattern,
                                                           std::string_view text) {
  std::vector<std::string_view> captures;
  const auto take = [&](std::string_view run) { captures.push_back(run); };
  return match(pattern, text, take) ? std::optional(std::move(captures)) : std::nullopt;
}

}  // namespace ebb::formats
