#include <map>
#include <set>
#include <vector>

#include "ebb/formats/catalog/key_path.h"
#include "ebb/formats/state_dict/nesting.h"
#include "ebb/formats/state_dict/state_dict.h"

namespace ebb::formats {
namespace {

using Kind = Value::Kind;

Value value_of_item(const PathItem& item) {
  const auto* text = std::get_if<std::string>(&item);
  return text ? Value::of_string(*text) : Value::of_int(std::get<std::int64_t>(item));
}

Value gathered(const Nesting& nesting, const Nesting::Place& place) {
  if (const auto* leaf = std::get_if<Nesting::Leaf>(&place.what))
    return *std::get<const Value*>(*leaf);
  Value out;
  if (Nesting::kind_of(place) == Nesting::Kind::dict) {
    out.kind = Kind::dict;
    for (const auto& [item, child] : place.children)
      out.entries.emplace_back(value_of_item(item), gathered(nesting, nesting.at(child)));
    return out;
  }
  out.kind = Nesting::kind_of(place) == Nesting::Kind::tuple ? Kind::tuple : Kind::list;
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
