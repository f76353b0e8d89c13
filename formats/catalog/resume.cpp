#include "ebb/formats/catalog/resume.h"

#include <algorithm>

#include "ebb/formats/core/check.h"
#include "ebb/formats/core/compose.h"
#include "ebb/formats/core/json_text.h"

namespace ebb::formats {
namespace {

std::string filled(std::string_view sentence, const ResumeQuestion& question) {
  std::string out(sentence);
  const auto put = [&](std::string_view mark, std::uint32_t ranks) {
    const std::string text = std::to_string(ranks) + (ranks == 1 ? " rank" : " ranks");
    for (std::size_t at = out.find(mark); at != std::string::npos; at = out.find(mark, at))
      out.replace(at, mark.size(), text);
  };
  put("{saved}", question.catalog.world);
  put("{wanted}", question.world);
  return out;
}

// Of weights beside which an optimizer's states lie: the rules of the weights' format do not know.
std::optional<ResumeAnswer> answer_with_states_beside(const ResumeQuestion& question) {
  const Catalog& catalog = question.catalog;
  if (!weights_only(question)) return std::nullopt;
  const auto states = std::ranges::find_if(catalog.beside, &BesideEntry::holds_states);
  if (states == catalog.beside.end()) return std::nullopt;
  ResumeAnswer answer;
  answer.loader = "what is read here alone";
  answer.why = compose(
      "weights here; the optimizer's states lie beside, in {}: only a job that loads both goes on",
      states->path);
  return answer;
}

std::string sentence(const ResumeRule& rule, const ResumeQuestion& question) {
  return rule.tell == nullptr ? filled(rule.why, question) : filled(rule.tell(question), question);
}

}  // namespace

ResumeAnswer resume_answer(const ResumeRules& rules, const ResumeQuestion& question) {
  if (auto beside = answer_with_states_beside(question)) return *std::move(beside);
  constexpr ResumeRule kWeightsAlone{
      ResumeRule::Says::no, [](const ResumeQuestion& asked) { return starts_anew(asked.catalog); },
      kStartsAnew};
  ResumeAnswer answer;
  answer.loader = rules.loader;
  const ResumeRule* decided = kWeightsAlone.applies(question) ? &kWeightsAlone : nullptr;
  for (const ResumeRule& rule : rules.rules) {
    if (!rule.applies(question)) continue;
    if (rule.says == ResumeRule::Says::note)
      answer.notes.push_back(sentence(rule, question));
    else if (decided == nullptr)
      decided = &rule;
  }
  EBB_CHECK(decided != nullptr);
  answer.resumable = decided->says == ResumeRule::Says::yes;
  answer.why = sentence(*decided, question);
  answer.to = decided->to;
  answer.partition = decided->partition;
  answer.through = decided->through;
  return answer;
}

bool same_world(const ResumeQuestion& question) { return question.world == question.catalog.world; }

bool always(const ResumeQuestion&) { return true; }

bool has_optimizer(const Catalog& catalog, std::string_view name) {
  return std::any_of(catalog.groups.begin(), catalog.groups.end(),
                     [&](const GroupEntry& group) { return group.optimizer == name; });
}

bool weights_only(const ResumeQuestion& question) {
  const auto& tensors = question.catalog.tensors;
  return std::all_of(tensors.begin(), tensors.end(), [](const TensorEntry& tensor) {
    return tensor.state == "param" || tensor.state == "buffer" || tensor.state == "tensor";
  });
}

bool is_weight(std::string_view state) {
  return state == "param" || state == "master" || state == "buffer" || state == "tensor";
}

bool starts_anew(const Catalog& catalog) {
  const auto weighs = [](const auto& entry) { return is_weight(entry.state); };
  return std::ranges::all_of(catalog.tensors, weighs) &&
         std::ranges::all_of(catalog.unread, weighs) &&
         std::ranges::none_of(catalog.groups, [](const GroupEntry& group) {
           return !group.optimizer.empty() ||
                  std::ranges::find(group.settings, "lr", &std::pair<std::string, Value>::first) !=
                      group.settings.end();
         });
}

bool lies_beside(const Catalog& catalog, std::string_view path) {
  return std::ranges::find(catalog.beside, path, &BesideEntry::path) != catalog.beside.end();
}

bool states_without_groups(const ResumeQuestion& question) {
  const Catalog& catalog = question.catalog;
  return catalog.groups.empty() &&
         std::ranges::any_of(catalog.tensors,
                             [](const TensorEntry& tensor) { return !is_weight(tensor.state); });
}

std::string some_of(const std::vector<std::string>& names) {
  constexpr std::size_t kShown = 4;
  std::string out;
  for (std::size_t i = 0; i < std::min(names.size(), kShown); ++i)
    out.append(i == 0 ? "" : ", ").append(printable(names[i], 80));
  return names.size() <= kShown ? out : compose("{} and {} more", out, names.size() - kShown);
}

const Value* value_at(const Catalog& catalog, std::initializer_list<std::string_view> path) {
  const Value* found = nullptr;
  for (const ValueEntry& value : catalog.values)
    if (value.key == *path.begin()) found = &value.value;
  for (const auto* step = path.begin() + 1; found != nullptr && step != path.end(); ++step)
    found = found->find(*step);
  return found;
}

}  // namespace ebb::formats
