#include <algorithm>
#include <map>
#include <set>

#include "formats/core/element_values.h"
#include "formats/core/json_text.h"
#include "libswap/transfer/box_reader.h"
#include "tools/ckpt_inspect/compare.h"
#include "tools/ckpt_inspect/modes.h"

namespace tools::inspect {

using formats::Catalog;
using formats::GroupEntry;
using formats::printable;
using formats::Result;
using formats::Value;

namespace {

// Formats differ in whether a pair is a tuple or a list and whether 0 is an integer or a real.
bool alike(const Value& a, const Value& b) {
  using Kind = Value::Kind;
  const auto number = [](const Value& value) -> std::optional<double> {
    if (value.kind == Kind::integer) return static_cast<double>(value.integer);
    if (value.kind == Kind::real) return value.real;
    return std::nullopt;
  };
  const auto sequence = [](const Value& value) {
    return value.kind == Kind::tuple || value.kind == Kind::list;
  };
  if (a.kind != b.kind && number(a) && number(b)) return *number(a) == *number(b);
  if (sequence(a) && sequence(b))
    return std::equal(a.items.begin(), a.items.end(), b.items.begin(), b.items.end(), alike);
  return to_json(a) == to_json(b);
}

void compare_one(const std::string& what, const Value& a, const Value& b, Comparison& comparison) {
  ++comparison.values_in_both;
  if (!alike(a, b))
    comparison.values.push_back(what + ": " + printable(to_json(a), 60) + " against " +
                                printable(to_json(b), 60));
}

// The group of `catalog` that holds the same parameters, or one of them.
const GroupEntry* group_like(const Catalog& catalog, const GroupEntry& wanted) {
  const std::set<std::string_view> names(wanted.params.begin(), wanted.params.end());
  for (const GroupEntry& group : catalog.groups)
    if (std::any_of(group.params.begin(), group.params.end(),
                    [&](const std::string& name) { return names.contains(name); }))
      return &group;
  return nullptr;
}

void compare_groups(const Catalog& left, const Catalog& right, Comparison& comparison) {
  for (std::size_t i = 0; i < left.groups.size(); ++i) {
    const GroupEntry& a = left.groups[i];
    const GroupEntry* b = group_like(right, a);
    if (b == nullptr) continue;
    const std::string group = "group " + std::to_string(i);
    if (!a.optimizer.empty() && !b->optimizer.empty())
      compare_one(group + ": optimizer", Value::of_string(a.optimizer),
                  Value::of_string(b->optimizer), comparison);
    for (const auto& [name, value] : a.settings)
      for (const auto& [other_name, other] : b->settings)
        if (name == other_name)
          compare_one(group + ": " + printable(name, 40), value, other, comparison);
  }
}

// Of values by key. Between formats those that only repeat what groups and steps say stay out.
void compare_keyed(const Catalog& left, const Catalog& right, Comparison& comparison) {
  const bool one_format = left.format == right.format;
  std::map<std::string_view, const Value*> others;
  for (const formats::ValueEntry& value : right.values)
    if (one_format || !value.echoed) others[value.key] = &value.value;
  std::uint64_t found = 0;
  for (const formats::ValueEntry& value : left.values) {
    if (!one_format && value.echoed) continue;
    const auto other = others.find(value.key);
    if (other == others.end()) {
      ++comparison.values_only_left;
      continue;
    }
    ++found;
    compare_one("value " + printable(value.key), value.value, *other->second, comparison);
  }
  comparison.values_only_right = others.size() - found;
}

// A step that `side` keeps in a tensor and `other` outside.
Result<> compare_lifted(const Side& side, const Side& other, Comparison& comparison) {
  for (const formats::TensorEntry* tensor : side.tensors) {
    const auto steps = other.catalog().param_steps.find(tensor->name);
    if (!is_step(*tensor) || steps == other.catalog().param_steps.end()) continue;
    if (formats::values_per_element(tensor->dtype) != 1) continue;
    formats::ByteVector bytes(formats::bytes_of(tensor->dtype));
    TRY(libswap::read_box(side.checkpoint, *tensor, formats::whole(tensor->shape), bytes));
    double value = 0;
    formats::element_values(tensor->dtype, bytes, {&value, 1});
    compare_one("steps of " + printable(tensor->name), Value::of_real(value),
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
  compare_keyed(a, b, comparison);
  if (a.format != b.format) compare_groups(a, b, comparison);
  for (const auto& [name, steps] : a.param_steps)
    if (const auto other = b.param_steps.find(name); other != b.param_steps.end())
      compare_one("steps of " + printable(name), Value::of_int(steps), Value::of_int(other->second),
                  comparison);
  TRY(compare_lifted(left, right, comparison));
  return compare_lifted(right, left, comparison);
}

}  // namespace tools::inspect
