#include "ebb/formats/dcp/joined_lists.h"

#include <map>
#include <set>
#include <utility>

#include "ebb/formats/catalog/key_path.h"

namespace ebb::formats::dcp {
namespace {

using Path = std::vector<PathItem>;

Path first_items(const Path& path, std::size_t count) {
  return {path.begin(), path.begin() + static_cast<std::ptrdiff_t>(count)};
}

// Where the content has dicts and tuples, and what lies in lists.
class Places {
 public:
  explicit Places(const Catalog& content) {
    for (const ContainerEntry& container : content.containers)
      (container.kind == Value::Kind::dict ? dicts_ : tuples_).insert(container.path);
    for (const TensorEntry& tensor : content.tensors) enter(tensor.path);
    for (const UnreadEntry& unread : content.unread) enter(unread.path);
    for (const ValueEntry& value : content.values) enter(dict_of(value.path));
  }

  // The length of the path to the outermost list that is one value; that of the path: none is.
  std::size_t whole(const Path& path) const {
    std::size_t length = 0;
    while (length < path.size() && entered_.contains(first_items(path, length))) ++length;
    return length;
  }
  bool is_tuple(const Path& path) const { return tuples_.contains(path); }

 private:
  // The innermost dict on the way.
  Path dict_of(const Path& path) const {
    std::size_t length = path.size();
    while (length > 0 && !std::holds_alternative<std::string>(path[length - 1]) &&
           !dicts_.contains(first_items(path, length - 1)))
      --length;
    return first_items(path, length > 0 ? length - 1 : 0);
  }
  // It holds a tensor or is a dict, and all above it holds it.
  void enter(Path path) {
    while (entered_.insert(path).second && !path.empty()) path.pop_back();
  }

  std::set<Path> dicts_, tuples_, entered_;
};

// One list or tuple, made of the values in it.
class List {
 public:
  void add(const Places& places, const Path& path, std::size_t depth, const Value& value) {
    if (depth == path.size()) {
      value_ = &value;
      return;
    }
    tuple_ = places.is_tuple(first_items(path, depth));
    items_[std::get<std::int64_t>(path[depth])].add(places, path, depth + 1, value);
  }
  bool is_complete() const {
    if (value_ != nullptr) return items_.empty();
    std::int64_t next = 0;
    for (const auto& [position, item] : items_)
      if (position != next++ || !item.is_complete()) return false;
    return true;
  }
  Value made() const {
    if (value_ != nullptr) return *value_;
    std::vector<Value> items;
    for (const auto& [position, item] : items_) items.push_back(item.made());
    return tuple_ ? Value::of_tuple(std::move(items)) : Value::of_list(std::move(items));
  }

 private:
  const Value* value_ = nullptr;
  std::map<std::int64_t, List> items_;
  bool tuple_ = false;
};

}  // namespace

void join_lists(Catalog& content) {
  const Places places(content);
  std::map<Path, List> lists;
  std::vector<std::size_t> lengths;
  for (const ValueEntry& value : content.values) {
    lengths.push_back(places.whole(value.path));
    if (lengths.back() < value.path.size())
      lists[first_items(value.path, lengths.back())].add(places, value.path, lengths.back(),
                                                         value.value);
  }
  std::vector<ValueEntry> values;
  std::set<Path> joined_at;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    ValueEntry& value = content.values[i];
    const Path at = first_items(value.path, lengths[i]);
    const auto list = lengths[i] < value.path.size() ? lists.find(at) : lists.end();
    if (list == lists.end() || !list->second.is_complete())
      values.push_back(value);
    else if (joined_at.insert(at).second)
      values.push_back({joined(at), at, list->second.made(), value.echoed});
  }
  content.values = std::move(values);
}

}  // namespace ebb::formats::dcp
