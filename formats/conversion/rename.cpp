#include "ebb/formats/conversion/rename.h"

#include <algorithm>

#include "ebb/formats/conversion/glob.h"
#include "ebb/formats/core/json_text.h"

namespace ebb::formats {

namespace {

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r";
  const std::size_t first = text.find_first_not_of(kSpace);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kSpace) - first + 1);
}

// The number after the '$' at `at`; 0 when there is none.
std::size_t capture_number(std::string_view text, std::size_t at) {
  if (at + 1 >= text.size() || text[at] != '$') return 0;
  const char digit = text[at + 1];
  return digit >= '1' && digit <= '9' ? static_cast<std::size_t>(digit - '0') : 0;
}

// The highest capture that a replacement asks for.
std::size_t captures_wanted(std::string_view to) {
  std::size_t stars = 0;
  std::size_t highest = 0;
  for (std::size_t i = 0; i < to.size(); ++i) {
    if (to[i] == '*') ++stars;
    highest = std::max(highest, capture_number(to, i));
  }
  return std::max(stars, highest);
}

std::string filled_in(std::string_view to, const std::vector<std::string_view>& captures) {
  std::string out;
  std::size_t stars = 0;
  for (std::size_t i = 0; i < to.size(); ++i) {
    if (to[i] == '*') {
      out += captures[stars++];
    } else if (const std::size_t number = capture_number(to, i); number != 0) {
      out += captures[number - 1];
      ++i;
    } else {
      out += to[i];
    }
  }
  return out;
}

}  // namespace

Result<RenameRules::Rule> RenameRules::parse_rule(std::string_view text) {
  const std::string rule = "rename rule '" + printable(text) + "'";
  const std::size_t equals = text.find('=');
  if (equals == std::string_view::npos)
    return Error{Code::usage, rule + " has no '=': it must be OLD=NEW",
                 "for example --rename 'module.*=*'"};
  const std::string_view from = trimmed(text.substr(0, equals));
  const std::string_view to = trimmed(text.substr(equals + 1));
  if (from.empty() || to.empty())
    return Error{Code::usage, rule + " gives nothing a name, or a name to nothing"};
  const auto stars = static_cast<std::size_t>(std::count(from.begin(), from.end(), '*'));
  if (const std::size_t wanted = captures_wanted(to); wanted > stars)
    return Error{Code::usage, compose("{} asks for run {} of the old name, which has {}{}", rule,
                                      wanted, stars, stars == 1 ? " '*'" : " of '*'")};
  return Rule{std::string(text), std::string(from), std::string(to)};
}

Result<RenameRules> RenameRules::parse(std::span<const std::string> texts) {
  RenameRules rules;
  for (std::string_view text : texts) {
    while (!text.empty()) {
      const std::size_t line_end = std::min(text.find('\n'), text.size());
      std::string_view line = trimmed(text.substr(0, line_end));
      text.remove_prefix(std::min(line_end + 1, text.size()));
      if (line.starts_with('#')) continue;
      while (!line.empty()) {
        const std::size_t end = std::min(line.find(','), line.size());
        if (const std::string_view rule = trimmed(line.substr(0, end)); !rule.empty()) {
          EBB_TRY_ASSIGN(Rule parsed, parse_rule(rule));
          rules.rules_.push_back(std::move(parsed));
        }
        line.remove_prefix(std::min(end + 1, line.size()));
      }
    }
  }
  return rules;
}

Result<std::map<std::string, std::string>> RenameRules::apply(const std::set<std::string>& names,
                                                              const MayJoin& may_join) const {
  std::map<std::string, std::string> changed;
  std::map<std::string, std::string_view> old_of;  // of every name, changed or not
  std::vector<std::size_t> uses(rules_.size(), 0);
  for (const std::string& name : names) {
    std::string fresh = name;
    for (std::size_t i = 0; i < rules_.size(); ++i) {
      const auto captures = glob_captures(rules_[i].from, name);
      if (!captures) continue;
      ++uses[i];
      fresh = filled_in(rules_[i].to, *captures);
      break;
    }
    if (fresh.empty())
      return Error{Code::usage, "'" + printable(name) + "' would be left without a name"};
    const auto [place, unique] = old_of.emplace(fresh, name);
    if (!unique && !(may_join && may_join(std::string(place->second), name)))
      return Error{Code::usage,
                   compose("'{}' and '{}' would both be called '{}'", printable(place->second),
                           printable(name), printable(fresh)),
                   "make the --rename rules tell them apart"};
    if (fresh != name) changed.emplace(name, std::move(fresh));
  }
  EBB_TRY(check_used(uses, names));
  return changed;
}

Result<> RenameRules::check_used(const std::vector<std::size_t>& uses,
                                 const std::set<std::string>& names) const {
  for (std::size_t i = 0; i < uses.size(); ++i) {
    if (uses[i] != 0) continue;
    const bool taken = std::ranges::any_of(
        names, [&](const auto& name) { return glob_match(rules_[i].from, name); });
    return Error{
        Code::usage,
        "rename rule '" + printable(rules_[i].text) +
            (taken ? "' fits only names that a rule before it takes"
                   : "' fits none of the " + std::to_string(names.size()) + " names"),
        taken ? "put the more special rule first" : "ckpt-inspect CKPT --tensors lists them"};
  }
  return {};
}

}  // namespace ebb::formats
