// Rules that give parameters other names.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ebb/formats/core/result.h"

namespace ebb::formats {

// A rule is OLD=NEW. OLD is a pattern of glob.h for whole names; the first rule that fits a name
// gives it its new one. In NEW the n-th '*', or $n, is what the n-th '*' of OLD stands for.
class RenameRules {
 public:
  // Each text holds rules separated by commas or line ends; spaces around them and lines that begin
  // with '#' mean nothing. Fails (Code::usage) for a rule that is none.
  static Result<RenameRules> parse(std::span<const std::string> texts);

  bool empty() const { return rules_.empty(); }

  // Old name -> new name of those that change. Fails (Code::usage) for a rule that fits no name,
  // and where two names would become one that may not.
  using MayJoin = std::function<bool(const std::string&, const std::string&)>;
  Result<std::map<std::string, std::string>> apply(const std::set<std::string>& names,
                                                   const MayJoin& may_join = nullptr) const;

 private:
  struct Rule {
    std::string text;
    std::string from;
    std::string to;
  };
  static Result<Rule> parse_rule(std::string_view text);
  Result<> check_used(const std::vector<std::size_t>& uses,
                      const std::set<std::string>& names) const;

  std::vector<Rule> rules_;
};

}  // namespace ebb::formats
