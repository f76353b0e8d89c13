// What a conversion changes about its content on request: names, dtypes, the momentum's convention.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ebb/formats/catalog/catalog.h"
#include "ebb/formats/conversion/content_view.h"
#include "ebb/formats/conversion/rename.h"

namespace ebb::formats {

// PATTERN=DTYPE, or DTYPE for everything that no pattern fits but step counters. Patterns (glob.h)
// are of states, else of names; the first that fits decides. Floating tensors only.
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

// ema: M <- beta M + (1 - beta) G. sum: M <- beta M + G. From a start of zero and with a constant
// beta, sum is ema / (1 - beta).
enum class MomentumForm : std::uint8_t { ema, sum };
std::string_view name_of(MomentumForm form);

struct MomentumRule {
  MomentumForm to = MomentumForm::ema;
  std::optional<MomentumForm> from = std::nullopt;  // unset: as the groups and states tell
};

struct Edits {
  RenameRules rename;
  DTypeRules dtypes;
  std::optional<MomentumRule> momentum;
  bool empty() const { return rename.empty() && dtypes.empty() && !momentum; }
  bool change_groups() const { return !rename.empty() || momentum.has_value(); }
};

// Applies it to the content and to what its tensors are made of: dtypes first, names last.
// Returns one line for each kind of change, to be announced. What repeats renamed or changed groups
// is left out of the values, and renamed tensors lose their keys: the target spells them.
// Errors (Code::usage, Code::unsupported) name the rule or tensor: a rule that fits nothing, names
// that would collide, a momentum whose convention or beta is not known, or that may overflow.
Result<std::vector<std::string>> apply_edits(const Edits& edits, Catalog& content,
                                             std::vector<MadeOf>& made_of);

}  // namespace ebb::formats
