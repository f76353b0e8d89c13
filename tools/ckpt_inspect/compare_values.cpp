#include <algorithm>
#include <map>
#include <set>

#include "ebb/formats/catalog/value_alike.h"
#include "ebb/formats/core/json_text.h"
#include "ebb/formats/state_dict/small_tensors.h"
#include "ebb/formats/state_dict/state_dict.h"
#include "tools/ckpt_inspect/compare.h"
#include "tools/ckpt_inspect/modes.h"

namespace ebb::tools::inspect {

namespace {

constexpr std::size_t kShown = 60;       // bytes of a value
constexpr std::size_t kMostInValue = 4;  // differences of one value that are told

std::string text_of(const Value* value) {
  return value == nullptr ? "nothing" : printable(to_json(*value), kShown);
}

void compare_one(const std::string& what, const Value& a, const Value& b, Comparison& comparison) {
  ++comparison.values_in_both;
  for (const auto& [path, left, right] : formats::differences(a, b, kMostInValue))
    comparison.values.push_back(compose("{}{}: {} against {}", what, printable(path, kShown),
                                        text_of(left), text_of(right)));
}

// What one of two groups has and the other has not.
void compare_sets(const std::string& group, const GroupEntry& a, const GroupEntry& b,
                  Comparison& comparison) {
  const auto names = [](const GroupEntry& of) {
    std::set<std::string> all;
    for (const std::string& param : of.params) all.insert("parameter " + printable(param, 40));
    for (const auto& [setting, value] : of.settings)
      if (setting != "optimizer" || value.text != of.optimizer)
        all.insert("setting " + printable(setting, 40));
    return all;
  };
  const auto tell = [&](const auto& from, const auto& other, std::string_view side) {
    for (const std::string& name : from)
      if (!other.contains(name))
        comparison.values.push_back(compose("{}: {} only on the {}", group, name, side));
  };
  const std::set<std::string> left = names(a), right = names(b);
  tell(left, right, "left");
  tell(right, left, "right");
}

void compare_groups(const Catalog& left, const Catalog& right, Comparison& comparison) {
  for (std::size_t i = 0; i < left.groups.size(); ++i) {
    const GroupEntry& a = left.groups[i];
    const GroupEntry* b = formats::group_sharing(right.groups, a, i);
    // Other models have groups of the same kind.
    if (b == nullptr && i < right.groups.size()) b = &right.groups[i];
    if (b == nullptr) continue;
    const std::string group = compose("group {}", i);
    if (!a.optimizer.empty() && !b->optimizer.empty())
      compare_one(group + ": optimizer", Value::of_string(a.optimizer),
                  Value::of_string(b->optimizer), comparison);
    for (const auto& [name, value] : a.settings)
      for (const auto& [other_name, other] : b->settings)
        if (name == other_name)
          compare_one(group + ": " + printable(name, 40), value, other, comparison);
    if (left.format == right.format) compare_sets(group, a, *b, comparison);
  }
}

// Of values by key. Those that only repeat what groups and steps say are compared there.
void compare_keyed(const std::vector<ValueEntry>& left, const std::vector<ValueEntry>& right,
                   Comparison& comparison) {
  std::map<std::string_view, const Value*> others;
  for (const ValueEntry& value : right)
    if (!value.echoed && value.key != formats::kPartsKey) others[value.key] = &value.value;
  std::set<std::string_view> found;
  for (const ValueEntry& value : left) {
    if (value.echoed || value.key == formats::kPartsKey) continue;
    const auto other = others.find(value.key);
    if (other == others.end()) {
      comparison.values_only_left.push_back(value.key);
      continue;
    }
    compare_one("value " + printable(value.key), value.value, *other->second, comparison);
    found.insert(value.key);
  }
  for (const auto& [key, value] : others)
    if (!found.contains(key)) comparison.values_only_right.emplace_back(key);
}

// Formats differ in how deep into a value they give keys.
Result<> compare_all(const Catalog& left, const Catalog& right, Comparison& comparison) {
  if (left.format == right.format) {
    compare_keyed(left.values, right.values, comparison);
    return {};
  }
  EBB_TRY_ASSIGN(const auto ours, formats::values_in_one_piece(left));
  EBB_TRY_ASSIGN(const auto theirs, formats::values_in_one_piece(right));
  compare_keyed(ours, theirs, comparison);
  return {};
}

// A step that `side` keeps in a tensor and `other` outside.
Result<> compare_lifted(const Side& side, const Side& other, Comparison& comparison) {
  for (const TensorEntry* tensor : side.tensors) {
    const auto steps = other.catalog().param_steps.find(tensor->name);
    if (steps == other.catalog().param_steps.end()) continue;
    EBB_TRY_ASSIGN(const auto counted, formats::steps_counted(side.checkpoint, *tensor));
    if (!counted) continue;
    compare_one("steps of " + printable(tensor->name), Value::of_real(*counted),
                Value::of_int(steps->second), comparison);
  }
  return {};
}

}  // namespace

Result<> compare_values(const Side& left, const Side& right, Comparison& comparison) {
  const Catalog& a = left.catalog();
  const Catalog& b = right.catalog();
  if (a.step && b.step)
    compare_one("step", Value::of_int(*a.step), Value::of_int(*b.step), comparison);
  EBB_TRY(compare_all(a, b, comparison));
  compare_groups(a, b, comparison);
  for (const auto& [name, steps] : a.param_steps)
    if (const auto other = b.param_steps.find(name); other != b.param_steps.end())
      compare_one("steps of " + printable(name), Value::of_int(steps), Value::of_int(other->second),
                  comparison);
  EBB_TRY(compare_lifted(left, right, comparison));
  return compare_lifted(right, left, comparison);
}

}  // namespace ebb::tools::inspect
