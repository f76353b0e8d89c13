#include "ebb/formats/state_dict/key_split.h"

#include <algorithm>
#include <string>

namespace ebb::formats {
namespace {

std::size_t digits_of(std::int64_t number) { return std::to_string(number).size(); }

}  // namespace

KeyPath::KeyPath(std::string_view key, const std::vector<PathItem>& path)
    : key_(key), path_(path.size() > 1 ? &path : nullptr) {
  std::size_t next = 0;
  if (path_ != nullptr)
    for (const PathItem& item : path) {
      starts_.push_back(next);
      const auto* text = std::get_if<std::string>(&item);
      const std::size_t size = text ? text->size() : digits_of(std::get<std::int64_t>(item));
      const bool spelled = next + size <= key.size() &&
                           (text == nullptr || key.substr(next, size) == *text) &&
                           (next + size == key.size() || key[next + size] == '.');
      if (!spelled) break;
      next += size + 1;
    }
  if (path_ != nullptr && starts_.size() == path.size() && next == key.size() + 1) return;
  path_ = nullptr;
  starts_ = {0};
}

std::string_view KeyPath::item(std::size_t number) const {
  const std::size_t end = number + 1 < starts_.size() ? starts_[number + 1] - 1 : key_.size();
  return key_.substr(starts_[number], end - starts_[number]);
}

bool KeyPath::is_number(std::size_t item) const {
  return path_ != nullptr && std::holds_alternative<std::int64_t>((*path_)[item]);
}

bool KeyPath::is_last_word(std::size_t item) const {
  for (std::size_t next = item + 1; next < items(); ++next)
    if (!is_number(next)) return false;
  return true;
}

StateDictPlace KeyPath::place_before(std::size_t at) const {
  const auto after = std::upper_bound(starts_.begin(), starts_.end(), at);
  const auto item = static_cast<std::size_t>(after - starts_.begin()) - 1;
  StateDictPlace place;
  if (path_ != nullptr)
    place.path.assign(path_->begin(), path_->begin() + static_cast<std::ptrdiff_t>(item));
  place.prefix = key_.substr(starts_[item], at - starts_[item]);
  return place;
}

std::vector<KeySplit> splits_at(const KeyPath& key, std::string_view word) {
  using Keys = KeySplit::Keys;
  std::vector<KeySplit> splits;
  const std::string_view text = key.key();
  for (std::size_t i = 0; i < key.items(); ++i) {
    const std::string_view item = key.item(i);
    const std::size_t start = key.start(i);
    if (item == word && !key.is_number(i)) {
      splits.push_back({start, std::min(start + word.size() + 1, text.size()), i, Keys::nested});
      continue;
    }
    if (!key.is_last_word(i)) continue;
    for (std::size_t at = item.find(word); at != std::string_view::npos;
         at = item.find(word, at + 1)) {
      const std::size_t end = at + word.size();
      if ((at == 0 || item[at - 1] == '.') && end < item.size() && item[end] == '.')
        splits.push_back({start + at, start + end + 1, i, Keys::flattened});
    }
  }
  return splits;
}

}  // namespace ebb::formats
