#include "ebb/formats/catalog/value_alike.h"

#include <algorithm>
#include <map>
#include <set>
#include <string_view>

#include "ebb/formats/core/compose.h"

namespace ebb::formats {
namespace {

// As Python prints it.
std::string python_text(const Value& value) {
  if (value.kind == Value::Kind::none) return "None";
  if (value.kind == Value::Kind::boolean) return value.integer != 0 ? "True" : "False";
  if (value.kind != Value::Kind::tuple)
    return value.kind == Value::Kind::string ? "'" + value.text + "'" : to_json(value);
  std::string out = "(";
  for (const Value& item : value.items) {
    if (out.size() > 1) out += ", ";
    out += python_text(item);
  }
  return out + (value.items.size() == 1 ? ",)" : ")");
}

class Comparing {
 public:
  explicit Comparing(std::size_t most) : most_(most) {}

  void compare(const std::string& path, const Value& left, const Value& right) {
    if (found_.size() >= most_) return;
    if (left.kind == Value::Kind::dict && right.kind == Value::Kind::dict)
      compare_dicts(path, left, right);
    else if (is_sequence(left) && is_sequence(right))
      compare_sequences(path, left, right);
    else if (!same(left, right))
      add({path, &left, &right});
  }
  std::vector<ValueDifference> take() { return std::move(found_); }

 private:
  static bool same(const Value& left, const Value& right) {
    const auto x = number_in(left), y = number_in(right);
    if (x && y && left.kind != right.kind) return *x == *y;
    return to_json(left) == to_json(right);
  }

  void add(ValueDifference difference) {
    if (found_.size() < most_) found_.push_back(std::move(difference));
  }

  void compare_dicts(const std::string& path, const Value& left, const Value& right) {
    std::map<std::string, const Value*> others;
    for (const auto& [key, value] : right.entries) others.emplace(to_json(key), &value);
    for (const auto& [key, value] : left.entries) {
      const std::string below = path + "." + key_text(key);
      const auto other = others.find(to_json(key));
      if (other == others.end()) {
        add({below, &value, nullptr});
        continue;
      }
      compare(below, value, *other->second);
      others.erase(other);
    }
    for (const auto& [key, value] : right.entries)
      if (others.contains(to_json(key))) add({path + "." + key_text(key), nullptr, &value});
  }

  void compare_sequences(const std::string& path, const Value& left, const Value& right) {
    const std::size_t both = std::min(left.items.size(), right.items.size());
    for (std::size_t i = 0; i < both; ++i)
      compare(compose("{}.{}", path, i), left.items[i], right.items[i]);
    for (std::size_t i = both; i < left.items.size(); ++i)
      add({compose("{}.{}", path, i), &left.items[i], nullptr});
    for (std::size_t i = both; i < right.items.size(); ++i)
      add({compose("{}.{}", path, i), nullptr, &right.items[i]});
  }

  std::size_t most_;
  std::vector<ValueDifference> found_;
};

}  // namespace

std::optional<double> number_in(const Value& value) {
  if (value.kind == Value::Kind::integer) return static_cast<double>(value.integer);
  if (value.kind == Value::Kind::real) return value.real;
  return std::nullopt;
}

bool is_sequence(const Value& value) {
  return value.kind == Value::Kind::tuple || value.kind == Value::Kind::list;
}

std::string key_text(const Value& key) {
  return key.kind == Value::Kind::string ? key.text : python_text(key);
}

std::vector<ValueDifference> differences(const Value& left, const Value& right, std::size_t most) {
  Comparing comparing(most);
  comparing.compare("", left, right);
  return comparing.take();
}

const GroupEntry* group_sharing(const std::vector<GroupEntry>& groups, const GroupEntry& wanted,
                                std::size_t number) {
  const std::set<std::string_view> names(wanted.params.begin(), wanted.params.end());
  const auto shares = [&](const GroupEntry& group) {
    return std::ranges::any_of(group.params, [&](const auto& n) { return names.contains(n); });
  };
  if (number < groups.size() && shares(groups[number])) return &groups[number];
  const auto found = std::ranges::find_if(groups, shares);
  return found == groups.end() ? nullptr : &*found;
}

bool list_params(const std::vector<GroupEntry>& groups) {
  return std::ranges::any_of(groups, [](const GroupEntry& group) { return !group.params.empty(); });
}

bool alike(const Value& left, const Value& right) { return differences(left, right, 1).empty(); }

}  // namespace ebb::formats
