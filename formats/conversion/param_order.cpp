#include "ebb/formats/conversion/param_order.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string_view>

#include "ebb/formats/catalog/resume.h"
#include "ebb/formats/catalog/value_alike.h"
#include "ebb/formats/core/json_text.h"
#include "ebb/formats/core/number_text.h"
#include "ebb/formats/state_dict/groups.h"
#include "ebb/formats/state_dict/numbers.h"

namespace ebb::formats {
namespace {

// Parameters that have states, and those of groups.
std::set<std::string_view> optimized(const Catalog& content) {
  std::set<std::string_view> names;
  for (const GroupEntry& group : content.groups)
    names.insert(group.params.begin(), group.params.end());
  for (const TensorEntry& tensor : content.tensors)
    if (!is_weight(tensor.state)) names.insert(tensor.name);
  for (const auto& [name, steps] : content.param_steps) names.insert(name);
  return names;
}

// A setting in which the groups differ; nullopt: in none.
std::optional<std::string> difference(const GroupEntry& a, const GroupEntry& b) {
  if (a.optimizer != b.optimizer) return "the optimizer";
  for (const auto& [one, other] : {std::pair(&a, &b), std::pair(&b, &a)})
    for (const auto& [name, value] : one->settings) {
      const Value* its = setting_of(*other, name);
      if (its == nullptr || !alike(value, *its)) return name;
    }
  return std::nullopt;
}

class Ordering {
 public:
  Ordering(const SaidOrder& said, const Catalog& content) : said_(said), content_(content) {
    const bool all_in_one = content.groups.size() == 1 && content.groups.front().params.empty();
    if (all_in_one) rest_ = &content.groups.front();
    for (const GroupEntry& group : content.groups)
      for (const std::string& name : group.params) group_of_.emplace(name, &group);
  }

  Result<std::vector<GroupEntry>> run() {
    EBB_TRY(check_names());
    std::vector<GroupEntry> groups;
    for (const GroupEntry& said :
         said_.borders == SaidOrder::Borders::said ? said_.groups : split())
      EBB_TRY(add(said, groups));
    if (said_.borders == SaidOrder::Borders::of_the_content) EBB_TRY(check_split(groups));
    return groups;
  }

 private:
  Error wrong(const std::string& what, std::string hint = {}) const {
    return {Code::usage, compose("{}: {}", said_.by, what), std::move(hint)};
  }
  static std::string quoted(std::string_view name) { return "'" + printable(name) + "'"; }

  const GroupEntry* group_of(std::string_view name) const {
    const auto found = group_of_.find(name);
    return found == group_of_.end() ? rest_ : found->second;
  }

  Result<> check_names() {
    std::set<std::string_view> model;
    for (const TensorEntry& tensor : content_.tensors)
      if (is_weight(tensor.state)) model.insert(tensor.name);
    for (const GroupEntry& group : said_.groups)
      for (const std::string& name : group.params) {
        if (!names_.insert(name).second) return wrong(quoted(name) + " is there twice");
        if (!model.empty() && !model.contains(name))
          return wrong("no parameter of the model is called " + quoted(name));
      }
    for (const std::string_view name : optimized(content_))
      if (!names_.contains(name))
        return wrong(quoted(name) + " is missing, which the optimizer has", names_hint());
    return {};
  }

  // As the content's groups follow each other along the one list of names.
  std::vector<GroupEntry> split() const {
    std::vector<GroupEntry> groups;
    const GroupEntry* last = nullptr;
    for (const GroupEntry& said : said_.groups)
      for (const std::string& name : said.params) {
        const GroupEntry* own = group_of(name);
        if (groups.empty() || (own != nullptr && own != last)) groups.emplace_back();
        if (own != nullptr) last = own;
        groups.back().params.push_back(name);
      }
    return groups;
  }

  // No list of an optimizer goes back to a group that has ended.
  Result<> check_split(const std::vector<GroupEntry>& groups) const {
    std::set<const GroupEntry*> ended;
    for (const GroupEntry& group : groups) {
      const GroupEntry* own = group_of(group.params.front());
      if (!ended.insert(own).second)
        return wrong(compose("{} is of a group that has ended before it: this is not the order in "
                             "which an optimizer has groups",
                             quoted(group.params.front())),
                     names_hint());
    }
    return {};
  }

  Result<> add(const GroupEntry& said, std::vector<GroupEntry>& groups) const {
    GroupEntry group;
    const std::string* first = nullptr;
    for (const std::string& name : said.params) {
      const GroupEntry* own = group_of(name);
      if (own == nullptr) continue;
      if (first == nullptr) {
        group = *own;
        first = &name;
      } else if (const auto other = difference(*group_of(*first), *own)) {
        return wrong(compose("{} and {} are in one group, but their groups differ in {}",
                             quoted(*first), quoted(name), printable(*other)),
                     "in FILE an empty line ends a group");
      }
    }
    if (first == nullptr && said.settings.empty())
      return wrong(
          compose("{}: nothing says how its group is set (lr, betas, ...)",
                  said.params.empty() ? "a group of nothing" : quoted(said.params.front())),
          "--like CHECKPOINT takes settings from a checkpoint of the same job");
    for (const auto& [name, value] : said.settings)
      if (setting_of(group, name) == nullptr) group.settings.emplace_back(name, value);
    if (group.optimizer.empty()) group.optimizer = said.optimizer;
    group.params = said.params;
    groups.push_back(std::move(group));
    return {};
  }

  const SaidOrder& said_;
  const Catalog& content_;
  std::map<std::string_view, const GroupEntry*> group_of_;
  const GroupEntry* rest_ = nullptr;  // of parameters that no group lists
  std::set<std::string_view> names_;
};

}  // namespace

Result<std::string> take_order(const SaidOrder& said, Catalog& content) {
  EBB_TRY_ASSIGN(content.groups, Ordering(said, content).run());
  content.grouped = GroupOrder::of_the_optimizer;
  std::size_t params = 0;
  for (const GroupEntry& group : content.groups) params += group.params.size();
  return compose("the optimizer's {} in {} are numbered as {} says", plural(params, "parameter"),
                 plural(content.groups.size(), "group"), said.by);
}

Result<> check_order(const Catalog& content, std::string_view target) {
  if (starts_anew(content)) return {};
  if (content.grouped != GroupOrder::of_the_optimizer)
    return Error{Code::unsupported,
                 compose("an optimizer of {} has numbers for names, and nothing here records which "
                         "parameter has which",
                         target),
                 "behind trainer.create_optimizer(), " + names_hint("trainer") +
                     "; --like CHECKPOINT takes the order of a checkpoint of that job"};
  std::set<std::string_view> listed;
  for (const GroupEntry& group : content.groups)
    listed.insert(group.params.begin(), group.params.end());
  for (const std::string_view name : optimized(content))
    if (!listed.contains(name))
      return Error{Code::unsupported,
                   compose("'{}' has states, but no group of the optimizer has it: what its number "
                           "is in {} is not known",
                           printable(name), target),
                   names_hint()};
  return {};
}

}  // namespace ebb::formats
