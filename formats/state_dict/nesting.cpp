#include "ebb/formats/state_dict/nesting.h"

#include <algorithm>
#include <string>

#include "ebb/formats/core/json_text.h"

namespace ebb::formats {
namespace {

constexpr std::size_t kMaxDepth = 256;
constexpr std::int64_t kGaps = 1024;  // positions of a list that may be empty, and as many again

Error taken(const std::vector<PathItem>& path) {
  std::string key;
  for (const PathItem& item : path) {
    if (!key.empty()) key += '.';
    const auto* text = std::get_if<std::string>(&item);
    key += text ? *text : std::to_string(std::get<std::int64_t>(item));
  }
  return {Code::layout, "two entries would be stored under the key " + json_string(key)};
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

}  // namespace ebb::formats
