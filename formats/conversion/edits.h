// What a conversion changes about its content on request: names, dtypes, the momentum's convention.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ebb/formats/catalog/catalog.h"
#include "ebb/formats/conversion/content_view.h"
#include "ebb/formats/conversion/momentum.h"
#include "ebb/formats/conversion/rename.h"

namespace ebb::formats {

// PATTERN=DTYPE, or DTYPE for everything that no pattern fits but step counters. Patterns (glob.h)
// are of states, else of names; the first that fits decides. Floating tensors only, and none that
// is a group's setting.
class DTypeRules {
 public:
  // Each text holds rules separated by commas. Fails (Code::usage) for a rule that is none.
  static Result<DTypeRules> parse(std::span<const std::string> texts);

  bool empty() const { return rules_.empty(); }
  std::size_t size() const { return rules_.size(); }
  const std::string& text(std::size_t rule) const { return rules_[rule].text; }
  DType dtype(std::size_t rule) const { return rules_[rule].dtype; }
  std::optional<std::size_t> rule_for(const TensorEntry& tensor) const;

 private:
  struct Rule {
    std::string text;
    std::string pattern;  // "": everything else
    DType dtype = DType::f32;
  };
  std::vector<Rule> rules_;
};

// What to do with the words that wrappers of a model put into names (wrappers.h).
enum class WrapperNames : std::uint8_t { taken_off, kept };

struct Edits {
  RenameRules rename;
  DTypeRules dtypes;
  std::optional<MomentumRule> momentum;
  WrapperNames wrappers = WrapperNames::taken_off;
  RenameRules strip;  // behind all that, as one who sees the result wants it
  bool change_groups() const { return !rename.empty() || !strip.empty() || momentum.has_value(); }
};

// Gives what is called by an old name its new one, in tensors, groups, step counters and values.
// Renamed tensors lose their keys, and what repeats renamed groups is left out of the values.
void rename_to(const std::map<std::string, std::string>& names, Catalog& content);

// Applies dtypes, momentum and rename, in this order, to the content and to what its tensors are
// made of.
// Returns one line for each kind of change, to be announced. What repeats renamed or changed groups
// is left out of the values, and renamed tensors lose their keys: the target spells them.
// Errors (Code::usage, Code::unsupported) name the rule or tensor: a rule that fits nothing, names
// that would collide, a momentum whose convention or beta is not known, or that may overflow.
Result<std::vector<std::string>> apply_edits(const Edits& edits, Catalog& content,
                                             std::vector<MadeOf>& made_of);

// The content's names as the rules say, and a line that says how many those are.
Result<std::vector<std::string>> rename_all(const RenameRules& rules, Catalog& content);

}  // namespace ebb::formats
