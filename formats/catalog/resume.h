// Whether the framework that a checkpoint is for could resume it on another number of ranks: rules
// as data, one table beside each format, read from top to bottom. Sources of the rules: each
// format's page in docs/formats.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ebb/formats/catalog/catalog.h"

namespace ebb::formats {

struct ResumeQuestion {
  const Catalog& catalog;
  std::uint32_t world = 1;  // ranks that are to resume
};

struct ResumeRule {
  enum class Says : std::uint8_t {
    yes,   // resumes as it is
    no,    // does not; `to` says what would
    note,  // worth knowing either way; every one that applies is told
  };
  Says says = Says::no;
  bool (*applies)(const ResumeQuestion& question) = nullptr;
  // One sentence; "{saved}" and "{wanted}" stand for the numbers of ranks.
  std::string_view why = {};
  // What ckpt-convert has to make of it; "" where no conversion helps.
  std::string_view to = {};
  std::string_view partition = {};  // "": the format's own
  std::string_view through = {};    // the format that has to be made first; "": none
  // Instead of `why`, where the sentence names what lies in the checkpoint; marks as there.
  std::string (*tell)(const ResumeQuestion& question) = nullptr;
};

struct ResumeRules {
  std::string_view loader;  // who would load it: "DeepSpeed 0.19"
  std::span<const ResumeRule> rules;
};

struct ResumeAnswer {
  bool resumable = false;
  std::string loader;
  std::string why;
  std::string to;  // this and the next two: as in the rule
  std::string partition;
  std::string through;
  std::vector<std::string> notes;
};

// The first rule that says yes or no decides. Weights alone (starts_anew) resume in no format,
// before any rule. REQUIRES: one of the rules always applies.
ResumeAnswer resume_answer(const ResumeRules& rules, const ResumeQuestion& question);

// What rules ask.
bool same_world(const ResumeQuestion& question);
bool always(const ResumeQuestion& question);
bool weights_only(const ResumeQuestion& question);  // nothing besides weights and buffers
bool has_optimizer(const Catalog& catalog, std::string_view name);  // in any group
// States of tensors that are weights: of parameters in any precision, of buffers, and of what has a
// mere key. All others are an optimizer's.
bool is_weight(std::string_view state);
// Weights and nothing of an optimizer: no state, and no group that says how it was set.
bool starts_anew(const Catalog& catalog);
inline constexpr std::string_view kStartsAnew =
    "weights only: no optimizer state is in it; a job that loads it starts a new optimizer, which "
    "is no resume";
// Whether a file or folder of that name was seen beside what was read.
bool lies_beside(const Catalog& catalog, std::string_view path);
// States of an optimizer, and no parameter group that says how it is set: torch's loaders ask for
// each setting.
bool states_without_groups(const ResumeQuestion& question);
inline constexpr ResumeRule kStatesWithoutGroups{
    ResumeRule::Says::no, states_without_groups,
    "its states have no parameter groups (param_groups) beside them: the loader asks for "
    "their settings (lr, ...), and fails"};
// The first few names, and how many more there are; safe to print.
std::string some_of(const std::vector<std::string>& names);
// The value at a path of dict keys, below the value that has the first key; nullptr: not there.
const Value* value_at(const Catalog& catalog, std::initializer_list<std::string_view> path);

}  // namespace ebb::formats
