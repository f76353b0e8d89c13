#include "ebb/formats/state_dict/nesting.h"

#include <algorithm>
#include <map>
#include <set>

#include "ebb/formats/catalog/key_path.h"
#include "ebb/formats/core/json_text.h"
#include "ebb/formats/state_dict/state_dict.h"

namespace ebb::formats {
namespace {

constexpr std::size_t kMaxDepth = 256;
constexpr std::int64_t kGaps = 1024;  // positions of a list that may be empty, and as many again

Error taken(const std::vector<PathItem>& path) {
  return {Code::layout, "two entries would be stored under the key " + json_string(joined(path))};
}

Value value_of_item(const PathItem& item) {
  const auto* text = std::get_if<std::string>(&item);
  return text ? Value::of_string(*text) : Value::of_int(std::get<std::int64_t>(item));
}

Value gathered(const Nesting& nesting, const Nesting::Place& place) {
  if (const auto* leaf = std::get_if<Nesting::Leaf>(&place.what))
    return *std::get<const Value*>(*leaf);
  Value out;
  if (Nesting::kind_of(place) == Nesting::Kind::dict) {
    out.kind = Value::Kind::dict;
    for (const auto& [item, child] : place.children)
      out.entries.emplace_back(value_of_item(item), gathered(nesting, nesting.at(child)));
    return out;
  }
  out.kind =
      Nesting::kind_of(place) == Nesting::Kind::tuple ? Value::Kind::tuple : Value::Kind::list;
  std::map<std::int64_t, const Nesting::Place*> in_order;
  for (const auto& [item, child] : place.children)
    in_order.emplace(std::get<std::int64_t>(item), &nesting.at(child));
  for (const auto& [position, child] : in_order) {
    out.items.resize(static_cast<std::size_t>(position));  // None where nothing is said
    out.items.push_back(gathered(nesting, *child));
  }
  return out;
}

// The keys at the top that lead to tensors or to what groups and steps say.
std::set<PathItem> shared_keys(const Catalog& content) {
  std::set<PathItem> shared;
  for (const TensorEntry& tensor : content.tensors)
    if (!tensor.path.empty()) shared.insert(tensor.path.front());
  for (const ValueEntry& value : content.values)
    if (value.echoed && !value.path.empty()) shared.insert(value.path.front());
  return shared;
}

}  // namespace

Result<std::size_t> Nesting::reach(const std::vector<PathItem>& path) {
  if (path.size() > kMaxDepth) return Error{Code::limit, "an entry lies deeper than 256 levels"};
  std::size_t at = 0;
  for (const PathItem& item : path) {
    if (std::holds_alternative<Leaf>(places_[at].what)) return taken(path);
    const auto [known, is_new] = numbers_.emplace(std::pair(at, item), places_.size());
    if (is_new) {
      places_[at].children.emplace_back(item, places_.size());
      places_.emplace_back();
    }
    at = known->second;
  }
  return at;
}

Result<> Nesting::add(const std::vector<PathItem>& path, Leaf leaf) {
  EBB_TRY_ASSIGN(const std::size_t at, reach(path));
  Place& place = places_[at];
  if (!place.children.empty() || !std::holds_alternative<std::monostate>(place.what))
    return taken(path);
  place.what = leaf;
  return {};
}

Result<> Nesting::add(const ContainerEntry& container) {
  EBB_TRY_ASSIGN(const std::size_t at, reach(container.path));
  Place& place = places_[at];
  if (std::holds_alternative<Leaf>(place.what)) return taken(container.path);
  place.what = container.kind == Value::Kind::tuple ? Kind::tuple : Kind::dict;
  return {};
}

Nesting::Kind Nesting::kind_of(const Place& place) {
  if (const auto* kind = std::get_if<Kind>(&place.what)) {
    if (*kind == Kind::dict) return *kind;
  }
  if (place.children.empty())
    return std::holds_alternative<Kind>(place.what) ? Kind::tuple : Kind::dict;
  const auto room = kGaps + 2 * static_cast<std::int64_t>(place.children.size());
  const bool positions =
      std::all_of(place.children.begin(), place.children.end(), [&](const auto& child) {
        const auto* number = std::get_if<std::int64_t>(&child.first);
        return number != nullptr && *number >= 0 && *number < room;
      });
  if (!positions) return Kind::dict;
  return std::holds_alternative<Kind>(place.what) ? Kind::tuple : Kind::list;
}

Result<std::vector<ValueEntry>> values_in_one_piece(const Catalog& content) {
  const std::set<PathItem> shared = shared_keys(content);
  const auto nests = [&](const std::vector<PathItem>& path) {
    return !path.empty() && !shared.contains(path.front());
  };
  Nesting nesting;
  std::vector<ValueEntry> values;
  for (const ValueEntry& value : content.values) {
    if (nests(value.path))
      EBB_TRY(nesting.add(value.path, Nesting::Leaf{&value.value}));
    else
      values.push_back(value);
  }
  for (const ContainerEntry& container : content.containers)
    if (nests(container.path)) EBB_TRY(nesting.add(container));
  for (const auto& [item, child] : nesting.root().children)
    values.push_back({joined({item}), {item}, gathered(nesting, nesting.at(child))});
  return values;
}

}  // namespace ebb::formats
